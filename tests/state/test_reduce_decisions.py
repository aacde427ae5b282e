"""Each decision by hand: a pool of six blocks of four tokens."""

from __future__ import annotations

import pytest

from kvtop.engine.events import (
    DECISION_FIELDS,
    BlockRow,
    ConfigChanged,
    Decision,
    Event,
    Gap,
    Keyframe,
    Notice,
    Observed,
    Paused,
    RequestEvent,
    Resumed,
    RunEnded,
    RunStarted,
    SequenceRow,
    Stalled,
    StepEvent,
)
from kvtop.state.blocks import BLOCK_FOLDS
from kvtop.state.model import FRESH, HISTORY_STEPS, IDLE, IN_TRANSFER, USED, PoolState, RunState
from kvtop.state.reduce import _EVENT_FOLDS, reduce
from kvtop.state.requests import REQUEST_FOLDS
from kvtop.state.samples import LATENCY_WINDOW_NS

MS = 1_000_000
FRESH_POOL = Keyframe(step=0, t_ns=0, num_blocks=6, block_size=4, blocks=[], sequences=[], totals={})


def arrival(request_id: str = "a", *, sched_ms: int = 0, out: int = 8) -> RequestEvent:
    return RequestEvent(
        phase="arrived", t_ns=sched_ms * MS, request_id=request_id, prompt_tokens=6, requested_output_tokens=out,
        t_sched_ns=sched_ms * MS, t_submit_ns=sched_ms * MS,
    )  # fmt: skip


def step(number: int, *decisions: Decision, emitted: list[tuple[str, int]] | None = None, **fields: int) -> StepEvent:
    """Step ``number`` ends at ``number`` x 10 ms."""
    end = number * 10 * MS
    return StepEvent(
        step=number, t_start_ns=end - 10 * MS, t_planned_ns=end - 10 * MS, t_done_ns=end, decisions=list(decisions),
        emitted=emitted or [], **fields,  # type: ignore[arg-type]
    )  # fmt: skip


def fold(*events: Event) -> RunState:
    state = RunState()
    for event in (FRESH_POOL, *events):
        reduce(state, event)
    return state


def pool_of(state: RunState) -> PoolState:
    assert state.pool is not None
    return state.pool


ADMIT = (
    ("arrived", "a", 6),
    ("alloc", "a", 0, 0, 0),
    ("alloc", "a", 0, 1, 4),
    ("lookup", "a", 0, "never_seen", None, 77, None),
    ("admitted", "a", 6, 2, 6),
)
COMPUTE = (("chunk", "a", 6, 0), ("publish", "a", 0, 0, 77, 0), ("first_token", "a"))
STARTED = (arrival(sched_ms=-5), step(1, *ADMIT, *COMPUTE, emitted=[("a", 1)]))


def test_every_kind_of_decision_and_event_is_folded_or_known_not_to_matter() -> None:
    assert set(DECISION_FIELDS) - set(BLOCK_FOLDS) - set(REQUEST_FOLDS) == {
        "rejected", "cleared", "stalled", "swap_out", "host_store", "host_evict", "host_hit",
    }  # fmt: skip
    assert set(_EVENT_FOLDS) == {*Event.__subclasses__(), *Observed.__subclasses__()} - {Observed}


def test_alloc_chunk_and_publish() -> None:
    state = fold(*STARTED)
    pool = pool_of(state)
    assert list(pool.state) == [USED, USED, FRESH, FRESH, FRESH, FRESH]
    assert pool.counts == [4, 0, 2, 0, 0]
    assert list(pool.filled)[:3] == [4, 2, 0]
    assert list(pool.refcount)[:3] == [1, 1, 0]
    assert pool.owners[:3] == [["a"], ["a"], []]
    assert (pool.key[0], pool.parent_key[0], pool.key[1]) == (77, 0, None)
    assert (pool.published_step[0], pool.last_use_step[0], pool.uses[0]) == (1, 1, 0)
    seq = state.sequences["a"]
    assert (seq.table, seq.state, seq.num_computed, seq.num_tokens, seq.max_tokens) == ([0, 1], "running", 6, 7, 8)
    assert (seq.miss_reason, seq.need_blocks, seq.have_blocks) == ("never_seen", 2, 6)


def test_release_makes_published_blocks_idle_and_others_fresh() -> None:
    state = fold(
        *STARTED,
        step(2, ("free", "a", 0, 1, "release"), ("free", "a", 0, 0, "release"), ("finished", "a", "length", 1)),
    )
    pool = pool_of(state)
    assert list(pool.state)[:2] == [IDLE, FRESH]
    assert list(pool.filled)[:2] == [4, 0]
    assert pool.counts == [5, 1, 0, 0, 0]
    assert pool.owners[:2] == [[], []]
    assert pool.last_use_step[0] == 2
    assert state.sequences == {}


def idle_block() -> tuple[Event, ...]:
    frees = (("free", "a", 0, 1, "release"), ("free", "a", 0, 0, "release"), ("finished", "a", "length", 1))
    return (*STARTED, step(2, *frees))


def test_a_hit_takes_an_idle_block_and_counts_a_use() -> None:
    state = fold(
        *idle_block(),
        arrival("b"),
        step(
            3, ("arrived", "b", 6), ("share", "b", 0, 0, 0, "hit"), ("alloc", "b", 0, 1, 4),
            ("lookup", "b", 4, "last_token", None, None, None), ("admitted", "b", 6, 2, 6), ("chunk", "b", 2, 4),
        ),
    )  # fmt: skip
    pool = pool_of(state)
    assert pool.counts == [4, 0, 2, 0, 0]
    assert (pool.uses[0], pool.last_use_step[0], pool.filled[1]) == (1, 3, 2)
    seq = state.sequences["b"]
    assert (seq.cached_tokens, seq.num_computed, seq.table) == (4, 6, [0, 1])
    assert state.totals["computed_tokens"] == 6 + 2


def test_eviction_empties_the_block_before_it_is_taken() -> None:
    state = fold(*idle_block(), step(3, ("evict", "b", 0, 0, 77, 0, 2, 1, 0), ("alloc", "b", 0, 0, 0), used_blocks=1))
    pool = pool_of(state)
    assert (pool.state[0], pool.key[0], pool.filled[0], pool.owners[0]) == (USED, None, 0, ["b"])
    assert pool.counts == [5, 0, 1, 0, 0]


def test_an_evicted_block_that_nobody_takes_is_fresh() -> None:
    pool = pool_of(fold(*idle_block(), step(3, ("evict", "forced", 0, 0, 77, 0, 2, 1, 0))))
    assert (pool.state[0], pool.counts) == (FRESH, [6, 0, 0, 0, 0])


def test_deduplication_switches_the_table_entry_and_frees_the_copy() -> None:
    state = fold(
        *STARTED,
        arrival("b"),
        step(
            2, ("arrived", "b", 6), ("alloc", "b", 0, 2, 0), ("alloc", "b", 0, 3, 4), ("admitted", "b", 6, 2, 4),
            ("chunk", "b", 6, 0), ("share", "b", 0, 0, 0, "dedup"), ("free", "b", 0, 2, "dedup"),
        ),
    )  # fmt: skip
    pool = pool_of(state)
    assert state.sequences["b"].table == [0, 3]
    assert pool.owners[0] == ["a", "b"]
    assert (pool.state[2], pool.refcount[0], pool.uses[0]) == (FRESH, 2, 0)


def test_fork_shares_and_copy_on_write_parts() -> None:
    forked = step(
        2, ("chunk", "a", 1, 6), ("forked", "a#1", "a"), ("share", "a#1", 0, 0, 0, "fork"),
        ("share", "a#1", 0, 1, 4, "fork"), emitted=[("a", 1), ("a#1", 1)],
    )  # fmt: skip
    state = fold(*STARTED, forked)
    assert pool_of(state).owners[:2] == [["a", "a#1"], ["a", "a#1"]]
    child = state.sequences["a#1"]
    assert (child.table, child.state, child.num_computed, child.num_tokens) == ([0, 1], "running", 7, 8)
    assert child.request_id == "a"
    reduce(state, step(3, ("copy", "a#1", 0, 2, 1, 4), ("chunk", "a#1", 1, 7)))
    pool = pool_of(state)
    assert child.table == [0, 2]
    assert (pool.owners[1], pool.owners[2]) == (["a"], ["a#1"])
    assert (pool.refcount[1], pool.refcount[2], pool.filled[1], pool.filled[2]) == (1, 1, 3, 4)


def test_a_branch_without_blocks_waits_and_has_computed_nothing() -> None:
    state = fold(*STARTED, step(2, ("forked", "a#1", "a"), emitted=[("a", 1), ("a#1", 1)]))
    child = state.sequences["a#1"]
    assert (child.state, child.num_computed, child.table, child.num_tokens) == ("preempted", 0, [], 8)


@pytest.mark.parametrize(
    ("blocks", "restored"),
    [
        ((("alloc", "a#1", 0, 2, 0),), 0),  # nothing found: its parent's six computed tokens are not its own
        ((("share", "a#1", 0, 0, 0, "hit"), ("alloc", "a#1", 0, 2, 4)), 4),
        ((("alloc", "a#1", 0, 2, 0), ("host_load", "a#1", 0, 2, 0)), 4),
    ],
)
def test_a_branch_that_waited_and_is_resumed_in_the_same_step_restores_what_was_found_for_it(blocks, restored) -> None:
    """Forked between two steps while nothing was free; what ended before the second one made room."""
    state = fold(*STARTED, step(2, ("forked", "a#1", "a"), *blocks, ("resumed", "a#1", 7, 2, 4)))
    assert state.totals["restored_tokens"] == restored
    assert (state.sequences["a#1"].state, state.sequences["a#1"].num_computed) == ("running", restored)


def test_a_fork_that_copies_keeps_its_own_blocks() -> None:
    """The contiguous allocator reserves first; the source stays with its owner alone."""
    fork = (("forked", "a#1", "a"), ("alloc", "a#1", 0, 3, 0), ("alloc", "a#1", 0, 4, 4))
    state = fold(*STARTED, step(2, *fork, ("copy", "a#1", 0, 3, 0, 0), ("copy", "a#1", 0, 4, 1, 4)))
    pool = pool_of(state)
    assert (state.sequences["a#1"].num_computed, pool.filled[4]) == (6, 2)
    assert (pool.owners[0], pool.owners[3], pool.filled[3]) == (["a"], ["a#1"], 4)
    assert (pool.refcount[0], pool.refcount[3]) == (1, 1)


def test_preemption_takes_everything_and_resuming_counts_what_was_restored() -> None:
    state = fold(
        *STARTED,
        step(
            2, ("preempted", "a", "no_blocks", "z", 6, 2), ("free", "a", 0, 1, "release"),
            ("free", "a", 0, 0, "release"), preemptions=1,
        ),
    )  # fmt: skip
    seq = state.sequences["a"]
    assert (seq.state, seq.num_preemptions, seq.num_computed, seq.table) == ("preempted", 1, 0, [])
    assert pool_of(state).counts == [5, 1, 0, 0, 0]
    reduce(
        state,
        step(
            3, ("share", "a", 0, 0, 0, "hit"), ("alloc", "a", 0, 5, 4), ("resumed", "a", 7, 2, 6), ("chunk", "a", 3, 4)
        ),
    )  # fmt: skip
    assert (seq.state, seq.table, seq.num_computed, seq.cached_tokens) == ("running", [0, 5], 7, 0)
    assert state.totals["restored_tokens"] == 4
    assert state.totals["recomputed_tokens"] == 2, "positions 4 and 5; position 6 had never been computed"


def test_swapping_out_loses_nothing_and_comes_back_into_other_blocks() -> None:
    state = fold(
        *STARTED,
        step(
            2, ("swap_out", "a", 0, 0, 0), ("swap_out", "a", 0, 1, 1), ("preempted", "a", "no_blocks", "z", 0, 2),
            ("free", "a", 0, 1, "release"), ("free", "a", 0, 0, "release"),
        ),
    )  # fmt: skip
    seq = state.sequences["a"]
    assert (seq.state, seq.num_computed, seq.num_swapped, seq.table) == ("preempted", 0, 6, [])
    reduce(
        state,
        step(
            3, ("alloc", "a", 0, 4, 0), ("alloc", "a", 0, 5, 4), ("swap_in", "a", 0, 4, 0), ("swap_in", "a", 0, 5, 1),
            ("resumed", "a", 7, 2, 6), ("chunk", "a", 1, 6),
        ),
    )  # fmt: skip
    pool = pool_of(state)
    assert (seq.num_computed, seq.num_swapped, seq.table) == (7, 0, [4, 5])
    assert (pool.filled[4], pool.filled[5]) == (4, 3)
    assert state.totals["restored_tokens"] == 6
    assert state.totals.get("recomputed_tokens", 0) == 0


def test_pins_hold_a_block_without_an_owner() -> None:
    state = fold(*idle_block(), step(3, ("pin", 0, 0)))
    pool = pool_of(state)
    assert (pool.state[0], pool.refcount[0], pool.pins[0], pool.owners[0]) == (USED, 1, 1, [])
    reduce(state, step(4, ("unpin", 0, 0)))
    assert (pool.state[0], pool.refcount[0], pool.pins[0]) == (IDLE, 0, 0)


def test_a_reset_unpublishes_used_blocks_and_frees_idle_ones() -> None:
    state = fold(*idle_block(), step(3, ("unpublish", 0, 0, 77, "reset"), ("cleared", "done")))
    assert pool_of(state).counts == [6, 0, 0, 0, 0]
    state = fold(*STARTED, step(2, ("unpublish", 0, 0, 77, "reset"), ("cleared", "partial")))
    pool = pool_of(state)
    assert (pool.state[0], pool.key[0], pool.filled[0]) == (USED, None, 4)


def test_deferred_frees_are_in_transfer_until_the_counts_say_otherwise() -> None:
    frees = (("free", "a", 0, 1, "release"), ("free", "a", 0, 0, "release"), ("finished", "a", "length", 1))
    state = fold(*STARTED, step(2, *frees, in_transfer_blocks=2))
    pool = pool_of(state)
    assert (list(pool.state)[:2], pool.counts) == ([IN_TRANSFER, IN_TRANSFER], [4, 0, 0, 2, 0])
    reduce(state, step(3, in_transfer_blocks=1))
    assert list(pool.state)[:2] == [IN_TRANSFER, FRESH], "first released, first free"
    reduce(state, step(4))
    assert (list(pool.state)[:2], pool.counts) == ([IDLE, FRESH], [5, 1, 0, 0, 0])


def test_waiting_reasons_and_the_head_of_the_line() -> None:
    state = fold(
        *STARTED,
        arrival("b"),
        arrival("c"),
        StepEvent(
            step=2, t_start_ns=0, t_planned_ns=0, t_done_ns=20 * MS, head_of_line="b", waiting_reason="no_blocks",
            decisions=[("arrived", "b", 6), ("arrived", "c", 6), ("skipped", "b", "no_blocks", "a", 9, 4)],
        ),
    )  # fmt: skip
    a, b, c = (state.sequences[i] for i in "abc")
    assert state.wait_reason(a) == ("", "")
    assert state.wait_reason(b) == ("no_blocks", "a")
    assert state.wait_reason(c) == ("head_of_line", "b")
    assert (b.need_blocks, b.have_blocks) == (9, 4)


def test_ttft_counts_from_the_intended_arrival_and_itl_shares_a_gap() -> None:
    state = fold(
        *STARTED,
        step(2, ("chunk", "a", 1, 6), emitted=[("a", 1)]),
        step(5, ("chunk", "a", 1, 7), emitted=[("a", 3)]),
    )
    assert list(state.ttft.points) == [(10 * MS, 15 * MS, 1)]
    assert list(state.itl.points) == [(20 * MS, 10 * MS, 1), (50 * MS, 10 * MS, 3)]
    assert state.sequences["a"].last_itl_ns == 10 * MS
    assert state.totals["output_tokens"] == 5


def test_the_last_token_of_a_request_counts_too() -> None:
    state = fold(*STARTED, step(2, ("finished", "a", "length", 2), emitted=[("a", 1)]))
    assert len(state.itl.points) == 1
    assert state.sequences == {}


def test_latencies_expire_with_the_window() -> None:
    state = fold(*STARTED)
    state.ttft.expire(LATENCY_WINDOW_NS + 10 * MS)
    assert len(state.ttft.points) == 1
    state.ttft.expire(LATENCY_WINDOW_NS + 10 * MS + 1)
    assert len(state.ttft.points) == 0


def test_an_aborted_request_may_come_back_under_the_same_id_before_the_next_step() -> None:
    state = fold(
        *STARTED,
        arrival("a"),
        step(
            2, ("free", "a", 0, 1, "release"), ("free", "a", 0, 0, "release"), ("aborted", "a", 1), ("arrived", "a", 6)
        ),
    )  # fmt: skip
    assert state.sequences["a"].state == "waiting"
    assert state.sequences["a"].table == []


def test_endings_are_counted_and_the_arrival_forgotten() -> None:
    import msgspec

    done = msgspec.structs.replace(arrival(), phase="finished", finish_reason="length", output_tokens=3)
    refused = msgspec.structs.replace(arrival("b"), phase="finished", finish_reason="rejected", error="too long")
    state = fold(arrival(), arrival("b"), done, refused)
    assert (state.num_finished, state.num_rejected, state.arrivals) == (1, 1, {})
    assert [e.request_id for e in state.finished] == ["a", "b"]


def test_a_keyframe_replaces_everything_and_keeps_what_it_does_not_carry() -> None:
    state = fold(*STARTED)
    block = BlockRow(3, "used", 2, 4, 9, 5, 1, 2, 7, 1)
    running = SequenceRow("a", "a", "running", 6, 9, 8, 8, 0, 1, [3], "", "", -5, -5, 10 * MS, 30 * MS)
    waiting = SequenceRow("b", "b", "waiting", 6, 6, 0, 8, 0, 0, [], "head_of_line", "c", 1, 1, None, None)
    reduce(
        state,
        Keyframe(
            step=7, t_ns=70 * MS, num_blocks=6, block_size=4, blocks=[block], sequences=[running, waiting],
            totals={"hit_tokens": 12, "used": 1},
        ),
    )  # fmt: skip
    pool = pool_of(state)
    assert pool.counts == [5, 0, 1, 0, 0]
    assert (pool.owners[3], pool.pins[3], pool.key[3], pool.uses[3]) == (["a"], 1, 9, 7)
    assert pool.dirty == set(range(6))
    assert state.sequences["a"].miss_reason == "never_seen"
    assert state.wait_reason(state.sequences["b"]) == ("head_of_line", "c")
    assert (state.totals["hit_tokens"], state.step, state.t_ns) == (12, 7, 70 * MS)


def test_dirty_names_exactly_the_blocks_that_changed() -> None:
    state = fold(*STARTED)
    pool = pool_of(state)
    pool.dirty.clear()
    reduce(state, step(2, ("chunk", "a", 1, 6)))
    assert pool.dirty == {1}
    pool.dirty.clear()
    reduce(state, step(3))
    assert pool.dirty == set()


def test_status_notice_and_end() -> None:
    state = RunState()
    seen = []
    for event in (
        Notice(t_ns=0, text="loading", progress=0.5),
        RunStarted(run_id="r", manifest={"policy": "fcfs"}),
        Paused(t_ns=5),
        step(1),
        Resumed(t_ns=5),
        ConfigChanged(t_ns=6, changes={"policy": "lpm"}),
        Gap(t_ns=7, dropped=3),
        Stalled(t_ns=8, request_id="a", reason="no_blocks", need_blocks=3, have_blocks=1),
        RunEnded(t_ns=9, status="failed", error="stalled", traceback="..."),
    ):
        before = state.version
        assert reduce(state, event) is state
        assert state.version == before + 1
        seen.append(state.status)
    assert seen == ["starting", "running", "paused", "paused", "running", "running", "running", "running", "failed"]
    assert state.manifest == {"policy": "lpm"}
    assert (state.events_dropped, state.error, state.traceback) == (3, "stalled", "...")
    assert state.stalled == "a: no_blocks (needs 3, has 1)"
    assert (state.notice, state.progress) == ("", None)


def test_a_warning_outlives_what_is_being_done_and_that_ends_with_the_run() -> None:
    started, work = RunStarted(run_id="r", manifest={"policy": "fcfs"}), Notice(t_ns=9, text="writing the tables")
    end = RunEnded(t_ns=9, status="complete")
    warned, quiet = RunState(), RunState()
    for event in (started, Notice(t_ns=0, text="two rejected", level="warning"), work, end):
        reduce(warned, event)
    assert (warned.notice, warned.notice_level) == ("two rejected", "warning")
    for event in (started, work):
        reduce(quiet, event)
    assert quiet.notice == "writing the tables"
    reduce(quiet, end)
    assert quiet.notice == ""


def test_the_history_is_bounded() -> None:
    state = fold()
    for number in range(HISTORY_STEPS + 10):
        reduce(state, step(number, ("cleared", "done"), used_blocks=number))
    assert len(state.history.used) == HISTORY_STEPS
    assert state.history.used[-1] == HISTORY_STEPS + 9


@pytest.mark.parametrize("kind", sorted({*BLOCK_FOLDS, *REQUEST_FOLDS} - {"arrived"}))
def test_decisions_about_unknown_requests_break_nothing(kind: str) -> None:
    """After a gap a step may speak of a sequence whose arrival was lost."""
    samples: dict[str, Decision] = {
        "alloc": ("alloc", "x", 0, 4, 0), "share": ("share", "x", 0, 0, 0, "hit"), "copy": ("copy", "x", 0, 4, 0, 0),
        "free": ("free", "x", 0, 0, "release"), "publish": ("publish", "x", 0, 1, 5, 0),
        "unpublish": ("unpublish", 0, 0, 77, "reset"), "evict": ("evict", "x", 0, 5, 1, 0, 1, 1, 0),
        "swap_in": ("swap_in", "x", 0, 0, 0), "host_load": ("host_load", "x", 0, 0, 3),
        "withhold": ("withhold", 5), "give_back": ("give_back", 5), "config": ("config", "num_blocks=5"),
        "pin": ("pin", 0, 0), "unpin": ("unpin", 0, 1), "chunk": ("chunk", "x", 4, 0),
        "lookup": ("lookup", "x", 0, "never_seen", None, 1, None),
        "admitted": ("admitted", "x", 4, 1, 1), "resumed": ("resumed", "x", 4, 1, 1),
        "skipped": ("skipped", "x", "seats", None, 1, 0), "forked": ("forked", "x#1", "x"),
        "first_token": ("first_token", "x"), "preempted": ("preempted", "x", "no_blocks", "y", 1, 1),
        "restarted": ("restarted", "x#1", "x"), "chosen": ("chosen", "x", 7),
        "finished": ("finished", "x", "length", 1), "aborted": ("aborted", "x", 1),
    }  # fmt: skip
    state = fold(*STARTED, step(2, samples[kind], emitted=[("x", 1)]))
    assert sum(pool_of(state).counts) == 6
    assert set(state.sequences) == {"a"}
