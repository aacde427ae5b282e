"""The whole engine under random configurations and disturbances (``engine_scenario`` says what is checked)."""

from __future__ import annotations

from collections import Counter

import pytest
from engine_scenario import Scenario

SEEDS_A_TEST = 60


def _run(seeds: range) -> None:
    for seed in seeds:
        scenario = Scenario(seed)
        try:
            scenario.run()
        except Exception as error:
            error.add_note(f"seed {seed}: {scenario.config}")
            raise


@pytest.mark.parametrize("start", range(0, 10 * SEEDS_A_TEST, SEEDS_A_TEST))
def test_every_request_ends_with_its_own_output_whatever_happens(start: int) -> None:
    _run(range(start, start + SEEDS_A_TEST))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_request_ends_with_its_own_output_in_many_lives() -> None:
    _run(range(100_000, 120_000))


def test_the_random_lives_reach_what_they_are_to_check() -> None:
    # A generator that never preempts or shares would let every fault pass.
    seen = dict.fromkeys(
        ("preemptions", "hit_tokens", "host_hit_tokens", "copies", "evictions", "restored_tokens", "recomputed_tokens"),
        0,
    )
    for seed in range(160):
        scenario = Scenario(seed)
        scenario.run()
        for name in seen:
            seen[name] += getattr(scenario.engine.counters(), name) > 0
    assert all(count >= 3 for count in seen.values()), seen


def test_the_random_lives_reach_what_beams_do() -> None:
    seen: Counter[str] = Counter()
    for seed in range(80):
        scenario = Scenario(seed)
        scenario.run()
        for event in scenario.steps:
            seen.update(kind for kind, *_ in event.decisions)
            seen["made room"] += sum(d[0] == "preempted" and d[2] == "beams" for d in event.decisions)
            seen["set aside"] += sum(d[0] == "skipped" and d[2] == "beams" for d in event.decisions)
            seen["answers"] += sum(d[0] == "finished" and d[2] == "dropped" for d in event.decisions)
    reached = {kind: seen[kind] for kind in ("restarted", "chosen", "made room", "set aside", "answers")}
    assert all(count >= 10 for count in reached.values()), reached
