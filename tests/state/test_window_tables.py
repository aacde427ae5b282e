"""Tables of several KV groups, and entries that fell out of a window, folded by hand: twelve blocks of four tokens."""

from __future__ import annotations

from kvtop.engine.events import BlockRow, Decision, Keyframe, RequestEvent, SequenceRow, StepEvent
from kvtop.engine.types import NULL_BLOCK
from kvtop.state.model import FRESH, IDLE, USED, RunState
from kvtop.state.reduce import reduce

EMPTY = Keyframe(step=0, t_ns=0, num_blocks=12, block_size=4, blocks=[], sequences=[], totals={})
ARRIVAL = RequestEvent(
    phase="arrived", t_ns=0, request_id="a", prompt_tokens=10, requested_output_tokens=8, t_sched_ns=0, t_submit_ns=0
)
# Ten tokens in both groups: the first keeps all, the second the last five.
PREFILL: list[Decision] = [
    ("arrived", "a", 10),
    *[("alloc", "a", group, 3 * group + i, 4 * i) for group in (0, 1) for i in range(3)],
    ("admitted", "a", 10, 5, 12),
    ("chunk", "a", 10, 0),
    ("free", "a", 1, 3, "window"),
]


def fold(*steps: list[Decision], start: Keyframe = EMPTY) -> RunState:
    state = reduce(reduce(RunState(), start), ARRIVAL)
    for number, decisions in enumerate(steps):
        reduce(state, StepEvent(step=number, t_start_ns=0, t_planned_ns=0, t_done_ns=1, decisions=decisions))
    return state


def test_each_group_has_a_table_and_a_dropped_block_leaves_null_behind() -> None:
    state = fold(PREFILL)
    seq, pool = state.sequences["a"], state.pool
    assert seq.tables == [[0, 1, 2], [NULL_BLOCK, 4, 5]]
    assert (seq.held, seq.num_held, seq.num_computed) == ([0, 1, 2, 4, 5], 5, 10)
    assert pool is not None
    assert (pool.state[3], pool.owners[3], pool.refcount[3]) == (FRESH, [], 0)
    assert list(pool.filled[:6]) == [4, 4, 2, 0, 4, 2]
    assert (pool.counts[FRESH], pool.counts[USED]) == (7, 5)


def test_a_release_takes_the_null_entries_with_it() -> None:
    last: list[Decision] = [
        ("free", "a", group, block, "release") for group, block in ((0, 2), (1, 5), (0, 1), (1, 4), (0, 0))
    ]
    state = fold(PREFILL, last)
    assert state.sequences["a"].tables == [[], []]
    assert state.pool is not None
    assert state.pool.counts[FRESH] == 12


def test_a_hit_behind_the_window_fills_up_with_null() -> None:
    published: list[Decision] = [("publish", "b", 1, 7, 70, 60)]
    hit: list[Decision] = [("arrived", "a", 10), ("share", "a", 1, 7, 4, "hit"), ("alloc", "a", 1, 8, 8)]
    idle = BlockRow(7, "idle", 0, 4, 70, 60, 0, 0, 0, 0)
    start = Keyframe(step=0, t_ns=0, num_blocks=12, block_size=4, blocks=[idle], sequences=[], totals={})
    state = fold(published, hit, start=start)
    assert state.sequences["a"].tables == [[], [NULL_BLOCK, 7, 8]]
    assert state.pool is not None
    assert (state.pool.state[7], state.pool.owners[7], state.pool.counts[IDLE]) == (USED, ["a"], 0)


def test_a_keyframe_carries_the_tables_of_all_groups() -> None:
    used = [BlockRow(block, "used", 1, 4, None, None, 0, 0, 0, 0) for block in (0, 1, 4)]
    row = SequenceRow(
        "a", "a", "running", 8, 9, 8, 8, 0, 0, [0, 1], "", "", 0, 0, 5, 5, other_tables=[[NULL_BLOCK, 4]]
    )  # fmt: skip
    start = Keyframe(step=3, t_ns=9, num_blocks=12, block_size=4, blocks=used, sequences=[row], totals={})
    state = reduce(RunState(), start)
    assert state.sequences["a"].tables == [[0, 1], [NULL_BLOCK, 4]]
    assert state.pool is not None
    assert [state.pool.owners[b] for b in (0, 1, 4, 11)] == [["a"], ["a"], ["a"], []]
