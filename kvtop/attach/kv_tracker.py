"""Which blocks a server's ranks have cached, from its KV events alone, as decisions on one logical pool.

Each (rank, group, hash) on the device has a logical block of its own: a block of the pool that the server would not
tell the number of. A hash stored twice is there twice, until it has been removed twice. Other tiers are counted only.
Messages that were lost make a rank *partial*: blocks may be missing, or long gone, until the server clears its cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from kvtop.attach.kv_decode import DEVICE, Batch, Cleared, Removed, Stored
from kvtop.attach.prompt_index import EXTRA_ENTRIES, PromptIndex
from kvtop.engine.events import BlockRow, Decision, Event, Keyframe, KvEvents, KvStream
from kvtop.workloads.words import counted, was

GROWTH = 2
FIRST_BLOCKS = 256  # of a pool whose size is not known
MAX_REPLAY = 1_000_000  # messages; a larger jump of the sequence numbers is no gap that anybody could fill
CUT = "the connection was lost: what is cached since is not known"

Replay = Callable[[int, int], list[tuple[int, Batch]]]
"""(first, last missing sequence number) -> what the publisher still has of it, in order."""

Name = tuple[str, int]  # endpoint, rank
Place = tuple[Name, str, int, int]  # rank, medium, group, hash


@dataclass(slots=True)
class _Block:
    blocks: list[int]  # logical blocks of its copies (on the device), one entry a copy
    parent: int | None
    is_orphan: bool = False


@dataclass(slots=True)
class _Rank:
    source: str
    number: int
    last_seq: int = -1
    num_messages: int = 0
    num_events: int = 0
    num_lost: int = 0
    num_replayed: int = 0
    num_orphans: int = 0
    tiers: dict[str, int] = field(default_factory=dict)
    partial: str = ""
    lag_ns: int | None = None
    groups: set[int] = field(default_factory=set)
    last_t_s: float | None = None  # the publisher's clock at ``last_seq``
    resumed_seq: int = -1  # up to here messages were asked for, and may come once more by themselves

    @property
    def name(self) -> Name:
        return self.source, self.number


class KvTracker:
    """All ranks of all endpoints, in one pool. Not thread-safe. ``num_blocks``: of the pool, where it is known.

    What has been noted since (``decisions``, ``notes``, ...) is there for ``drain``.
    """

    def __init__(self, num_blocks: int | None = None, *, keep_tokens: bool = False) -> None:
        self.num_blocks = num_blocks or FIRST_BLOCKS
        self.block_size = 0
        self.problems: dict[str, str] = {}  # by endpoint
        self.ranks: dict[Name, _Rank] = {}
        self.cached: dict[Place, _Block] = {}
        self.decisions: list[Decision] = []
        self.notes: list[str] = []
        self.tokens: list[tuple[int, list[int]]] = []
        self.keep_tokens = keep_tokens
        self.prompts = PromptIndex()
        self._parts: list[list[Decision] | Keyframe] = []
        self._heard = False
        self._free = list(range(self.num_blocks - 1, -1, -1))
        self._waiting: dict[Place, set[Place]] = {}  # parent that is not known -> blocks below it

    # Messages ------------------------------------------------------------------------------------------------

    def take(self, source: str, seq: int, batch: Batch, now_s: float, replay: Replay | None = None) -> None:
        """Fold the next message of an endpoint; what is missing before it is asked for with ``replay``."""
        name = (source, batch.rank or 0)
        rank = self.ranks.get(name)
        if rank is None:
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
        for seq, batch in found:
            rank = self.ranks.get((source, batch.rank or 0))
            if rank is None or seq > rank.last_seq:
                self.take(source, seq, batch, now_s, _nothing_more)
                rank = self.ranks[source, batch.rank or 0]
                rank.num_replayed += 1
                rank.resumed_seq, rank.lag_ns = seq, None

    def _join(self, rank: _Rank, seq: int, now_s: float, replay: Replay | None) -> None:
        """The first message of a rank: what came before it, if anything did, has to be asked for."""
        if seq > 0:
            self._fill(rank, 0, seq - 1, now_s, replay, late=True)

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
            rank.num_lost += lost
            rank.partial = f"gap of {counted(lost, 'message')}: {why}"
            self.notes.append(f"{what}{counted(lost, 'message')} {was(lost)} lost ({first:,} to {last:,}); {why}")

    def _restarted(self, rank: _Rank) -> None:
        self.notes.append(f"{rank.source} rank {rank.number}: its publisher began anew: what it had cached is gone")
        self._clear(rank, "restart")
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
                    self._store(rank, event)
                case Removed():
                    self._remove(rank, event)
                case Cleared():
                    self.notes.append(f"{rank.source} rank {rank.number}: the server cleared its cache")
                    self._clear(rank, "reset")
                    rank.partial = ""

    # Blocks --------------------------------------------------------------------------------------------------

    def _store(self, rank: _Rank, event: Stored) -> None:
        if not self.block_size:
            self.block_size = event.block_size
            self._tell_pool()
        parent, size = event.parent, event.block_size
        self.prompts.stored(event)
        rank.groups.add(event.group)
        for index, key in enumerate(event.hashes):
            place = (rank.name, event.medium, event.group, key)
            block = self.cached.get(place)
            if block is None:
                block = self.cached[place] = _Block([], parent)
                self._hang(rank, place, block)
            rank.tiers[event.medium] = rank.tiers.get(event.medium, 0) + 1
            if event.medium == DEVICE:
                self._publish(event.group, key, parent, block)
            else:
                block.blocks.append(-1)
            if self.keep_tokens:
                self.tokens.append((key, [t for t in event.tokens[index * size : (index + 1) * size] if _is_id(t)]))
            parent = key

    def _hang(self, rank: _Rank, place: Place, block: _Block) -> None:
        """Note whether its parent is known, and whose parent it is."""
        name, medium, group, key = place
        if block.parent is not None:
            above = (name, medium, group, block.parent)
            if above not in self.cached:
                block.is_orphan = True
                rank.num_orphans += 1
                self._waiting.setdefault(above, set()).add(place)
        for below in self._waiting.pop((name, medium, group, key), ()):
            child = self.cached.get(below)
            if child is not None and child.is_orphan:
                child.is_orphan = False
                rank.num_orphans -= 1

    def _publish(self, group: int, key: int, parent: int | None, block: _Block) -> None:
        if not self._free:
            self._grow()
        logical = self._free.pop()
        block.blocks.append(logical)
        self.decisions += (
            ("alloc", "", group, logical, 0),
            ("publish", "", group, logical, key, parent),
            ("free", "", group, logical, "release"),
        )

    def _remove(self, rank: _Rank, event: Removed) -> None:
        for key in event.hashes:
            for place in self._places(rank, event, key):
                self._drop(rank, place, "evict")

    def _places(self, rank: _Rank, event: Removed, key: int) -> list[Place]:
        """Where ``key`` is, as far as the event says; [] when it is not known."""
        media = [event.medium] if event.medium is not None else list(rank.tiers)
        groups = [event.group] if event.group is not None else list(rank.groups)
        places = ((rank.name, medium, group, key) for medium in media for group in groups)
        return [place for place in places if place in self.cached]

    def _drop(self, rank: _Rank, place: Place, how: str) -> None:
        """One copy of a block is gone."""
        _, medium, group, key = place
        block = self.cached[place]
        logical = block.blocks.pop()
        rank.tiers[medium] -= 1
        if medium == DEVICE:
            if how == "evict":
                self.decisions.append(("evict", "", group, logical, key, block.parent, None, None, None))
            else:
                self.decisions.append(("unpublish", group, logical, key, how))
            self._free.append(logical)
        if block.blocks:
            return
        del self.cached[place]
        if block.is_orphan:
            rank.num_orphans -= 1
            if block.parent is not None:
                self._forget_waiting((place[0], medium, group, block.parent), place)

    def _forget_waiting(self, above: Place, place: Place) -> None:
        waiting = self._waiting.get(above)
        if waiting is not None:
            waiting.discard(place)
            if not waiting:
                del self._waiting[above]

    def _clear(self, rank: _Rank, why: str) -> None:
        """All blocks of one rank are gone; the others' are not."""
        for place in [place for place in self.cached if place[0] == rank.name]:
            while place in self.cached:
                self._drop(rank, place, why)
        self.decisions.append(("cleared", "done"))

    # Pool ----------------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        before, self.num_blocks = self.num_blocks, self.num_blocks * GROWTH
        self._free = list(range(self.num_blocks - 1, before - 1, -1))
        self._tell_pool()

    def resize(self, num_blocks: int) -> None:
        """The pool's size has become known. One that is too small for what is in it stays as it is."""
        highest = max((logical for block in self.cached.values() for logical in block.blocks), default=-1)
        if num_blocks == self.num_blocks or highest >= num_blocks:
            return
        if num_blocks > self.num_blocks:
            self._free[:0] = range(num_blocks - 1, self.num_blocks - 1, -1)
        else:
            self._free = [logical for logical in self._free if logical < num_blocks]
        self.num_blocks = num_blocks
        if self.block_size:
            self._tell_pool()

    def _tell_pool(self) -> None:
        """The pool has another size from here on: readers are told it anew, between two changes."""
        if self.decisions:
            self._parts.append(self.decisions)
            self.decisions = []
        rows = [
            BlockRow(logical, "idle", 0, self.block_size, place[3], block.parent, 0, 0, 0, 0)
            for place, block in self.cached.items()
            for logical in block.blocks
            if logical >= 0
        ]
        rows.sort(key=lambda row: row.block)
        self._parts.append(
            Keyframe(
                step=0, t_ns=0, num_blocks=self.num_blocks, block_size=self.block_size, blocks=rows, sequences=[],
                totals={},
            )
        )  # fmt: skip

    def drain(self, step: int, t_ns: int) -> list[Event]:
        """What has happened since the last call, in order: changes, and the pool anew where it got another size."""
        if not self._heard and not self._parts and not self.decisions:
            return []
        events: list[Event] = []
        for part in [*self._parts, self.decisions]:
            if isinstance(part, Keyframe):
                events.append(msgspec.structs.replace(part, step=step, t_ns=t_ns))
            else:
                events.append(self._changes(part, step, t_ns, is_last=part is self.decisions))
        self.decisions, self._parts, self.notes, self.tokens, self._heard = [], [], [], [], False
        self._forget_prompts()
        return events

    def _forget_prompts(self) -> None:
        if len(self.prompts) > len(self.cached) + EXTRA_ENTRIES:
            known = {place[3] for place in self.cached}
            self.prompts.forget_old(known.__contains__, len(known))

    def _changes(self, decisions: list[Decision], step: int, t_ns: int, is_last: bool) -> KvEvents:
        kinds = Counter(decision[0] for decision in decisions)
        return KvEvents(
            step=step, t_ns=t_ns, decisions=decisions, stored=kinds["publish"], removed=kinds["evict"],
            streams=self.streams() if is_last else [], notes=self.notes if is_last else [],
            tokens=self.tokens if is_last else [],
        )  # fmt: skip

    def streams(self) -> list[KvStream]:
        """How far each rank is known."""
        return [
            KvStream(
                rank.source, rank.number, rank.last_seq, rank.num_messages, rank.num_events, rank.num_lost,
                rank.num_replayed, sum(rank.tiers.values()), rank.num_orphans, rank.partial, rank.lag_ns,
                self.problems.get(rank.source, ""),
                {medium: count for medium, count in rank.tiers.items() if count},
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


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
