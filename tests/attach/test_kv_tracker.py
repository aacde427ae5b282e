"""Blocks followed by their events, held to plain counting: of the recorded server, of random events, of losses."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from attach_helpers import attached, folded, removed, stored, take
from fake_server import recorded_messages
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.attach.kv_decode import Batch, decode_batch
from kvtop.attach.kv_tracker import KvTracker, Replay
from kvtop.engine.events import Event, KvEvents
from kvtop.state.model import FRESH, IDLE, RunState
from kvtop.state.prefix_tree import TOP, PrefixTree
from kvtop.state.reduce import reduce

A = "tcp://a:1"


def batch(*events: object, rank: int | None = None) -> Batch:
    return decode_batch(msgspec.msgpack.encode([0.0, list(events), rank]))


def published(state: RunState) -> Counter[int]:
    """Keys in the pool, by what the fold says."""
    assert state.pool is not None
    return Counter(key for key in state.pool.key if key is not None)


# The recorded server ------------------------------------------------------------------------------------------------


def test_the_recorded_servers_cache_is_right_at_every_sequence_number() -> None:
    """An independent recount: a Counter of hashes, from the raw messages."""
    tracker, state, truth = KvTracker(109), RunState(), Counter[int]()
    num_stored = num_removed = num_messages = 0
    for seq, (_, frames) in enumerate(recorded_messages()):
        for event in msgspec.msgpack.decode(frames[2])[1]:
            hashes = event["block_hashes"]
            if event["type"] == "BlockStored":
                truth.update(hashes)
                num_stored += len(hashes)
                num_messages += 1
            else:
                truth.subtract(hashes)
                num_removed += len(hashes)
        take(tracker, frames)
        for event in tracker.drain(seq + 1, seq):
            reduce(state, event)
        assert published(state) == +truth, seq
        assert state.pool is not None
        assert state.pool.counts == [109 - truth.total(), truth.total(), 0, 0, 0]
        assert attached(state).streams[f"{A} rank 0"].last_seq == seq
    assert (num_messages, num_stored, num_removed, truth.total()) == (94, 249, 146, 103)
    seen = attached(state)
    assert (seen.num_stored, seen.num_removed, seen.partial) == (249, 146, "")
    assert seen.streams[f"{A} rank 0"].num_orphans == 0


def test_the_recorded_servers_tree_hangs_together_as_its_parents_say() -> None:
    tracker, state, parents = KvTracker(109), RunState(), {}
    for seq, (_, frames) in enumerate(recorded_messages()):
        for event in msgspec.msgpack.decode(frames[2])[1]:
            above = event.get("parent_block_hash")
            for key in event["block_hashes"] if event["type"] == "BlockStored" else ():
                parents[key], above = above, key
        take(tracker, frames)
        for event in tracker.drain(seq + 1, seq):
            reduce(state, event)
    tree, pool = PrefixTree(), state.pool
    tree.update(pool, (), whole=True)
    assert pool is not None
    for block, key in enumerate(pool.key):
        if key is None:
            continue
        above = int(tree.parent[block])
        assert (pool.key[above] if above != TOP else None) == (parents[key] if parents[key] in tree.block_of else None)


# Losses -------------------------------------------------------------------------------------------------------------


def chain(n: int) -> list[Batch]:
    """Message k stores block k under block k - 1."""
    return [batch(stored(k + 1, parent=k or None)) for k in range(n)]


def replaying(messages: list[Batch], first_kept: int = 0) -> Replay:
    return lambda first, last: [(seq, messages[seq]) for seq in range(max(first, first_kept), last + 1)]


def stream(tracker: KvTracker):
    return tracker.streams()[0]


@pytest.mark.parametrize("kept", [0, 8])
def test_a_gap_is_asked_for_again_and_what_stays_lost_makes_the_tree_partial(kept: int) -> None:
    messages, tracker = chain(12), KvTracker(64)
    for seq in (*range(5), *range(10, 12)):  # 5 to 9 are lost on the way
        tracker.take(A, seq, messages[seq], 0.0, replaying(messages, kept))
    state = folded(tracker.drain(1, 1))
    here = stream(tracker)
    if kept == 0:
        assert set(published(state)) == set(range(1, 13))
        assert (here.num_lost, here.num_replayed, here.partial) == (0, 5, "")
    else:
        assert set(published(state)) == {*range(1, 6), 9, 10, 11, 12}
        assert (here.num_lost, here.num_replayed) == (3, 2)
        assert here.partial == "gap of 3 messages: the replay endpoint no longer has them"
        assert any("3 messages were lost (5 to 9)" in note for note in attached(state).news)


def test_without_a_replay_endpoint_a_gap_says_so_until_the_server_clears_its_cache() -> None:
    messages, tracker = chain(8), KvTracker(64)
    for seq in (0, 1, 2, 5):
        tracker.take(A, seq, messages[seq], 0.0)
    assert stream(tracker).partial == "gap of 2 messages: no replay endpoint was given"
    tracker.take(A, 6, batch({"type": "AllBlocksCleared"}), 0.0)
    assert (stream(tracker).partial, len(tracker.blocks.cached)) == ("", 0)


def test_a_late_start_has_placeholders_above_what_it_sees_and_says_how_much_hangs_together() -> None:
    messages, tracker = chain(10), KvTracker(64)
    for seq in (7, 8, 9):
        tracker.take(A, seq, messages[seq], 0.0)
    here, state = stream(tracker), folded(tracker.drain(1, 1))
    assert here.partial == "listening since message 7: no replay endpoint was given"
    assert (here.num_cached, here.num_orphans) == (3, 1)
    tree = PrefixTree()
    tree.update(state.pool, (), whole=True)
    assert tree.parent[tree.block_of[8]] == TOP
    assert tree.parent[tree.block_of[9]] == tree.block_of[8]
    tracker.take(A, 10, batch(stored(7, parent=None)), 0.0)  # the missing parent turns up
    assert stream(tracker).num_orphans == 0


def test_a_late_start_with_a_replay_endpoint_is_none() -> None:
    messages, tracker = chain(10), KvTracker(64)
    tracker.take(A, 7, messages[7], 0.0, replaying(messages))
    assert set(published(folded(tracker.drain(1, 1)))) == set(range(1, 9))
    assert stream(tracker).partial == ""


def test_a_publisher_that_begins_anew_takes_only_its_own_blocks_with_it() -> None:
    tracker = KvTracker(64)
    for seq in range(3):
        tracker.take(A, seq, batch(stored(10 + seq), rank=0), 0.0)
        tracker.take(A, seq, batch(stored(20 + seq), rank=1), 0.0)
    tracker.take(A, 0, batch(stored(99), rank=1), 0.0)
    state = folded(tracker.drain(1, 1))
    assert set(published(state)) == {10, 11, 12, 99}
    assert attached(state).news == [f"{A} rank 1: its publisher began anew: what it had cached is gone"]


# Connections --------------------------------------------------------------------------------------------------------


def timed(t_s: float, *events: object, rank: int | None = None) -> Batch:
    return decode_batch(msgspec.msgpack.encode([t_s, list(events), rank]))


def test_what_an_endpoint_still_has_is_the_cache_of_an_idle_server_and_no_message_counts_twice() -> None:
    messages, tracker = [timed(float(n), stored(n + 1, parent=n or None)) for n in range(4)], KvTracker(64)
    tracker.resume(A, list(enumerate(messages)), 9.0)
    tracker.take(A, 2, messages[2], 9.0)  # both by themselves and by asking
    tracker.take(A, 3, messages[3], 9.0)
    assert stream(tracker).lag_ns is None
    tracker.take(A, 4, timed(4.0, stored(5, parent=4)), 4.5)
    assert published(folded(tracker.drain(1, 1))) == Counter([1, 2, 3, 4, 5])
    assert (stream(tracker).num_messages, stream(tracker).num_replayed, stream(tracker).partial) == (5, 4, "")


def test_an_endpoint_that_no_longer_has_its_first_messages_leaves_the_tree_partial() -> None:
    tracker = KvTracker(64)
    tracker.resume(A, [(7, timed(7.0, stored(8, parent=7)))], 9.0)
    assert stream(tracker).partial == "listening since message 7: the replay endpoint no longer has them"


@pytest.mark.parametrize("found", [[], [(0, timed(50.0, stored(9)))], [(n, timed(50.0 + n)) for n in range(5)]])
def test_a_server_that_was_restarted_has_nothing_of_the_one_before_even_if_it_is_idle(
    found: list[tuple[int, Batch]],
) -> None:
    tracker = KvTracker(64)
    for n in range(3):
        tracker.take(A, n, timed(float(n), stored(n + 1)), 9.0)
    tracker.cut(A)
    assert stream(tracker).partial == "the connection was lost: what is cached since is not known"
    tracker.resume(A, found, 60.0)
    state = folded(tracker.drain(1, 1))
    assert set(published(state)) == ({9} if len(found) == 1 else set())
    assert stream(tracker).partial == ""
    assert attached(state).news == [f"{A} rank 0: its publisher began anew: what it had cached is gone"]


@pytest.mark.parametrize("asks", [True, False])
def test_a_connection_that_was_lost_for_a_moment_loses_nothing(asks: bool) -> None:
    messages, tracker = [timed(float(n), stored(n + 1)) for n in range(5)], KvTracker(64)
    for n in range(3):
        tracker.take(A, n, messages[n], 9.0)
    tracker.cut(A)
    if asks:
        tracker.resume(A, list(enumerate(messages)), 9.0)
    else:
        tracker.take(A, 3, messages[3], 9.0)
        tracker.take(A, 4, messages[4], 9.0)
    assert stream(tracker).partial == ""
    assert set(published(folded(tracker.drain(1, 1)))) == {1, 2, 3, 4, 5}


# Ranks, tiers, copies -----------------------------------------------------------------------------------------------


def test_one_hash_on_two_ranks_and_two_tiers_is_three_blocks() -> None:
    tracker = KvTracker(64)
    tracker.take(A, 0, batch(stored(5), stored(5, medium="CPU"), rank=0), 0.0)
    tracker.take(A, 0, batch(stored(5), rank=1), 0.0)
    tracker.take(A, 1, batch(removed(5), rank=0), 0.0)
    tiers = {(one.rank, medium): n for one in tracker.streams() for medium, n in one.tiers.items()}
    assert tiers == {(0, "CPU"): 1, (1, "GPU"): 1}
    assert published(folded(tracker.drain(1, 1))) == {5: 1}  # on a device


def test_a_hash_stored_twice_stays_until_it_is_removed_twice() -> None:
    tracker = KvTracker(64)
    tracker.take(A, 0, batch(stored(5), stored(5)), 0.0)
    tracker.take(A, 1, batch(removed(5)), 0.0)
    assert len(tracker.blocks.cached) == 1
    tracker.take(A, 2, batch(removed(5)), 0.0)
    assert len(tracker.blocks.cached) == 0


def test_endpoints_do_not_share_their_ranks() -> None:
    tracker = KvTracker(64)
    tracker.take(A, 0, batch(stored(5)), 0.0)
    tracker.take("tcp://b:1", 0, batch(stored(5)), 0.0)
    tracker.take(A, 1, batch({"type": "AllBlocksCleared"}), 0.0)
    assert published(folded(tracker.drain(1, 1))) == {5: 1}


def test_a_removal_without_a_tier_is_of_all_tiers_and_groups_it_is_in() -> None:
    tracker = KvTracker(64)
    tracker.take(A, 0, batch(stored(5), stored(5, group_idx=1)), 0.0)
    tracker.take(A, 1, batch(["BlockRemoved", [5]]), 0.0)
    assert len(tracker.blocks.cached) == 0


def test_what_comes_back_after_its_removal_was_regretted() -> None:
    tracker = KvTracker(64)
    tracker.take(A, 0, batch(stored(5, 6)), 0.0)
    tracker.take(A, 1, batch(removed(6, 5)), 0.0)
    tracker.take(A, 2, batch(stored(5, 6, 7)), 0.0)
    state = folded(tracker.drain(3, 30))
    assert [(row.tokens, row.key, row.seq_id) for row in state.cache.regrets] == [(8, 5, "")]
    assert state.cache.ghosts == {}


# The pool -----------------------------------------------------------------------------------------------------------


def test_a_pool_of_unknown_size_grows_and_changes_keep_their_order() -> None:
    tracker, events = KvTracker(None), list[Event]()
    for seq in range(700):
        tracker.take(A, seq, batch(stored(seq + 1, parent=seq or None)), 0.0)
        if seq % 97 == 0:
            events += tracker.drain(seq + 1, seq)
    events += tracker.drain(701, 700)
    state = folded(events)
    assert state.pool is not None
    assert (state.pool.num_blocks, state.pool.counts[IDLE]) == (1024, 700)
    assert sum(event.stored for event in events if isinstance(event, KvEvents)) == 700


@pytest.mark.parametrize(("size", "known"), [(400, 400), (300, 300), (100, 256)])
def test_a_size_that_becomes_known_later_is_taken_over_unless_it_cannot_be(size: int, known: int) -> None:
    tracker = KvTracker(None)
    tracker.take(A, 0, batch(stored(*range(1, 151))), 0.0)
    events = tracker.drain(1, 1)
    tracker.blocks.resize(size)
    tracker.take(A, 1, batch(stored(999)), 0.0)
    state = folded([*events, *tracker.drain(2, 2)])
    assert state.pool is not None
    assert (state.pool.num_blocks, state.pool.counts[IDLE], state.pool.counts[FRESH]) == (known, 151, known - 151)


_ops = st.lists(
    st.tuples(
        st.sampled_from(["store", "store", "remove", "clear"]),
        st.integers(0, 1),
        st.integers(1, 12),
        st.integers(0, 12),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(_ops, st.integers(1, 7))
def test_any_events_leave_what_plain_counting_leaves(ops: list[tuple[str, int, int, int]], every: int) -> None:
    tracker, state, truth = KvTracker(4), RunState(), {0: Counter[int](), 1: Counter[int]()}
    seqs = [0, 0]
    for number, (what, rank, key, parent) in enumerate(ops):
        event: object = {"type": "AllBlocksCleared"}
        if what == "store":
            event = stored(key, parent=parent or None)
            truth[rank][key] += 1
        elif what == "remove":
            event = removed(key)
            truth[rank][key] = max(0, truth[rank][key] - 1)
        else:
            truth[rank].clear()
        tracker.take(A, seqs[rank], batch(event, rank=rank), 0.0)
        seqs[rank] += 1
        if number % every == 0:
            for event in tracker.drain(number + 1, number):
                reduce(state, event)
    for event in tracker.drain(len(ops) + 1, len(ops)):
        reduce(state, event)
    if state.pool is None:
        assert not truth[0].total() + truth[1].total()
        return
    assert published(state) == truth[0] + truth[1]
    assert state.pool.counts[IDLE] == truth[0].total() + truth[1].total()
    tree = PrefixTree()
    tree.update(state.pool, (), whole=True)
    assert set(tree.block_of) == set(+truth[0]) | set(+truth[1])
