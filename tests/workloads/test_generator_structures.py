"""What a generated session is made of: shared prefixes, conversations, tool loops, retrieved chunks, closed users."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvtop.engine.errors import UnknownName, WorkloadError
from kvtop.engine.types import RequestSpec
from kvtop.workloads.builtins import BUILTINS, GALLERY
from kvtop.workloads.generators.registry import generate
from kvtop.workloads.load import Workload, load_workload
from kvtop.workloads.rows import Row
from kvtop.workloads.spec import WorkloadSpec

S = 1_000_000_000


def rows_of(seed: int = 0, **options: Any) -> list[Row]:
    return generate("synthetic", {"rate": 1.0, **options}, seed).rows


def specs_of(rows: list[Row], vocab_size: int = 5000) -> list[RequestSpec]:
    workload = Workload("w", rows, "", None, [], 0, vocab_size)
    source, specs = workload.source(), []
    while (due := source.next_due()) is not None:
        batch = source.pop_due(due)
        specs += batch
        for spec in batch:
            source.on_finished(spec.request_id or "", due)
    return sorted(specs, key=lambda spec: int((spec.request_id or "")[1:]))


def sessions_of(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.session_id, []).append(row)
    return found


# -- prefix groups -------------------------------------------------------------------------------------------------


def test_groups_share_their_own_system_prompt_and_are_asked_for_as_zipf_says():
    rows = rows_of(num_requests=3000, prefix_groups=10, system_prompt_tokens=[20, 90], prefix_skew=1.0, output_tokens=1)
    counts = Counter(row.shared_id for row in rows)
    total = sum(1 / k for k in range(1, 11))
    for group in range(10):
        assert counts[group] / 3000 == pytest.approx(1 / (group + 1) / total, rel=0.25)
    assert all(len({row.shared_tokens for row in rows if row.shared_id == group}) == 1 for group in counts)
    assert len({row.shared_tokens for row in rows}) > 1
    specs = specs_of(rows[:200])
    heads: dict[int, set[tuple[int, ...]]] = {}
    for row, spec in zip(rows, specs, strict=False):
        heads.setdefault(row.shared_id, set()).add(tuple(spec.prompt[: row.shared_tokens]))
    assert all(len(found) == 1 for found in heads.values())
    assert len({next(iter(found))[0] for found in heads.values()}) == len(heads)


def test_without_skew_all_groups_are_alike():
    counts = Counter(
        row.shared_id for row in rows_of(num_requests=4000, prefix_groups=4, system_prompt_tokens=9, prefix_skew=0)
    )
    assert all(count == pytest.approx(1000, abs=120) for count in counts.values())


def test_groups_without_a_system_prompt_are_one():
    assert {row.shared_id for row in rows_of(prefix_groups=5)} == {0}


# -- conversations -------------------------------------------------------------------------------------------------

CHAT: dict[str, Any] = {
    "structure": "chat",
    "num_sessions": 30,
    "turns": [1, 6],
    "system_prompt_tokens": 40,
    "user_prompt_tokens": [5, 20],
    "output_tokens": [3, 9],
    "think_s": [1.0, 3.0],
}


def test_a_conversation_grows_by_its_answers_and_new_user_text():
    rows = rows_of(**CHAT)
    sessions = sessions_of(rows)
    assert len(sessions) == 30
    assert {len(turns) for turns in sessions.values()} == set(range(1, 7))
    for turns in sessions.values():
        assert [row.turn for row in turns] == list(range(len(turns)))
        assert turns[0].think_ns is None
        for before, after in itertools.pairwise(turns):
            new = after.prompt_tokens - before.prompt_tokens - before.output_tokens
            assert 5 <= new <= 20
            assert 1 * S <= (after.think_ns or 0) <= 3 * S


def test_every_turn_repeats_the_one_before_and_no_other_conversation():
    rows = rows_of(**CHAT)
    specs = dict(zip([(row.session_id, row.turn) for row in rows], specs_of(rows), strict=True))
    for (session, turn), spec in specs.items():
        if turn:
            before = specs[session, turn - 1]
            known = [*before.prompt, *(before.params.forced_output or ())]
            assert list(spec.prompt[: len(known)]) == known
    firsts = [spec.prompt[40] for (_, turn), spec in specs.items() if not turn]
    assert len(set(firsts)) == 30


def test_rows_are_in_order_of_nominal_arrival_and_turns_in_order_of_the_session():
    rows = rows_of(**CHAT)
    assert [row.arrival_ns for row in rows] == sorted(row.arrival_ns for row in rows)
    still = rows_of(**{**CHAT, "think_s": 0})
    for turns in sessions_of(still).values():
        assert [row.turn for row in turns] == list(range(len(turns)))


def test_an_agent_makes_short_calls_and_answers_at_the_end():
    rows = rows_of(
        structure="agent", num_sessions=20, tool_calls=[1, 5], task_tokens=[100, 120], tool_result_tokens=[30, 60],
        call_tokens=[4, 8], answer_tokens=[70, 90], tool_s=0.5,
    )  # fmt: skip
    for turns in sessions_of(rows).values():
        assert 2 <= len(turns) <= 6
        assert 100 <= turns[0].prompt_tokens <= 120
        assert all(4 <= row.output_tokens <= 8 for row in turns[:-1])
        assert 70 <= turns[-1].output_tokens <= 90
        assert {row.think_ns for row in turns[1:]} == {S // 2}
        added = [b.prompt_tokens - a.prompt_tokens - a.output_tokens for a, b in itertools.pairwise(turns)]
        assert all(30 <= tokens <= 60 for tokens in added)


# -- retrieval -----------------------------------------------------------------------------------------------------

RAG: dict[str, Any] = {
    "structure": "rag", "num_requests": 400, "documents": 30, "chunks": 3, "chunk_tokens": 8,
    "system_prompt_tokens": 10, "user_prompt_tokens": [2, 5],
}  # fmt: skip


def test_a_retrieved_chunk_is_the_same_text_wherever_it_stands():
    rows = rows_of(**RAG)
    texts: dict[int, set[tuple[int, ...]]] = {}
    for row, spec in zip(rows, specs_of(rows), strict=True):
        assert len(set(row.hash_ids)) == 3
        assert len(spec.prompt) == row.prompt_tokens
        for place, chunk in enumerate(row.hash_ids):
            texts.setdefault(chunk, set()).add(tuple(spec.prompt[10 + 8 * place : 18 + 8 * place]))
    assert all(len(found) == 1 for found in texts.values())
    assert len({next(iter(found)) for found in texts.values()}) == len(texts) > 25


def test_a_fixed_order_makes_more_prefixes_repeat():
    def repeated(order: str) -> int:
        seen: set[tuple[int, ...]] = set()
        hits = 0
        for row in rows_of(**RAG, order=order):
            prefixes = [row.hash_ids[:k] for k in (1, 2, 3)]
            hits += sum(prefix in seen for prefix in prefixes)
            seen.update(prefixes)
        return hits

    assert {tuple(sorted(r.hash_ids)) for r in rows_of(**RAG)} == {r.hash_ids for r in rows_of(**RAG, order="fixed")}
    assert repeated("fixed") > 1.15 * repeated("relevance")


def test_all_documents_may_be_asked_for_at_once():
    rows = rows_of(**{**RAG, "documents": 3, "skew": 10.0})
    assert {tuple(sorted(row.hash_ids)) for row in rows} == {(0, 1, 2)}


def test_streams_of_a_mix_share_neither_prompts_nor_documents_nor_conversations():
    parts = [
        {**{k: v for k, v in RAG.items() if k != "num_requests"}, "num_requests": 20, "rate": 1, "name": name}
        for name in ("a", "b")
    ]
    parts += [{**CHAT, "num_sessions": 4, "rate": 1, "name": name} for name in ("c", "d")]
    rows = generate("mix", {"streams": parts}, 0).rows
    for what in ("shared_id", "conversation"):
        seen = {name: {getattr(r, what) for r in rows if r.klass == name} - {None} for name in "abcd"}
        assert sum(map(len, seen.values())) == len(set().union(*seen.values()))
    ids = [{i for r in rows if r.klass == name for i in r.hash_ids} for name in "ab"]
    assert not ids[0] & ids[1]
    assert {r.session_id for r in rows if r.klass == "c"} == {f"c-{i}" for i in range(4)}


# -- closed loops --------------------------------------------------------------------------------------------------


def test_a_users_next_session_waits_for_the_last_turn_of_the_one_before():
    rows = rows_of(
        rate=None, arrivals={"kind": "closed", "users": 3, "think_s": 5.0}, **{**CHAT, "num_sessions": 8, "turns": 2}
    )
    by_turn = {(row.session_id, row.turn): row for row in rows}
    for index in range(8):
        first = by_turn[f"s-{index}", 0]
        if index < 3:
            assert (first.think_ns, first.after) == (None, ())
        else:
            assert (first.think_ns, first.after) == (5 * S, ((f"s-{index - 3}", 1),))


def test_chains_of_a_closed_loop_advance_together_where_rows_are_cut():
    """Without think times all are due at 0: the first rows are those of all users, not all rows of the first."""
    rows = rows_of(rate=None, arrivals={"kind": "closed", "users": 5}, num_requests=20)
    assert [row.session_id for row in rows[:5]] == [f"s-{i}" for i in range(5)]


def test_fewer_sessions_than_users():
    rows = rows_of(rate=None, arrivals={"kind": "closed", "users": 50}, num_requests=3)
    assert [row.think_ns for row in rows] == [None] * 3


# -- the rest ------------------------------------------------------------------------------------------------------


def test_class_tenant_and_priority_are_those_of_the_stream():
    rows = rows_of(name="x", tenant="t", priority=-3, num_requests=4)
    assert {(row.klass, row.tenant, row.priority) for row in rows} == {("x", "t", -3)}


def test_one_stream_of_a_mix_is_what_it_is_alone():
    alone = rows_of(name="x", **CHAT)
    mixed = generate("mix", {"streams": [{"name": "x", "rate": 1.0, **CHAT}]}, 0).rows
    assert mixed == alone


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"structure": 3}, "structure is 3, expected one of single, rag, chat, agent"),
        ({"name": 3}, "name is 3, expected a string"),
        ({"prefix_groups": 0}, "prefix_groups is 0"),
        ({"prefix_skew": -1}, "prefix_skew is -1"),
        ({"priority": 0.5}, "priority is 0.5, expected an integer"),
        ({"tenant": 1}, "tenant is 1, expected a string"),
        ({"structure": "chat", "turns": 0}, "turns is 0, expected integers from 1 to 10,000"),
        ({"structure": "chat", "think_s": -1}, "think_s is -1, expected numbers from 0"),
        ({"structure": "chat", "num_sessions": 0}, "num_sessions is 0"),
        ({"structure": "chat", "turns": 9, "user_prompt_tokens": 5_000_000}, "a session has .* tokens after 9 turns"),
        ({"structure": "rag", "chunks": 9, "documents": 4}, "chunks is 9, expected an integer from 1 to 4"),
        ({"structure": "rag", "order": "random"}, "order is 'random', expected relevance or fixed"),
        ({"structure": "rag", "chunk_tokens": 0}, "chunk_tokens is 0"),
        ({"lengths": "t.csv"}, "lengths is 't.csv', expected a table with the path of a trace"),
        ({"lengths": {}}, "lengths.path is missing"),
    ],
)
def test_a_wrong_structure_is_one_line_with_the_key(options: dict[str, Any], words: str):
    with pytest.raises(WorkloadError, match=words) as caught:
        rows_of(**options)
    assert "\n" not in str(caught.value)


def test_a_key_of_another_structure_is_unknown_and_the_nearest_is_named():
    with pytest.raises(UnknownName, match="unknown synthetic option 'num_requests'; did you mean 'num_sessions'"):
        rows_of(structure="chat", num_requests=3)
    with pytest.raises(UnknownName, match="unknown synthetic option 'tool_call'; did you mean 'tool_calls'"):
        rows_of(structure="agent", tool_call=3)
    with pytest.raises(UnknownName, match="unknown structure 'chatt'; did you mean 'chat'"):
        rows_of(structure="chatt")
    with pytest.raises(UnknownName, match="key of structure chat in stream 'a' 'num_requests'; did you mean 'num_sess"):
        generate("mix", {"streams": [{"name": "a", "structure": "chat", "num_requests": 3}]}, 0)


# -- the gallery ---------------------------------------------------------------------------------------------------


def test_every_spec_of_the_gallery_says_in_one_line_what_it_is():
    assert {path.stem for path in GALLERY.iterdir()} == set(BUILTINS)
    for name, builtin in BUILTINS.items():
        assert 30 < len(builtin.summary) < 130, name
        assert not builtin.summary.endswith(".")


@pytest.mark.parametrize("name", list(BUILTINS))
def test_the_hash_of_a_builtin_depends_on_the_seed_alone(name: str):
    loaded = [load_workload(WorkloadSpec(name=name, seed=seed, limit=80), vocab_size=900) for seed in (0, 0, 1)]
    assert loaded[0].hash == loaded[1].hash
    assert loaded[0].hash != loaded[2].hash


def test_generated_rows_are_the_same_in_another_process_and_hash_seed():
    names = ["chat", "agent", "rag", "prefix-groups", "bursty", "long-documents", "closed-users"]
    code = (
        "from kvtop.workloads.load import load_workload; from kvtop.workloads.spec import WorkloadSpec;"
        f"print([load_workload(WorkloadSpec(name=n), vocab_size=777).hash for n in {names!r}])"
    )
    env = {"PYTHONHASHSEED": "7", "PATH": ""}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=env)
    assert out.stdout.strip() == str([load_workload(WorkloadSpec(name=n), vocab_size=777).hash for n in names])


def test_a_trace_in_a_spec_counts_from_the_specs_folder(tmp_path: Path):
    (tmp_path / "t.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,11,7\n2023-11-16 18:17:05.9799600,12,8\n"
    )
    spec = tmp_path / "work.toml"
    spec.write_text(
        'kind = "mix"\n[[streams]]\nname = "a"\nnum_requests = 2\narrivals = { kind = "trace", path = "t.csv" }\n'
        'user_prompt_tokens = { kind = "trace", path = "t.csv" }\noutput_tokens = 5\n'
    )
    rows = load_workload(WorkloadSpec(name=str(spec)), vocab_size=100).rows
    assert [row.arrival_ns for row in rows] == [0, 2 * S]
    assert {row.prompt_tokens for row in rows} <= {11, 12}
    spec.write_text(spec.read_text().replace("t.csv", "gone.csv"))
    with pytest.raises(WorkloadError, match=r"work.toml: .*gone.csv: no such file"):
        load_workload(WorkloadSpec(name=str(spec)), vocab_size=100)


def test_a_wrong_key_deep_in_a_spec_names_the_file(tmp_path: Path):
    spec = tmp_path / "work.toml"
    spec.write_text('kind = "synthetic"\nrate = 1\noutput_tokens = { kind = "normal", mean = 3, std = 1, hi = 9 }')
    with pytest.raises(
        UnknownName, match=r"key of distribution normal in output_tokens in .*work.toml: 'hi'"
    ) as caught:
        load_workload(WorkloadSpec(name=str(spec)), vocab_size=100)
    assert caught.value.nearest == "high"
    spec.write_text('kind = "synthetic"\nrate = 1\nreplay = "opn"')
    with pytest.raises(UnknownName, match=r"replay in .*work.toml: 'opn'; did you mean 'open'"):
        load_workload(WorkloadSpec(name=str(spec)), vocab_size=100)
