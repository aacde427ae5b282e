"""What was evicted and wanted again, of servers with several ranks, and what had happened before kvtop looked."""

from __future__ import annotations

import pytest
from attach_helpers import attached, folded, removed, stored
from attach_tui import MANIFEST, seen
from test_kv_tracker import batch

from kvtop.attach import kv_tracker
from kvtop.attach.kv_decode import Batch
from kvtop.attach.kv_tracker import KvTracker
from kvtop.engine.events import Event, KvEvents, RunStarted
from kvtop.state.attached_numbers import read_number
from kvtop.state.cache_log import top_regrets
from kvtop.state.event_log import EventLog
from kvtop.state.model import RunState
from kvtop.state.notable import Moments

A, B = "tcp://a:1", "tcp://b:1"
LISTENING = {**MANIFEST, "kv_events": [A, B]}
CLEARED = {"type": "AllBlocksCleared"}


class Told:
    """A tracker, and the state its events are folded into; a look each time."""

    def __init__(self) -> None:
        self.tracker = KvTracker(32)
        self.state = folded([RunStarted(run_id="x", manifest=LISTENING)])
        self.log, self.moments = EventLog(), Moments()
        self.events: list[Event] = []
        self.seq: dict[tuple[str, int], int] = {}

    def says(self, *events: dict, source: str = A, rank: int = 0, skip: int = 0, replay=None) -> RunState:
        seq = self.seq[source, rank] = self.seq.get((source, rank), -1) + 1 + skip
        self.tracker.take(source, seq, batch(*events, rank=rank), 0.0, replay)
        return self.fold()

    def resumes(self, source: str, messages: list[tuple[int, Batch]]) -> RunState:
        self.tracker.resume(source, messages, 0.0)
        return self.fold()

    def fold(self) -> RunState:
        from kvtop.state.reduce import reduce

        step = len(self.events) + 1
        for event in self.tracker.drain(step, step * 1_000_000_000):
            reduce(self.state, event)
            self.log.fold(self.state, event)
            self.moments.fold(self.state, event)
            self.events.append(event)
        return self.state

    @property
    def regretted(self) -> int:
        return self.state.cache.regret_tokens


@pytest.mark.parametrize(("source", "rank"), [(A, 1), (B, 0)], ids=["another rank", "another server"])
def test_an_eviction_on_one_rank_and_a_store_on_another_is_no_regret(source: str, rank: int) -> None:
    told = Told()
    told.says(stored(5))
    told.says(removed(5))
    told.says(stored(5), source=source, rank=rank)
    assert told.regretted == 0
    told.says(stored(5))
    assert told.regretted == 4


@pytest.mark.parametrize("how", ["cleared", "restart", "gap"])
@pytest.mark.parametrize(("source", "rank"), [(A, 1), (B, 0)], ids=["another rank", "another server"])
def test_one_ranks_new_life_takes_nothing_from_the_others(how: str, source: str, rank: int) -> None:
    told = Told()
    for where in ({}, {"source": source, "rank": rank}):
        told.says(stored(5, 6), **where)
        told.says(removed(6), **where)
    if how == "restart":
        told.seq[A, 0] = -1
    told.says(*([CLEARED] if how == "cleared" else []), skip=3 if how == "gap" else 0)
    told.says(stored(6, parent=5))
    assert told.regretted == 0  # of the rank that began anew
    told.says(stored(6, parent=5), source=source, rank=rank)
    assert told.regretted == 4


def test_equal_keys_of_other_kv_groups_are_other_blocks() -> None:
    told = Told()
    told.says(stored(5, group_idx=1))
    told.says(removed(5, group_idx=1))
    told.says(stored(5, group_idx=0))
    assert told.regretted == 0
    told.says(removed(5, group_idx=0))
    told.says(stored(5, group_idx=1))
    assert told.regretted == 0
    told.says(stored(5, group_idx=0))
    assert told.regretted == 4


def test_what_comes_back_from_another_tier_was_not_computed_again() -> None:
    told = Told()
    told.says(stored(5), stored(5, medium="CPU"))
    told.says(removed(5))
    told.says(stored(5))
    assert told.regretted == 0
    told.says(removed(5), removed(5, medium="CPU"))
    told.says(stored(5))
    assert told.regretted == 4


def test_prefixes_that_were_wanted_again_are_told_apart() -> None:
    told = Told()
    told.says(stored(5, 6), stored(7, 8))
    told.says(removed(6, 5, 8, 7))
    told.says(stored(5, 6), stored(7, 8))
    assert [(found.key, found.tokens) for found in top_regrets(told.state.cache.regrets)] == [(5, 8), (7, 8)]


def test_a_recording_without_origins_is_read_as_one_rank() -> None:
    told = Told()
    told.says(stored(5))
    told.says(removed(5))
    told.says(stored(5))
    from msgspec.structs import replace

    old = [replace(event, origins=[]) if isinstance(event, KvEvents) else event for event in told.events]
    state = folded([RunStarted(run_id="x", manifest=LISTENING), *old])
    assert state.cache.regret_tokens == 4


# Before kvtop looked, and while it could not --------------------------------------------------------------------


def history() -> list[tuple[int, Batch]]:
    """Twelve blocks are stored, evicted and half of them stored again."""
    keys = range(100, 112)
    return [(0, batch(*(stored(key) for key in keys))), (1, batch(removed(*keys))), (2, batch(stored(100)))]


@pytest.mark.parametrize("how", ["asked at the connection", "asked with the first message"])
def test_what_happened_before_kvtop_listened_is_no_event_of_now(how: str) -> None:
    told = Told()
    if how == "asked at the connection":
        told.resumes(A, history())
        told.seq[A, 0] = 2
    else:
        told.says(stored(200), skip=3, replay=lambda first, last: history())
    state = told.state
    assert read_number(state, "cache.evictions").value == 0
    assert attached(state).num_stored == (0 if how == "asked at the connection" else 1)
    assert told.regretted == 0
    assert [line.kind for line in told.log.lines if line.kind == "EVICT"] == []
    assert [moment.kind for moment in told.moments.all if moment.kind == "evict"] == []
    assert read_number(state, "pool.cached_blocks").value == (1 if how == "asked at the connection" else 2)
    told.says(stored(101))  # evicted before, wanted now
    assert told.regretted == 4
    assert state.cache.regrets[-1].evicted_step is None
    told.says(removed(101))
    assert read_number(state, "cache.evictions").value == 1


def test_what_was_removed_while_the_connection_was_lost_counts_and_is_no_burst() -> None:
    told = Told()
    keys = range(100, 112)
    told.says(*(stored(key) for key in keys))
    told.tracker.cut(A)
    own = [(0, batch(*(stored(key) for key in keys))), (1, batch(removed(*keys)))]
    told.resumes(A, own)
    assert read_number(told.state, "cache.evictions").value == 12
    assert [moment.kind for moment in told.moments.all if moment.kind == "evict"] == []
    (line,) = [line.text for line in told.log.lines if line.kind == "EVICT"]
    assert line == "12 blocks removed from the cache while the connection was lost; for whom is not reported"


def test_a_gap_that_was_filled_is_of_now() -> None:
    told = Told()
    told.says(*(stored(key) for key in range(100, 112)))
    missed = [(1, batch(removed(*range(100, 112))))]
    told.says(stored(200), skip=1, replay=lambda first, last: missed)
    assert read_number(told.state, "cache.evictions").value == 12
    assert [moment.kind for moment in told.moments.all if moment.kind == "evict"] == ["evict"]


def test_regrets_on_screen_name_nobody_and_tell_when() -> None:
    told = Told()
    told.resumes(A, history())
    told.seq[A, 0] = 2
    told.says(stored(101))
    told.says(removed(101))
    told.says(stored(101))
    text = seen(told.events, "3", size=(160, 50), manifest=LISTENING)
    assert "n/a, 1 look before" in text
    first = seen(told.events[:-2], "3", size=(160, 50), manifest=LISTENING)
    assert "n/a, before kvtop listened" in first


# Ranks ----------------------------------------------------------------------------------------------------------


def test_only_so_many_ranks_are_followed_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_tracker, "MAX_RANKS", 4)
    told = Told()
    for rank in range(50):
        told.says(stored(5), rank=rank)
    told.resumes(B, [(0, batch(stored(5), rank=99))])
    assert len(told.tracker.ranks) == len(attached(told.state).streams) == 4
    assert read_number(told.state, "pool.cached_blocks")[:2] == (4, "partial")
    (news,) = [line.text for line in told.log.lines if line.kind == "SERVER"]
    assert news == f"more than 4 ranks: {A} rank 4 is not followed, nor are later ones"
    told.says(stored(6), rank=2)
    assert read_number(told.state, "pool.cached_blocks").value == 5
