"""Which blocks a server's ranks have cached, from their messages alone: what came, what is lost, who began anew.

Messages that were lost make a rank *partial*: blocks may be missing, or long gone, until the server clears its cache.
What the events in them say is folded into one logical pool (``kv_blocks``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from kvtop.attach.kv_blocks import BEFORE, LATE, KvBlocks, Name, Owner
from kvtop.attach.kv_decode import Batch, Cleared, Removed, Stored
from kvtop.engine.events import Event, KvEvents, KvStream
from kvtop.workloads.words import counted, was

MAX_REPLAY = 1_000_000  # messages; a larger jump of the sequence numbers is no gap that anybody could fill
MAX_RANKS = 1_024  # of all endpoints together; whatever number a message gives its rank, more are not followed
CUT = "the connection was lost: what is cached since is not known"

Replay = Callable[[int, int], list[tuple[int, Batch]]]
"""(first, last missing sequence number) -> what the publisher still has of it, in order."""


@dataclass(slots=True)
class _Rank(Owner):
    last_seq: int = -1
    num_messages: int = 0
    num_events: int = 0
    num_lost: int = 0
    num_replayed: int = 0
    partial: str = ""
    lag_ns: int | None = None
    last_t_s: float | None = None  # the publisher's clock at ``last_seq``
    resumed_seq: int = -1  # up to here messages were asked for, and may come once more by themselves


class KvTracker:
    """All ranks of all endpoints, in one pool (``blocks``). Not thread-safe. ``num_blocks``: of the pool, if known.

    What has been noted since is there for ``drain``.
    """

    def __init__(self, num_blocks: int | None = None, *, keep_tokens: bool = False) -> None:
        self.blocks = KvBlocks(num_blocks, keep_tokens=keep_tokens)
        self.ranks: dict[Name, _Rank] = {}
        self.notes: list[str] = []
        self._unfollowed = ""  # which ranks are not: more than ``MAX_RANKS`` were named
        self._heard = False

    # Messages ------------------------------------------------------------------------------------------------

    def take(self, source: str, seq: int, batch: Batch, now_s: float, replay: Replay | None = None) -> None:
        """Fold the next message of an endpoint; what is missing before it is asked for with ``replay``."""
        name = (source, batch.rank or 0)
        rank = self.ranks.get(name)
        if rank is None:
            if len(self.ranks) >= MAX_RANKS:
                self._refuse(*name)
                return
            rank = self.ranks[name] = _Rank(*name)
            self._join(rank, seq, now_s, replay)
        elif _is_copy(rank, seq, batch):
            return
        elif seq <= rank.last_seq:  # a publisher counts up from 0, and never back
            self._restarted(rank)
            self._join(rank, seq, now_s, replay)
        elif seq > rank.last_seq + 1:
            self._fill(rank, rank.last_seq + 1, seq - 1, now_s, replay)
        if rank.partial == CUT:
            rank.partial = ""
        self._apply(rank, seq, batch, now_s)

    def _refuse(self, source: str, number: int) -> None:
        """One rank too many: said once, and the tree is not all there is from now on."""
        if not self._unfollowed:
            self._unfollowed = (
                f"more than {MAX_RANKS:,} ranks: {source} rank {number} is not followed, nor are later ones"
            )
            self.notes.append(self._unfollowed)
            self._heard = True

    def cut(self, source: str) -> None:
        """The connection to an endpoint is gone; its server may be, and what it had cached with it."""
        for rank in self.ranks.values():
            if rank.source == source and not rank.partial:
                rank.partial, self._heard = CUT, True

    def resume(self, source: str, found: list[tuple[int, Batch]], now_s: float) -> None:
        """An endpoint is connected: ``found`` is all that it still has, in order. It may be another server by now."""
        for rank in [rank for rank in self.ranks.values() if rank.source == source]:
            own = {seq: batch for seq, batch in found if (batch.rank or 0) == rank.number}
            known = own.get(rank.last_seq)
            if max(own, default=-1) < rank.last_seq or (known is not None and known.t_s != rank.last_t_s):
                self._restarted(rank)
            elif rank.partial == CUT:
                rank.partial = ""
            self._heard = True
        known = {rank.name for rank in self.ranks.values() if rank.last_seq >= 0}
        for seq, batch in found:
            name = (source, batch.rank or 0)
            rank = self.ranks.get(name)
            if rank is not None and seq <= rank.last_seq:
                continue
            self.blocks.when = LATE if name in known else BEFORE
            self.take(source, seq, batch, now_s, _nothing_more)
            self.blocks.when = ""
            if (rank := self.ranks.get(name)) is not None:
                rank.num_replayed += 1
                rank.resumed_seq, rank.lag_ns = seq, None

    def _join(self, rank: _Rank, seq: int, now_s: float, replay: Replay | None) -> None:
        """The first message of a rank: what came before it, if anything did, has to be asked for."""
        if seq > 0:
            when, self.blocks.when = self.blocks.when, self.blocks.when or BEFORE
            self._fill(rank, 0, seq - 1, now_s, replay, late=True)
            self.blocks.when = when

    def _fill(
        self, rank: _Rank, first: int, last: int, now_s: float, replay: Replay | None, late: bool = False
    ) -> None:
        """Messages ``first .. last`` were not seen. Those that come back late are folded like any other."""
        found = replay(first, last) if replay is not None and last - first < MAX_REPLAY else []
        before = rank.num_replayed
        for seq, batch in found:
            if first <= seq <= last and seq > rank.last_seq and (batch.rank or 0) == rank.number:
                self._apply(rank, seq, batch, now_s)
                rank.num_replayed += 1
        asked, got = last - first + 1, rank.num_replayed - before
        what = f"{rank.source} rank {rank.number}: "
        if got == asked:
            if not late:
                lost_and_found = (
                    f"{counted(asked, 'message')} {was(asked)} lost on the way and came when asked for again"
                )
                self.notes.append(what + lost_and_found)
            return
        lost = asked - got
        why = "no replay endpoint was given" if replay is None else "the replay endpoint no longer has them"
        if late:
            rank.partial = f"listening since message {last + 1:,}: {why}"
            self.notes.append(f"{what}{counted(lost, 'message')} {was(lost)} published before kvtop listened; {why}")
        else:
            self.blocks.forget_evicted(rank)
            rank.num_lost += lost
            rank.partial = f"gap of {counted(lost, 'message')}: {why}"
            self.notes.append(f"{what}{counted(lost, 'message')} {was(lost)} lost ({first:,} to {last:,}); {why}")

    def _restarted(self, rank: _Rank) -> None:
        self.notes.append(f"{rank.source} rank {rank.number}: its publisher began anew: what it had cached is gone")
        self.blocks.clear(rank, "restart")
        rank.last_seq, rank.resumed_seq, rank.last_t_s, rank.partial = -1, -1, None, ""

    def _apply(self, rank: _Rank, seq: int, batch: Batch, now_s: float) -> None:
        rank.last_seq, rank.last_t_s, self._heard = seq, batch.t_s, True
        rank.num_messages += 1
        rank.num_events += len(batch.events)
        lag_s = None if batch.t_s is None else now_s - batch.t_s
        rank.lag_ns = int(lag_s * 1e9) if lag_s is not None and -0.001 <= lag_s < 3600 else None
        for event in batch.events:
            match event:
                case Stored():
                    self.blocks.store(rank, event)
                case Removed():
                    self.blocks.remove(rank, event)
                case Cleared():
                    self.notes.append(f"{rank.source} rank {rank.number}: the server cleared its cache")
                    self.blocks.clear(rank, "reset")
                    rank.partial = ""

    # What has happened ---------------------------------------------------------------------------------------

    def drain(self, step: int, t_ns: int) -> list[Event]:
        """What has happened since the last call, in order: changes, and the pool anew where it got another size."""
        if not self._heard and not self.blocks.has_changed:
            return []
        *events, last = self.blocks.drain(step, t_ns)
        assert isinstance(last, KvEvents)
        last = msgspec.structs.replace(last, streams=self.streams(), notes=self.notes)
        self.notes, self._heard = [], False
        return [*events, last]

    def streams(self) -> list[KvStream]:
        """How far each rank is known."""
        return [
            KvStream(
                rank.source, rank.number, rank.last_seq, rank.num_messages, rank.num_events, rank.num_lost,
                rank.num_replayed, sum(rank.tiers.values()), rank.num_orphans, rank.partial or self._unfollowed,
                rank.lag_ns,
                tiers={medium: count for medium, count in rank.tiers.items() if count},
            )
            for rank in self.ranks.values()
        ]  # fmt: skip


def _nothing_more(first: int, last: int) -> list[tuple[int, Batch]]:
    """The replay of an endpoint that has told all it has."""
    return []


def _is_copy(rank: _Rank, seq: int, batch: Batch) -> bool:
    """Whether a message came both by itself and by asking: a publisher that begins anew has a later clock."""
    if seq > rank.resumed_seq or batch.t_s is None or rank.last_t_s is None:
        return False
    return batch.t_s <= rank.last_t_s
