"""The life told from decisions adds up to what the engine itself counted, and tables tell the same as the stream."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from why_engine import Scenario, of_kind, record, tokens

from kvtop.engine.api import RequestSpec, SamplingParams
from kvtop.engine.events import Event, RequestEvent
from kvtop.results.load import open_run
from kvtop.why import Line, explain, facts_of
from kvtop.why.tables import load_facts

CONFIGS: dict[str, dict[str, Any]] = {
    "lru": {},
    "lpm": {"policy": "lpm", "max_num_seqs": 3},
    "mixed": {"batch_policy": "mixed", "max_batched_tokens": 8},
    "prefill-first": {"batch_policy": "prefill-first", "max_batched_tokens": 8},
    "no-cache": {"prefix_caching": False, "victim": "most-blocks"},
    "swap": {"prefix_caching": False, "preemption": "swap", "host_blocks": 6},
    "host tier": {"host_cache_blocks": 12},
    "contiguous": {"allocator": "contiguous-pow2"},
}


def crowded(seed: int, *, branches: bool, beams: bool = False, **config: Any) -> Scenario:
    """Requests that share prefixes and compete for 12 blocks of 4 tokens, one submitted a step."""
    rng = random.Random(seed)
    scenario = Scenario(12, max_model_len=None, **config)
    for i in range(24):
        prompt = tokens(rng.randrange(1, 16), rng.randrange(1, 4)) + tokens(rng.randrange(8), 10 + i)
        params = SamplingParams(max_tokens=rng.randrange(1, 20), n=rng.choice((1, 1, 2, 3)) if branches else 1)
        if beams and i % 3:
            params = SamplingParams(max_tokens=params.max_tokens, n=params.n, num_beams=max(2, params.n))
        spec = RequestSpec(prompt, params, request_id=f"q{i}", priority=rng.choice((0, 0, 1)), tenant="t")
        scenario.engine.submit_spec(spec)
        scenario.steps(1)
    scenario.finish(2000)
    scenario.events += scenario.engine.recorder.drain()
    return scenario


def ends(events: list[Event]) -> list[RequestEvent]:
    return [event for event in events if isinstance(event, RequestEvent) and event.phase == "finished"]


def total(lines: list[Line], kind: str, key: str) -> int:
    return sum(line.numbers[key] or 0 for line in of_kind(lines, kind))


def waited_ns(lines: list[Line]) -> int:
    return sum(s["wait_ns"] for line in of_kind(lines, "waited") for s in line.numbers["stretches"])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("seed", range(2))
def test_parts_add_up_to_the_engines_own_figures(name: str, seed: int) -> None:
    scenario = crowded(seed, branches=False, **CONFIGS[name])
    told = {row.request_id: (row, scenario.why(row.request_id)) for row in ends(scenario.events)}
    assert len(told) == 24
    for row, lines in told.values():
        computed = total(lines, "prefill", "computed_tokens")
        assert waited_ns(lines) == row.queue_total_ns
        assert len(of_kind(lines, "preempted")) == row.num_preemptions
        assert total(lines, "resumed", "away_ns") == row.preempted_ns
        assert total(lines, "resumed", "restored_tokens") == row.restored_tokens
        assert total(lines, "resumed", "recomputed_tokens") == row.recomputed_tokens
        assert total(lines, "prefix", "host_hit_tokens") == row.host_hit_tokens
        found = total(lines, "prefix", "cached_tokens")
        assert found == (row.hit_tokens or 0) + row.host_hit_tokens
        assert computed + found >= row.prompt_tokens
        assert total(lines, "decode", "tokens") + len(of_kind(lines, "first_token")) == row.output_tokens
        (end,) = of_kind(lines, "ended")
        assert end.numbers["output_tokens"] == row.output_tokens
        assert end.numbers["itl_max_ns"] == row.itl_max_ns
        assert end.t_ns == row.t_done_ns
        if row.t_first_token_ns is not None:
            assert total(lines, "first_token", "ttft_ns") == row.t_first_token_ns - row.t_sched_ns
    if name != "contiguous":
        assert sum(row.num_preemptions for row, _ in told.values()), "a test of nothing"


@pytest.mark.parametrize("seed", range(2))
def test_branches_add_up_too(seed: int) -> None:
    scenario = crowded(seed, branches=True)
    for row in ends(scenario.events):
        lines = scenario.why(row.request_id)
        sequences = {line.seq_id for line in lines}
        firsts = len(of_kind(lines, "first_token")) * row.n  # all branches have their first token from one step
        assert len(sequences) == row.n
        assert total(lines, "decode", "tokens") + firsts == row.output_tokens
        assert sum(line.numbers["output_tokens"] for line in of_kind(lines, "ended")) == row.output_tokens
        assert len(of_kind(lines, "preempted")) == row.num_preemptions


@pytest.mark.parametrize("name", CONFIGS)
def test_beams_add_up_too(name: str) -> None:
    scenario = crowded(4, branches=True, beams=True, **CONFIGS[name])
    seen = Counter()
    for row in ends(scenario.events):
        lines = scenario.why(row.request_id)
        seen += Counter(line.kind for line in lines)
        assert sum(line.numbers["output_tokens"] for line in of_kind(lines, "ended")) == row.output_tokens
        assert len(of_kind(lines, "preempted")) == row.num_preemptions
        assert total(lines, "resumed", "restored_tokens") <= row.restored_tokens
        assert len(of_kind(lines, "first_token")) == 1
        if of_kind(lines, "search"):
            assert not of_kind(lines, "decode")
            assert all(line.numbers["itl_max_ns"] is None for line in of_kind(lines, "ended"))
            assert total(lines, "first_token", "ttft_ns") + row.t_sched_ns == row.t_done_ns
    assert seen["search"] > 20
    assert seen["restarted"] > 10


@pytest.mark.parametrize("beams", [False, True], ids=["branches", "beams"])
@pytest.mark.parametrize("name", CONFIGS)
def test_tables_tell_the_same_as_the_stream(tmp_path: Path, name: str, beams: bool) -> None:
    scenario = crowded(5, branches=True, beams=beams, **CONFIGS[name])
    run = open_run(record(tmp_path / "run", scenario.events, scenario.run))
    names = [f"q{i}" for i in range(24)]
    names += [child.seq_id for child in explain(_facts(scenario, "q0")) if "#" in child.seq_id]
    for request in names:
        assert explain(load_facts(run, request)) == explain(_facts(scenario, request)), request


def _facts(scenario: Scenario, name: str) -> Any:
    facts = facts_of(scenario.events, name, scenario.run)
    assert facts is not None
    return facts
