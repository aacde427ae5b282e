"""Lookups and regrets against the engine's answers, and a plain model of what was evicted and computed again."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_reduce_follows_engine import Driver

from kvtop.engine.events import StepEvent
from kvtop.state import cache_log
from kvtop.state.cache_log import LookupRow, Regret, sharing_cause, top_regrets
from kvtop.state.model import RunState
from kvtop.state.reduce import reduce
from kvtop.state.request_logs import Entry, RequestLog

CONFIGS = {
    "paged": {},
    "tight": {"num_blocks": 7, "max_num_seqs": 4},
    "host tier": {"host_cache_blocks": 6, "num_blocks": 8},
    "block size 1": {"block_size": 1, "num_blocks": 20},
}


class PlainModel:
    """Whole prompts instead of keys: which blocks of tokens left, who drove them out, who had to compute them again."""

    def __init__(self, driver: Driver) -> None:
        self.engine = driver.engine
        self.gone: dict[tuple[int, ...], tuple[int, str]] = {}  # tokens from the start -> step, cause
        self.holds: dict[int, tuple[int, ...]] = {}  # published block -> tokens from the start
        self.cap: dict[str, int] = {}  # tokens that an admission could have found
        self.loaded: set[int] = set()
        self.positions: dict[int, int] = {}
        self.regrets: Counter[tuple[str, int, str]] = Counter()

    def fold(self, event: StepEvent, tokens: dict[str, list[int]]) -> None:
        size = self.engine.config.block_size
        for decision in event.decisions:
            kind = decision[0]
            if kind in ("admitted", "resumed"):
                self.cap[decision[1]] = (decision[2] - 1) // size * size
            elif kind == "alloc":
                self.positions[decision[3]] = decision[4]
                self.loaded.discard(decision[3])
            elif kind == "copy":
                self.positions[decision[3]] = decision[5] // size * size
            elif kind == "host_load":
                self.loaded.add(decision[3])
            elif kind == "evict" and decision[3] in self.holds:
                self.gone[self.holds.pop(decision[3])] = (event.step, decision[1])
            elif kind == "publish" and decision[3] not in self.holds:
                seq_id, block = decision[1], decision[3]
                end = self.positions[block] + size
                text = tuple(tokens[seq_id][:end])
                self.holds[block] = text
                left = self.gone.pop(text, None)
                if left is not None and end <= self.cap.get(seq_id, 0) and block not in self.loaded:
                    self.regrets[seq_id, *left] += size


@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000))
def test_regrets_are_the_evicted_tokens_that_were_computed_again(name: str, seed: int) -> None:
    driver = Driver(seed, calm=True, **CONFIGS[name])
    model, state = PlainModel(driver), reduce(RunState(), driver.engine.keyframe())

    tokens: dict[str, list[int]] = {}
    expected: list[tuple[str, str, int, str | None, int | None]] = []
    for events in driver.steps(80):
        for seq_id, seq in driver.engine._sequences.items():
            tokens[seq_id] = list(seq.tokens)
        for event in events:
            reduce(state, event)
            if not isinstance(event, StepEvent):
                continue
            for seq_id, count in event.emitted:  # of sequences that ended in this step
                if seq_id not in tokens:  # it began in this step, too
                    tokens[seq_id] = list(driver.engine.request(seq_id.partition("#")[0]).prompt)
                known = tokens[seq_id]
                if seq_id not in driver.engine._sequences:
                    known += [7 + i % 3 for i in range(len(known), len(known) + count)]
            model.fold(event, tokens)
            expected += [(d[1], d[3], d[2], d[4], d[5]) for d in event.decisions if d[0] == "lookup"]
    found: Counter[tuple[str, int, str]] = Counter()
    for row in state.cache.regrets:
        assert row.evicted_step is not None
        found[row.seq_id, row.evicted_step, row.evicted_by] += row.tokens
    assert found == model.regrets
    assert state.cache.regret_tokens == sum(found.values())
    got = [(r.seq_id, r.reason, r.found_tokens, r.other or None, r.key) for r in state.cache.lookups]
    assert got == expected
    for request_id, view in ((r, driver.engine._sequences.get(r)) for r in tokens):
        row = state.cache.lookup_of(request_id)
        if view is not None and row is not None:
            assert row.found_tokens == view.cached_tokens
            assert row.reason == view.request.miss_reason


def test_the_random_runs_regret_something() -> None:
    totals = Counter()
    for name, config in CONFIGS.items():
        driver = Driver(3, calm=True, **config)
        state = reduce(RunState(), driver.engine.keyframe())
        for events in driver.steps(80):
            for event in events:
                reduce(state, event)
        totals[name] = state.cache.regret_tokens
    assert all(totals[name] for name in ("paged", "tight", "block size 1")), totals


def regret(step: int, seq_id: str, tokens: int, key: int, total: int, by: str = "x") -> Regret:
    return Regret(step, step, seq_id, tokens, key, 0, 1, by, total)


def test_regrets_of_one_prefix_are_added_up_over_the_requests_that_wanted_it():
    rows = [
        regret(5, "a", 16, 100, 16),
        regret(6, "a", 32, 101, 48),  # its next chunk
        regret(7, "b", 16, 100, 64, by="y"),
        regret(8, "c", 16, 300, 80),
    ]
    first, second = top_regrets(rows)
    assert (first.key, first.tokens, first.times, first.last_wanted_by, first.evicted_by) == (100, 64, 2, "b", "y")
    assert (second.key, second.tokens, second.times) == (300, 16, 1)


def test_of_a_moment_whose_regrets_are_all_forgotten_their_sum_is_not_known():
    log = cache_log.CacheLog()
    for step in range(cache_log.REGRETS_KEPT + 10):
        log.regrets.append(regret(step, "a", 16, step, 16 * (step + 1)))
    assert log.until(9).is_cut  # ten of them there were, and 160 tokens
    assert not log.until(10).is_cut
    assert log.until(10).regret_tokens == 16 * 11
    assert not cache_log.CacheLog().until(9).is_cut  # nothing was forgotten: there were none


def row(name: str, reason: str, key: int, parent: int | None) -> LookupRow:
    return LookupRow(1, 1, name, "", 100, 16, reason, "", key, parent, None)


def test_a_cause_is_shared_at_the_same_block_or_behind_the_same_one():
    lookups = [
        row("a", "never_seen", 1, 9),
        row("b", "never_seen", 2, 9),
        row("c", "never_seen", 3, 8),
        row("d", "evicted", 5, 9),
        row("e", "evicted", 5, 9),
        row("f", "evicted", 6, 9),
    ]
    assert [r.seq_id for r in sharing_cause(lookups, lookups[0])] == ["b"]
    assert [r.seq_id for r in sharing_cause(lookups, lookups[3])] == ["e"]


def test_only_so_many_ghosts_are_kept(monkeypatch):
    monkeypatch.setattr(cache_log, "GHOSTS_KEPT", 10)
    log = cache_log.CacheLog()
    for key in range(100):
        log.evicted([key], key, "r")
        assert len(log.ghosts) <= 20
    assert list(log.ghosts)[-1] == 99
    assert set(log.ghosts) <= set(range(79, 100))


def test_evictions_for_a_request_are_one_entry_an_owner_until_something_else_is_decided() -> None:
    log, publisher = RequestLog("a"), ["x", "x", "", "y"]

    def gone(block: int, idle: int) -> tuple:
        return ("evict", "a", 0, block, 100 + block, 0, 0, idle, 0)

    log.add_evictions([gone(0, 7), gone(1, 3), gone(2, 5)], 4, publisher)
    log.add_evictions([gone(3, 1), gone(0, 9)], 6, publisher)
    told = [(e.step, e.last_step, e.owner, e.count, e.idle_least, e.idle_most) for e in log.entries]
    assert told == [(4, 6, "x", 3, 3, 9), (4, 4, None, 1, 5, 5), (6, 6, "y", 1, 1, 1)]
    log.add(Entry(7, ("admitted", "a", 1, 1, 1)))
    log.add_evictions([gone(0, 2)], 8, publisher)
    assert (log.entries[-1].step, log.entries[-1].count) == (8, 1)
