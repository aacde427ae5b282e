"""Turns that wait for their answers: when they are due, what they are made of, and what an open replay changes."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from kvtop.engine.api import Engine, EngineConfig, NullExecutor, Recorder
from kvtop.engine.errors import UnknownName, WorkloadError
from kvtop.engine.events import RequestEvent
from kvtop.engine.types import RequestSpec
from kvtop.run.loop import RunLoop
from kvtop.workloads.identity import workload_hash
from kvtop.workloads.replay import ReplaySource
from kvtop.workloads.rows import Row, RowSet
from kvtop.workloads.scale import check_factor, scale_lengths, scale_time
from kvtop.workloads.sessions import as_replayed, predecessors
from kvtop.workloads.tokens import TokenMaker

S = 1_000_000_000


def turn(session: str, number: int, at_s: float, think_s: float | None, *, out: int = 9, **more) -> Row:
    think_ns = None if think_s is None else round(think_s * S)
    values = {"prompt_tokens": 4, "session_id": session, "turn": number, "think_ns": think_ns, **more}
    return Row(round(at_s * S), output_tokens=out, **values)


def source_of(rows: list[Row]) -> ReplaySource:
    return ReplaySource(rows, TokenMaker(0, 1000))


class Inbox:
    def poll(self):
        return []

    def wait(self, timeout_s):
        raise AssertionError("virtual time never waits")


class Outlet:
    def __init__(self):
        self.events = []

    def send(self, events):
        self.events += events

    def tick(self, step):
        return False

    def flush(self):
        return True


def served(rows: list[Row], **config) -> dict[str, RequestEvent]:
    """Every request's end, of a run in which each step takes one second of virtual time."""
    values = {"num_blocks": 4096, "block_size": 4, "max_num_seqs": 64, "max_batched_tokens": 4096} | config
    engine = Engine(EngineConfig.from_mapping(values), NullExecutor(S), recorder=Recorder())
    outlet = Outlet()
    end = RunLoop(engine, source_of(rows), [outlet], Inbox()).run()  # type: ignore[arg-type]
    assert end.status == "complete", end.error
    return {e.request_id: e for e in outlet.events if isinstance(e, RequestEvent) and e.phase == "finished"}


RECORDED = RowSet([turn("a", 0, 0, None), turn("a", 1, 5, 2)])  # nine tokens, a second each: turn 0 takes 9 s


def test_a_turn_is_due_when_the_one_before_has_ended_and_the_user_has_thought():
    ends = served(as_replayed(RECORDED, "closed", "w").rows)
    assert ends["r0"].t_done_ns == 9 * S
    assert ends["r1"].t_sched_ns == 11 * S
    assert ends["r1"].t_submit_ns == 11 * S


def test_an_open_replay_sends_it_at_its_recorded_time_and_says_so():
    opened = as_replayed(RECORDED, "open", "w")
    assert served(opened.rows)["r1"].t_sched_ns == 5 * S
    assert opened.notices == ["replay open: 1 turn sent at the recorded time, whether the one before has ended or not"]
    assert as_replayed(RECORDED, "closed", "w").notices == []
    hashes = {workload_hash(r.rows, seed=0, vocab_size=9) for r in (RECORDED, opened)}
    assert len(hashes) == 2


def test_what_has_no_think_times_is_the_same_in_both_replays():
    plain = RowSet([Row(0, 4, 4), Row(S, 4, 4)])
    assert as_replayed(plain, "open", "w") == as_replayed(plain, "closed", "w") == plain


def test_an_open_replay_of_what_nobody_recorded_is_refused():
    made = msgspec.structs.replace(RECORDED, nominal_arrivals=True)
    with pytest.raises(WorkloadError, match="w is a closed loop: when its turns arrive was never recorded"):
        as_replayed(made, "open", "w")
    with pytest.raises(UnknownName, match="did you mean 'closed'"):
        as_replayed(made, "close", "w")


def test_sessions_start_at_their_recorded_time_and_do_not_wait_for_each_other():
    rows = [turn("a", 0, 0, None), turn("b", 0, 3, None, out=2), turn("b", 1, 4, 0.5, out=1), turn("a", 1, 5, 2)]
    ends = served(rows)
    assert [ends[f"r{i}"].t_sched_ns / S for i in range(4)] == [0, 3, 5.5, 11]
    assert [ends[f"r{i}"].session_id for i in range(4)] == ["a", "b", "b", "a"]


PARENT_AND_TWO_SUB_AGENTS = [
    turn("p", 0, 0, None, out=2),  # ends at 2
    turn("p/x", 0, 3, 1, out=3, after=(("p", 0),)),  # due 3, ends 6
    turn("p/y", 0, 4, 2, out=1, after=(("p", 0),)),  # due 4, ends 5
    turn("p/x", 1, 7, 1, out=5),  # due 7, ends 12
    turn("p", 1, 20, 3, out=1, after=(("p/x", 1), ("p/y", 0))),  # due 3 s after x's last turn
]


def test_sub_agents_start_from_their_parents_turn_and_the_parent_waits_for_the_last():
    ends = served(PARENT_AND_TWO_SUB_AGENTS)
    assert [ends[f"r{i}"].t_sched_ns / S for i in range(5)] == [0, 3, 4, 7, 15]
    assert [ends[f"r{i}"].parent_request_id for i in range(5)] == ["", "r0", "r0", "r1", "r0"]


def test_a_turn_whose_predecessors_were_cut_away_arrives_at_its_recorded_time():
    rows = PARENT_AND_TWO_SUB_AGENTS[2:]
    assert predecessors(rows) == {2: (1, 0)}
    ends = served(rows)
    assert [ends[f"r{i}"].t_sched_ns / S for i in range(2)] == [4, 7]


def test_turns_out_of_order_and_rows_that_wait_for_later_ones_are_refused():
    with pytest.raises(WorkloadError, match="session 'a': turn 1 comes after turn 2"):
        predecessors([turn("a", 2, 0, None), turn("a", 1, 1, 1)])
    with pytest.raises(WorkloadError, match="session 'a': turn 0 waits for turn 3 of session 'b', which arrives later"):
        predecessors([turn("a", 0, 0, 1, after=(("b", 3),)), turn("b", 3, 1, None)])
    with pytest.raises(WorkloadError, match="waits for turn 0 of session 'a', which arrives later"):
        predecessors([turn("a", 0, 0, 1, after=(("a", 0),))])


def test_rows_without_a_session_wait_for_nobody():
    assert predecessors([turn("", 0, 0, 1), turn("", 0, 1, 1)]) == {}


def test_a_rejected_or_aborted_turn_counts_as_ended():
    rows = [turn("a", 0, 0, None, prompt_tokens=500), turn("a", 1, 1, 2, out=1)]
    ends = served(rows, max_model_len=100)
    assert ends["r0"].finish_reason == "rejected"
    assert ends["r1"].t_sched_ns == 2 * S


def test_a_request_submitted_by_hand_is_not_taken_for_one_of_the_workload():
    source = source_of(RECORDED.rows)
    source.pop_due(0)
    for name in ("mine", "", "r", "rx", "r0x", "q0", "0"):
        source.on_finished(name, S)
    assert source.next_due() is None
    assert not source.exhausted
    source.on_finished("r0", S)
    source.on_finished("r0", 2 * S)
    assert source.next_due() == 3 * S
    assert [r.request_id for r in source.pop_due(3 * S)] == ["r1"]
    assert source.exhausted


def test_the_source_equals_a_plain_model_of_a_closed_loop():
    """Random sessions with random service times: due times by a recursion over (start, service, think)."""
    import random

    rng = random.Random(3)
    rows = []
    for s in range(20):
        at = rng.randrange(50)
        for t in range(rng.randrange(1, 6)):
            rows.append(turn(f"s{s}", t, at, rng.randrange(5) if t else None, out=rng.randrange(1, 9)))
            at += rng.randrange(20)
    rows.sort(key=lambda r: r.arrival_ns)
    service = [rng.randrange(1, 30) * S for _ in rows]
    due, free = {}, {}
    for i, row in enumerate(rows):
        due[i] = row.arrival_ns if row.turn == 0 else free[row.session_id] + (row.think_ns or 0)
        free[row.session_id] = due[i] + service[i]
    source, running, seen = source_of(rows), [], {}
    while not source.exhausted or running:
        times = [t for t in (source.next_due(), min(running)[0] if running else None) if t is not None]
        now = min(times)
        for end, request_id in sorted(r for r in running if r[0] == now):
            source.on_finished(request_id, end)
        running = [r for r in running if r[0] > now]
        for spec in source.pop_due(now):
            index = int((spec.request_id or "")[1:])
            seen[index] = spec.arrival_ns
            running.append((now + service[index], spec.request_id))
    assert seen == due


# -- what the turns are made of ------------------------------------------------------------------------------------

CHAT = [
    turn("c", 0, 0, None, prompt_tokens=30, out=10, shared_tokens=20, conversation=7),
    turn("c", 1, 1, 1, prompt_tokens=45, out=6, shared_tokens=20, conversation=7),
    turn("c", 2, 2, 1, prompt_tokens=60, out=5, shared_tokens=20, conversation=7),
]


def chat_specs(rows: list[Row]) -> list[RequestSpec]:
    return source_of([msgspec.structs.replace(row, think_ns=None) for row in rows]).pop_due(10**18)


def test_the_next_prompt_is_this_one_and_the_answer_and_new_text():
    specs = chat_specs(CHAT)
    for before, after in itertools.pairwise(specs):
        known = [*before.prompt, *(before.params.forced_output or ())]
        assert list(after.prompt[: len(known)]) == known
        assert len(after.prompt) > len(known)
    other = chat_specs([msgspec.structs.replace(row, conversation=8) for row in CHAT])
    assert other[0].prompt[:20] == specs[0].prompt[:20], "the system prompt is shared"
    assert other[0].prompt[20] != specs[0].prompt[20], "another conversation differs from its first token on"


def test_the_answers_blocks_are_found_by_the_next_turn():
    ends = served(CHAT)
    # 30 + 10 tokens, the last one's K and V never stored: 39 // 4 blocks of 4; then 45 + 6 - 1.
    assert [ends[f"r{i}"].hit_tokens for i in range(3)] == [0, 36, 48]


def test_scaled_turns_still_hold_the_one_before_and_its_answer():
    for factor in (0.1, 1 / 3, 0.37, 2.5):
        rows, _ = scale_lengths(CHAT, check_factor(factor, "length_scale"))
        specs = chat_specs(rows)
        for before, after in itertools.pairwise(specs):
            known = [*before.prompt, *(before.params.forced_output or ())]
            assert list(after.prompt[: len(known)]) == known
            assert len(after.prompt) > len(known)


def test_think_times_scale_with_the_gaps():
    rows = scale_time(RECORDED.rows, check_factor(0.5, "time_scale"))
    assert (rows[1].arrival_ns, rows[1].think_ns) == (2.5 * S, S)
    assert rows[0].think_ns is None
    with pytest.raises(WorkloadError, match="beyond 292 years"):
        scale_time([turn("a", 0, 0, 1e9)], check_factor(1e9, "time_scale"))


def test_the_hash_covers_what_a_closed_loop_is():
    base = turn("a", 1, 5, 2)
    variants = [
        base,
        turn("a", 1, 5, 3),
        turn("a", 1, 5, None),
        turn("a", 1, 5, 2, after=(("b", 0),)),
        turn("a", 1, 5, 2, conversation=0),
        turn("a", 1, 5, 2, conversation=1),
    ]
    assert len({workload_hash([row], seed=0, vocab_size=9) for row in variants}) == len(variants)


def test_the_run_says_which_loop_it_was(tmp_path: Path):
    from kvtop.cli.main import main

    spec = tmp_path / "chat.toml"
    spec.write_text('kind = "synthetic"\nstructure = "chat"\nnum_sessions = 2\nturns = 2\nrate = 1')
    for mode, name in (("closed", "chat.toml"), (None, "poisson-shared-prefix")):
        where = str(spec) if name == "chat.toml" else name
        out = tmp_path / name.split(".")[0]
        args = ["bench", "-w", where, "--executor", "null", "--num-blocks", "4096", "--limit", "4", "-o", str(out)]
        assert main(args + (["--replay", mode] if mode else [])) == 0
        (manifest,) = [json.loads(p.read_text()) for p in out.rglob("run.json")]
        assert manifest["loop"] == ("closed" if name == "chat.toml" else "open")
        assert manifest["replay"] == "closed"


DIGEST = """
import hashlib, sys
import msgspec
from kvtop.engine.api import Engine, EngineConfig, NullExecutor, Recorder
from kvtop.run.loop import RunLoop
from kvtop.workloads.load import load_workload
from kvtop.workloads.spec import WorkloadSpec

class Quiet:
    digest = hashlib.sha256()
    def poll(self): return []
    def tick(self, step): return False
    def flush(self): return True
    def send(self, events):
        for event in events:
            self.digest.update(msgspec.msgpack.encode(event))

for name in sys.argv[1:]:
    workload = load_workload(WorkloadSpec(name=name), vocab_size=5000)
    engine = Engine(EngineConfig(num_blocks=300, block_size=16), NullExecutor(20_000_000), recorder=Recorder())
    quiet = Quiet()
    end = RunLoop(engine, workload.source(), [quiet], quiet).run()
    print(name, end.status, end.t_ns, quiet.digest.hexdigest())
"""


def test_a_closed_loop_in_virtual_time_repeats_itself_to_the_byte():
    outs = [
        subprocess.run(
            [sys.executable, "-c", DIGEST, "chat", "closed-users"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={"PYTHONHASHSEED": seed, "PATH": ""},
        ).stdout
        for seed in ("0", "1")
    ]
    assert outs[0] == outs[1]
    assert [line.split()[:2] for line in outs[0].splitlines()] == [["chat", "complete"], ["closed-users", "complete"]]
