"""Streams of requests side by side: paced absolutely, each with its own random numbers, lengths and system prompt."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from kvtop.engine.errors import UnknownName, WorkloadError
from kvtop.workloads.generators.registry import generate
from kvtop.workloads.load import load_workload
from kvtop.workloads.spec import WorkloadSpec

CHATS: dict[str, Any] = {"name": "chat", "num_requests": 40, "rate": 2.0, "system_prompt_tokens": 32}
DOCUMENTS: dict[str, Any] = {"name": "document", "num_requests": 3, "start_s": 5, "every_s": 7, "output_tokens": 8}


def mix(*streams: dict[str, Any], seed: int = 0):
    return generate("mix", {"streams": list(streams)}, seed).rows


def of(rows, name: str):
    return [row for row in rows if row.klass == name]


def test_a_fixed_pace_is_absolute_and_does_not_drift():
    rows = mix({"name": "a", "num_requests": 1001, "every_s": 0.1})
    assert [row.arrival_ns for row in rows] == [k * 100_000_000 for k in range(1001)]


def test_streams_are_merged_in_order_of_arrival_and_keep_their_own_schedule():
    rows = mix(CHATS, DOCUMENTS)
    assert [row.arrival_ns for row in rows] == sorted(row.arrival_ns for row in rows)
    assert [row.arrival_ns for row in of(rows, "document")] == [5 * 10**9, 12 * 10**9, 19 * 10**9]
    assert of(rows, "chat") == mix(CHATS)
    assert {row.output_tokens for row in of(rows, "document")} == {8}
    assert len(rows) == 43


def test_at_the_same_time_the_order_is_that_of_the_streams():
    rows = mix({"name": "b", "num_requests": 2, "every_s": 0}, {"name": "a", "num_requests": 1})
    assert [row.klass for row in rows] == ["b", "b", "a"]


def test_poisson_gaps_have_the_asked_mean_and_differ_between_streams_and_seeds():
    stream = {**CHATS, "num_requests": 4001}
    rows = mix(stream)
    gaps = [b.arrival_ns - a.arrival_ns for a, b in itertools.pairwise(rows)]
    assert sum(gaps) / len(gaps) == pytest.approx(0.5e9, rel=4 / 4000**0.5)
    assert [r.arrival_ns for r in mix(stream, seed=1)] != [r.arrival_ns for r in rows]
    assert [r.arrival_ns for r in mix({**stream, "name": "other"})] != [r.arrival_ns for r in rows]
    assert [r.arrival_ns for r in mix({**stream, "user_prompt_tokens": 9})] == [r.arrival_ns for r in rows]


def test_the_first_arrival_is_at_0():
    assert [row.arrival_ns for row in mix(DOCUMENTS)] == [0, 7 * 10**9, 14 * 10**9]


def served(tmp_path: Path, text: str, **changes: Any):
    path = tmp_path / "work.toml"
    path.write_text(text)
    return load_workload(WorkloadSpec(name=str(path), **changes), vocab_size=1000)


TWO = """
kind = "mix"
seed = 4
[[streams]]
name = "chat"
num_requests = 6
every_s = 1
system_prompt_tokens = 48
user_prompt_tokens = [5, 9]
[[streams]]
name = "review"
num_requests = 5
every_s = 1.5
system_prompt_tokens = 40
user_prompt_tokens = 20
"""


def test_a_spec_in_toml_shares_a_system_prompt_within_a_stream_only(tmp_path: Path):
    workload = served(tmp_path, TWO)
    specs = workload.source().pop_due(10**18)
    heads = {name: {tuple(s.prompt[:40]) for s in specs if s.klass == name} for name in ("chat", "review")}
    assert [len(found) for found in heads.values()] == [1, 1]
    assert heads["chat"] != heads["review"]
    assert len({tuple(s.prompt[48:]) for s in specs if s.klass == "chat"}) == 6
    assert {len(s.prompt) for s in specs if s.klass == "review"} == {60}
    assert workload.hash == served(tmp_path, TWO).hash
    assert workload.hash != served(tmp_path, TWO, seed=1).hash
    assert workload.hash != served(tmp_path, TWO.replace("1.5", "1.6")).hash


def test_lengths_scale_with_the_system_prompt(tmp_path: Path):
    rows = served(tmp_path, TWO, length_scale=0.5).rows
    assert {row.prompt_tokens for row in rows if row.klass == "review"} == {30}
    assert {row.shared_tokens for row in rows if row.klass == "chat"} == {24}


@pytest.mark.parametrize(
    ("streams", "words"),
    [
        (None, "streams is missing"),
        ([], r"streams is \[\], expected 1 to 64 tables"),
        ([3], r"streams\[0\] is 3, expected a table"),
        ([{"num_requests": 1}], r"streams\[0\].name is missing"),
        ([{"name": "a"}, {"name": "a"}], r"streams\[1\].name is 'a', which is the name of another stream"),
        ([{"name": "a", "num_requests": 2}], "stream 'a': none is given, expected arrivals, rate or every_s"),
        ([{"name": "a", "num_requests": 2, "rate": 1, "every_s": 1}], "stream 'a': both rate and every_s are given"),
        ([{"name": "a", "num_requests": 0}], "stream 'a': num_requests is 0"),
        ([{"name": "a", "num_requests": 2, "every_s": -1}], "stream 'a': every_s is -1"),
        ([{"name": "a", "num_requests": 2, "rate": float("nan")}], "stream 'a': rate is nan"),
        ([{"name": "a", "start_s": "3", "rate": 1}], "stream 'a': start_s is '3'"),
        ([{"name": "a", "rate": 1, "user_prompt_tokens": [9, 5]}], r"stream 'a': user_prompt_tokens is \[9, 5\]"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_stream_and_key(streams: Any, words: str):
    with pytest.raises(WorkloadError, match=words) as caught:
        generate("mix", {"streams": streams}, 0)
    assert "\n" not in str(caught.value)


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(UnknownName, match=r"key in stream 'a' 'outputs_tokens'; did you mean 'output_tokens'"):
        mix({"name": "a", "outputs_tokens": 3})


def test_the_spec_in_the_documents_is_the_builtin(tmp_path: Path):
    document = (Path(__file__).parents[2] / "docs" / "effects.md").read_text()
    spec = document.partition("```toml\n")[2].partition("```")[0]
    builtin = load_workload(WorkloadSpec(name="chunked"), vocab_size=1000)
    assert served(tmp_path, spec).hash == builtin.hash
