"""Agent sessions: floor rounding, ids local to a file, think times, sub-agents, answers of which nothing came."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from trace_files import arrivals_s, document, refused, turn

from kvtop.workloads.formats.registry import load_trace, read_trace
from kvtop.workloads.load import load_workload
from kvtop.workloads.sessions import predecessors
from kvtop.workloads.shape import with_arrivals
from kvtop.workloads.spec import WorkloadSpec


def call(t: float, tokens: int, out: int = 5, **more: Any) -> dict[str, Any]:
    return {
        "t": t,
        "type": "n",
        "model": "m",
        "in": tokens,
        "out": out,
        "hash_ids": list(range(1, tokens // 64 + 1)),
        **more,
    }


def session(*requests: dict[str, Any], name: str = "a", **more: Any) -> dict[str, Any]:
    return {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": list(requests), **more}


def sub_agent(t: float, duration_ms: float, *requests: dict[str, Any], agent_id: str = "agent_001") -> dict[str, Any]:
    head = {"t": t, "type": "subagent", "agent_id": agent_id, "duration_ms": duration_ms, "status": "completed"}
    return {**head, "requests": list(requests)}


CHAT = session(
    call(0.0, 128, api_time=9.0, think_time=0.0),
    call(15.0, 200, api_time=2.0, think_time=6.0),
    call(20.0, 256, out=0, think_time=2.5),
)


def test_a_session_is_a_chain_of_turns_with_their_think_times(tmp_path: Path):
    trace = read_trace(document(tmp_path / "trace_1.json", CHAT))
    assert (trace.format, trace.rounding, trace.time_unit) == ("weka", "floor", "seconds")
    assert arrivals_s(trace) == [0.0, 15.0, 20.0]
    assert [row.turn for row in trace.rows] == [1, 2, 3]
    assert [row.think_ns for row in trace.rows] == [None, 6_000_000_000, 2_500_000_000]
    assert {row.session_id for row in trace.rows} == {"a"}
    assert predecessors(trace.rows) == {1: (0,), 2: (1,)}


def test_a_closed_loop_sends_the_next_turn_when_its_user_has_thought(tmp_path: Path):
    # W45: turn 2 is recorded 5 s after turn 1, the answer now takes 9 s, thinking 2 s: at 11 s, or 5 s in an open loop.
    path = document(tmp_path / "trace_1.json", session(call(0.0, 128, api_time=3.0), call(5.0, 192, think_time=2.0)))
    due = {}
    for replay in ("closed", "open"):
        source = load_workload(WorkloadSpec(name=str(path), replay=replay), vocab_size=1000).source()
        (first,) = source.pop_due(0)
        source.on_finished(first.request_id or "", 9_000_000_000)
        due[replay] = source.next_due()
    assert due == {"closed": 11_000_000_000, "open": 5_000_000_000}


def test_ids_are_of_full_blocks_and_the_tail_is_the_rows_own(tmp_path: Path):
    trace = read_trace(document(tmp_path / "trace_1.json", CHAT))
    assert [len(row.hash_ids) for row in trace.rows] == [2, 3, 4]
    assert trace.rows[1].hash_ids[:2] == trace.rows[0].hash_ids
    prompts = [spec.prompt for spec in _prompts(tmp_path / "trace_1.json")]
    assert prompts[1][:128] == prompts[0]
    assert prompts[2][:192] == prompts[1][:192]
    assert prompts[2][192:200] != prompts[1][192:200]


def _prompts(path: Path) -> list:
    return load_workload(WorkloadSpec(name=str(path), replay="open"), vocab_size=1000).source().pop_due(10**18)


def test_an_answer_of_nothing_is_served_as_one_token_and_counted(tmp_path: Path):
    path = document(tmp_path / "trace_1.json", CHAT)
    assert [row.output_tokens for row in load_trace([path]).rows] == [5, 5, 0]
    trace = read_trace(path)
    assert [row.output_tokens for row in trace.rows] == [5, 5, 1]
    assert trace.notices == ["1 request with 0 output tokens recorded: 1 is served, the prompt was computed"]


PARENT = session(
    call(0.0, 128, api_time=10.0),
    sub_agent(42.0, 30_000, call(0.0, 64, api_time=1.0), call(4.0, 128, api_time=2.0, think_time=3.0)),
    sub_agent(61.0, 50_000, call(0.0, 64), agent_id="agent_002"),
    call(70.0, 192, think_time=60.0),
    call(80.0, 256, think_time=3.0),
)


def test_sub_agents_run_beside_each_other_and_the_parent_waits_for_the_last(tmp_path: Path):
    trace = read_trace(document(tmp_path / "trace_1.json", PARENT))
    first, second = turn(trace, "a/agent_001", 1), turn(trace, "a/agent_002", 1)
    # An entry's t is its end: 42 - 30 and 61 - 50 s. Both began after the parent's call ended, at 10 s.
    assert (first.arrival_ns, second.arrival_ns) == (12_000_000_000, 11_000_000_000)
    assert (first.think_ns, second.think_ns) == (2_000_000_000, 1_000_000_000)
    assert first.after == second.after == (("a", 1),)
    assert turn(trace, "a/agent_001", 2).think_ns == 3_000_000_000
    parent = turn(trace, "a", 2)
    assert parent.after == (("a/agent_001", 2), ("a/agent_002", 1))
    assert parent.think_ns == 9_000_000_000  # 70 s less 61 s, when the last of them ended
    waits_for = predecessors(trace.rows)
    place = {(row.session_id, row.turn): i for i, row in enumerate(trace.rows)}
    assert set(waits_for[place["a", 2]]) == {place["a", 1], place["a/agent_001", 2], place["a/agent_002", 1]}
    assert waits_for[place["a", 3]] == (place["a", 2],)


def test_a_sub_agent_that_outlives_the_next_call_is_not_waited_for(tmp_path: Path):
    late = session(
        call(0.0, 128, api_time=1.0), sub_agent(90.0, 80_000, call(0.0, 64)), call(30.0, 192, think_time=29.0)
    )
    parent = turn(read_trace(document(tmp_path / "trace_1.json", late)), "a", 2)
    assert (parent.after, parent.think_ns) == ((), 29_000_000_000)


def test_an_agent_that_is_called_twice_is_two_sessions(tmp_path: Path):
    twice = session(
        call(0.0, 128, api_time=1.0),
        sub_agent(5.0, 3000, call(0.0, 64)),
        call(9.0, 192, api_time=1.0),
        sub_agent(15.0, 3000, call(0.0, 64)),
    )
    trace = read_trace(document(tmp_path / "trace_1.json", twice))
    assert [(row.session_id, row.after) for row in trace.rows if row.session_id != "a"] == [
        ("a/agent_001", (("a", 1),)),
        ("a/agent_001#requests[3]", (("a", 2),)),
    ]
    assert predecessors(trace.rows) == {1: (0,), 2: (0, 1), 3: (2,)}


def test_sub_agents_share_the_parents_ids(tmp_path: Path):
    trace = read_trace(document(tmp_path / "trace_1.json", PARENT))
    assert turn(trace, "a/agent_002", 1).hash_ids == turn(trace, "a", 1).hash_ids[:1]


def test_a_directory_is_many_sessions_with_ids_of_their_own(tmp_path: Path):
    document(tmp_path / "trace_0002.json", {**CHAT, "id": "b"})
    (tmp_path / "trace_0001.json.gz").write_bytes(gzip.compress(json.dumps(CHAT).encode()))
    document(tmp_path / "notes.json", {"not": "a session"})
    trace = read_trace(tmp_path)
    assert trace.rows == load_workload(WorkloadSpec(name=str(tmp_path)), vocab_size=99).rows
    ids = {name: {i for row in trace.rows if row.session_id == name for i in row.hash_ids} for name in "ab"}
    assert len(ids["a"]) == len(ids["b"]) == 4
    assert ids["a"].isdisjoint(ids["b"])
    assert any("2 sessions start together" in notice for notice in trace.notices)
    both = [tmp_path / "trace_0001.json.gz", tmp_path / "trace_0002.json"]
    assert load_trace(both).rows == load_trace([tmp_path]).rows
    shown = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in both)
    assert trace.trace_sha256 == hashlib.sha256(shown.encode()).hexdigest()  # sha256sum trace_* | sha256sum


def test_ids_of_a_global_scope_are_the_same_in_every_file(tmp_path: Path):
    for name in "ab":
        document(tmp_path / f"trace_{name}.json", {**CHAT, "id": name, "hash_id_scope": "global"})
    trace = read_trace(tmp_path)
    assert turn(trace, "a", 3).hash_ids == turn(trace, "b", 3).hash_ids


def test_sessions_may_be_started_one_after_the_other(tmp_path: Path):
    for number in range(400):
        document(tmp_path / f"trace_{number:03}.json", {**CHAT, "id": f"s{number}"})
    trace = read_trace(tmp_path, arrival_rate=0.5)
    starts = sorted(row.arrival_ns / 1e9 for row in trace.rows if row.turn == 1)
    assert starts[0] == 0.0
    assert 399 / starts[-1] == pytest.approx(0.5, rel=0.15)  # three standard deviations of a Poisson process
    for number in (0, 17, 399):
        own = [row.arrival_ns for row in trace.rows if row.session_id == f"s{number}"]
        assert [time - own[0] for time in own] == [0, 15_000_000_000, 20_000_000_000]
    assert read_trace(tmp_path, arrival_rate=0.5).rows == trace.rows
    assert with_arrivals(load_trace([tmp_path]).rows, 0.5, seed=1)[0] != trace.rows


BROKEN = [
    (session(call(0.0, 128, hash_ids=[1])), ["requests[0]", "1 ids", "in 128 needs 2", "64 tokens, full blocks only"]),
    (session(call(0.0, 20, hash_ids=[1, 2])), ["requests[0]", "2 ids", "in 20 needs 0", "64"]),
    (session(call(5.0, 64), call(4.0, 64)), ["requests[1]", "t is 4, before the call it follows"]),
    (session(call(0.0, 64), {"t": 1.0, "type": "n", "out": 3}), ["requests[1]", "'in' is missing"]),
    (session(call(-1.0, 64)), ["requests[0]", "t is -1.0, expected seconds from 0 up"]),
    (session(sub_agent(5.0, 10.0)), ["requests[0].requests", "holds no call"]),
    (session(), ["holds no call"]),
    ({**CHAT, "block_size": 0}, ["block_size is 0"]),
    ({**CHAT, "hash_id_scope": "planet"}, ["'planet'", "local or global"]),
    (session({**call(0.0, 64), "out": "five"}), ["expected `int", "requests[0].out"]),
]


@pytest.mark.parametrize(("found", "words"), BROKEN, ids=range(len(BROKEN)))
def test_a_broken_session_names_the_call(found: dict, words: list[str], tmp_path: Path):
    refused(document(tmp_path / "trace_1.json", found), str(tmp_path), *words)


def test_a_session_that_is_there_twice_and_a_directory_of_something_else_are_refused(tmp_path: Path):
    for name in ("trace_1.json", "trace_2.json"):
        document(tmp_path / name, CHAT)
    refused(tmp_path, "trace_2.json", "session 'a' is also in", "trace_1.json")
    other = tmp_path / "other"
    other.mkdir()
    document(other / "x.json", {"a": 1})
    refused(other, "is a directory", "weka")


@pytest.mark.slow
def test_the_published_sessions_all_load_and_wait_for_nothing_that_comes_later():
    folder = os.environ.get("KVTOP_TRACES")
    if not folder:
        pytest.skip("KVTOP_TRACES names no folder")
    trace = read_trace(Path(folder) / "weka-agentic")
    assert len(predecessors(trace.rows)) == len(trace.rows) - 135
    sample = random.Random(1).sample(trace.rows, 500)
    assert all(len(row.hash_ids) == row.prompt_tokens // 64 for row in sample)
