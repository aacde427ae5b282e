"""One logical pool for the blocks of all ranks of all endpoints, and every change of it as a decision.

Each (rank, group, hash) on the device has a logical block of its own: a block of the pool that the server would not
tell the number of. A hash stored twice is there twice, until it has been removed twice. Other tiers are counted only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec

from kvtop.attach.kv_decode import DEVICE, Removed, Stored
from kvtop.attach.prompt_index import EXTRA_ENTRIES, PromptIndex
from kvtop.engine.events import BlockRow, Decision, Keyframe, KvEvents, Origin

GROWTH = 2
FIRST_BLOCKS = 256  # of a pool whose size is not known
LATE, BEFORE = "late", "before"  # of an ``Origin``

Name = tuple[str, int]  # endpoint, rank
Place = tuple[Name, str, int, int]  # rank, medium, group, hash


@dataclass(slots=True)
class _Block:
    blocks: list[int]  # logical blocks of its copies (on the device), one entry a copy
    parent: int | None
    is_orphan: bool = False


@dataclass(slots=True)
class Owner:
    """What a rank has in the pool and on other tiers."""

    source: str
    number: int
    num_orphans: int = 0
    tiers: dict[str, int] = field(default_factory=dict)
    groups: set[int] = field(default_factory=set)

    @property
    def name(self) -> Name:
        return self.source, self.number


class KvBlocks:
    """Not thread-safe. ``num_blocks``: of the pool, where it is known.

    What has changed since (``decisions``, ``tokens``) is there for ``drain``. ``when``: of the messages whose events
    are folded, as in ``Origin``.
    """

    def __init__(self, num_blocks: int | None = None, *, keep_tokens: bool = False) -> None:
        self.num_blocks = num_blocks or FIRST_BLOCKS
        self.block_size = 0
        self.cached: dict[Place, _Block] = {}
        self.decisions: list[Decision] = []
        self.tokens: list[tuple[int, list[int]]] = []
        self.keep_tokens = keep_tokens
        self.prompts = PromptIndex()
        self.when = ""
        self._origins: list[Origin] = []  # of ``decisions``
        self._parts: list[tuple[list[Decision], list[Origin]] | Keyframe] = []
        self._free = list(range(self.num_blocks - 1, -1, -1))
        self._waiting: dict[Place, set[Place]] = {}  # parent that is not known -> blocks below it

    # Blocks --------------------------------------------------------------------------------------------------

    def store(self, rank: Owner, event: Stored) -> None:
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
                self._publish(rank, event.group, key, parent, block)
            else:
                block.blocks.append(-1)
            if self.keep_tokens:
                self.tokens.append((key, [t for t in event.tokens[index * size : (index + 1) * size] if _is_id(t)]))
            parent = key

    def _hang(self, rank: Owner, place: Place, block: _Block) -> None:
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

    def _publish(self, rank: Owner, group: int, key: int, parent: int | None, block: _Block) -> None:
        if not self._free:
            self._grow()
        logical = self._free.pop()
        block.blocks.append(logical)
        tiers = [medium for medium in rank.tiers if medium != DEVICE]
        self._decide(
            rank,
            ("alloc", "", group, logical, 0),
            ("publish", "", group, logical, key, parent),
            ("free", "", group, logical, "release"),
            is_load=any((rank.name, medium, group, key) in self.cached for medium in tiers),
        )

    def _decide(self, rank: Owner, *decisions: Decision, is_load: bool = False) -> None:
        """Note what a rank did, and that it was this rank."""
        self.decisions += decisions
        last = self._origins[-1] if self._origins else None
        own = Origin(len(decisions), rank.source, rank.number, self.when, is_load)
        if last is not None and msgspec.structs.replace(last, count=own.count) == own:
            self._origins[-1] = msgspec.structs.replace(last, count=last.count + own.count)
        else:
            self._origins.append(own)

    def remove(self, rank: Owner, event: Removed) -> None:
        for key in event.hashes:
            for place in self._places(rank, event, key):
                self._drop(rank, place, "evict")

    def _places(self, rank: Owner, event: Removed, key: int) -> list[Place]:
        """Where ``key`` is, as far as the event says; [] when it is not known."""
        media = [event.medium] if event.medium is not None else list(rank.tiers)
        groups = [event.group] if event.group is not None else list(rank.groups)
        places = ((rank.name, medium, group, key) for medium in media for group in groups)
        return [place for place in places if place in self.cached]

    def _drop(self, rank: Owner, place: Place, how: str) -> None:
        """One copy of a block is gone."""
        _, medium, group, key = place
        block = self.cached[place]
        logical = block.blocks.pop()
        rank.tiers[medium] -= 1
        if medium == DEVICE:
            if how == "evict":
                self._decide(rank, ("evict", "", group, logical, key, block.parent, None, None, None))
            else:
                self._decide(rank, ("unpublish", group, logical, key, how))
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

    def clear(self, rank: Owner, why: str) -> None:
        """All blocks of one rank are gone; the others' are not."""
        for place in [place for place in self.cached if place[0] == rank.name]:
            while place in self.cached:
                self._drop(rank, place, why)
        self.forget_evicted(rank)

    def forget_evicted(self, rank: Owner) -> None:
        """What this rank had evicted before says nothing of what it stores from now on."""
        self._decide(rank, ("cleared", "done"))

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
            self._parts.append((self.decisions, self._origins))
            self.decisions, self._origins = [], []
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

    # Changes -------------------------------------------------------------------------------------------------

    @property
    def has_changed(self) -> bool:
        """Since the last ``drain``."""
        return bool(self._parts or self.decisions)

    def drain(self, step: int, t_ns: int) -> list[Keyframe | KvEvents]:
        """What has changed since the last call, in order: the pool anew where it got another size. The last one is
        always a ``KvEvents``, and the only one with ``tokens``."""
        parts: list[Keyframe | KvEvents] = []
        for part in self._parts:
            if isinstance(part, Keyframe):
                parts.append(msgspec.structs.replace(part, step=step, t_ns=t_ns))
            else:
                parts.append(_changes(*part, step, t_ns))
        parts.append(msgspec.structs.replace(_changes(self.decisions, self._origins, step, t_ns), tokens=self.tokens))
        self.decisions, self._origins, self._parts, self.tokens = [], [], [], []
        self._forget_prompts()
        return parts

    def _forget_prompts(self) -> None:
        if len(self.prompts) > len(self.cached) + EXTRA_ENTRIES:
            known = {place[3] for place in self.cached}
            self.prompts.forget_old(known.__contains__, len(known))


def _changes(decisions: list[Decision], origins: list[Origin], step: int, t_ns: int) -> KvEvents:
    kinds: Counter[tuple[str, str]] = Counter()
    at = 0
    for origin in origins:
        kinds.update((decision[0], origin.when) for decision in decisions[at : at + origin.count])
        at += origin.count
    return KvEvents(
        step=step, t_ns=t_ns, decisions=decisions, origins=origins,
        stored=kinds["publish", ""] + kinds["publish", LATE], removed=kinds["evict", ""] + kinds["evict", LATE],
        removed_late=kinds["evict", LATE],
    )  # fmt: skip


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
