"""What became of prompts in the prefix cache: where each match ended, and what evictions cost later.

A block that is computed again although its key was published before, evicted, and would have been found otherwise, is
*regretted*: its tokens were recomputed because of that eviction. Like ``RequestLogs`` it is kept once, by the live end
of the run; ``until`` gives what was known at an earlier step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from kvtop.engine.events import Decision

if TYPE_CHECKING:
    from kvtop.state.model import PoolState, SequenceState

LOOKUPS_KEPT = 16_384
REGRETS_KEPT = 16_384
GHOSTS_KEPT = 65_536  # evicted keys that are recognised when they are wanted again: as many as the engine's default


class LookupRow(NamedTuple):
    """One first admission. ``parent_key``: of the last block found (None: none was, or it is not known)."""

    step: int
    t_ns: int
    seq_id: str
    tenant: str
    prompt_tokens: int
    found_tokens: int
    reason: str  # a MissReason
    other: str  # who evicted the missed block, or is computing it
    key: int | None  # of the block at which the match ended
    parent_key: int | None
    age_steps: int | None  # since that block was evicted


class Regret(NamedTuple):
    """Tokens that ``seq_id`` computed in ``step`` because ``evicted_by`` had driven their blocks out."""

    step: int
    t_ns: int
    seq_id: str
    tokens: int
    key: int  # of the first of these blocks
    parent_key: int
    evicted_step: int | None  # None: before the run was looked at
    evicted_by: str
    total: int  # tokens regretted in the run so far, these included


Ghost = int | tuple[str, int]
"""The key of an evicted block; of attached servers with the rank that evicted it: another rank's block is another."""

End = tuple[int | None, str]
"""In which step it was evicted (None: before the run was looked at), and for whom."""


@dataclass(slots=True)
class CacheLog:
    """Lookups and regrets, and what is needed to tell a regret: which keys left, and who could have found them."""

    lookups: deque[LookupRow] = field(default_factory=lambda: deque(maxlen=LOOKUPS_KEPT))
    regrets: deque[Regret] = field(default_factory=lambda: deque(maxlen=REGRETS_KEPT))
    ghosts: dict[Ghost, End] = field(default_factory=dict)  # evicted, oldest first
    owners: set[str] = field(default_factory=set)  # ranks of attached servers that have evicted
    chain: tuple[str, int | None] = ("", None)  # rank and key of the block that was regretted last
    findable: dict[str, int] = field(default_factory=dict)  # live sequence -> blocks it could have found at admission
    loaded: dict[int, int] = field(default_factory=dict)  # block -> step it was filled from the host tier in
    is_cut: bool = False  # of a moment in the past: all regrets up to then have been forgotten

    @property
    def regret_tokens(self) -> int:
        """Recomputed because of evictions, in the run so far. Where ``is_cut``, nobody knows."""
        return self.regrets[-1].total if self.regrets else 0

    def until(self, step: int) -> CacheLog:
        """What was known when ``step`` ended, as far as it is kept. Which keys were ghosts then is not."""
        lookups, regrets = list(self.lookups), list(self.regrets)
        kept = regrets[: bisect_right(regrets, step, key=lambda row: row.step)]
        return CacheLog(
            lookups=deque(lookups[: bisect_right(lookups, step, key=lambda row: row.step)], LOOKUPS_KEPT),
            regrets=deque(kept, REGRETS_KEPT),
            is_cut=not kept and len(regrets) == REGRETS_KEPT,
        )

    def lookup_of(self, seq_id: str) -> LookupRow | None:
        """The newest lookup of a sequence."""
        return next((row for row in reversed(self.lookups) if row.seq_id == seq_id), None)

    # Folding -------------------------------------------------------------------------------------------------

    def looked_up(self, seq: SequenceState, pool: PoolState | None, decision: Decision, step: int) -> None:
        _, seq_id, found, reason, other, key, age = decision
        table, size = seq.table, pool.block_size if pool is not None else 1
        last = table[found // size - 1] if found and len(table) >= found // size else -1
        parent = pool.key[last] if pool is not None and last >= 0 else None
        now_ns = pool.now_ns if pool is not None else 0
        self.lookups.append(
            LookupRow(step, now_ns, seq_id, seq.tenant, seq.num_prompt, found, reason, other or "", key, parent, age)
        )

    def admitted(self, seq_id: str, num_tokens: int, block_size: int) -> None:
        """``num_tokens`` are known; of these all but the last may be found, in whole blocks."""
        self.findable[seq_id] = (num_tokens - 1) // block_size

    def ended(self, seq_id: str) -> None:
        self.findable.pop(seq_id, None)

    def ends_of(self, key: int) -> list[End]:
        """How the block was evicted that had this key, and has not come back: on any rank."""
        found = [self.ghosts.get(key), *(self.ghosts.get((owner, key)) for owner in self.owners)]
        return [end for end in found if end is not None]

    def forget(self, owner: str) -> None:
        """A rank began anew, or what it did is not known: what it stores from now on is no regret."""
        if owner in self.owners:
            self.owners.discard(owner)
            self.ghosts = {ghost: end for ghost, end in self.ghosts.items() if _owner(ghost) != owner}

    def evicted_by_rank(self, owner: str, decision: Decision, step: int | None) -> None:
        """An attached server's rank removed a block (of the first KV group; groups may have equal keys)."""
        if not decision[2]:
            self.owners.add(owner)
            self.evicted([(owner, decision[4])], step, "")

    def evicted(self, keys: Iterable[Ghost], step: int | None, cause: str) -> None:
        ghosts, end = self.ghosts, (step, cause)
        for key in keys:
            ghosts.pop(key, None)  # to the end
            ghosts[key] = end
        if len(ghosts) > 2 * GHOSTS_KEPT:
            self.ghosts = dict(islice(ghosts.items(), len(ghosts) - GHOSTS_KEPT, None))

    def published(
        self, sequences: dict[str, SequenceState], pool: PoolState, run: Iterable[Decision], step: int
    ) -> None:
        """Blocks are computed (or loaded): which of the first KV group were there before?"""
        ghosts, loaded = self.ghosts, self.loaded
        for _, seq_id, group, block, key, parent_key in run:
            end = ghosts.pop(key, None) if not group else None
            if loaded and loaded.pop(block, None) == pool.since_step[block]:  # its tokens came back from host memory
                continue
            if end is None:
                continue
            seq = sequences.get(seq_id)
            if seq is not None and seq.table.index(block) < self.findable.get(seq_id, 0):
                self._regret(pool, seq_id, key, parent_key, end, step)

    def stored(self, pool: PoolState, owner: str, decision: Decision, step: int, *, is_news: bool) -> None:
        """An attached server's rank stored a block: had that rank evicted it before? For whom is not reported.

        ``is_news`` False: it did so before it was looked at, or loaded the block from another tier.
        """
        _, _, group, _, key, parent_key = decision
        end = self.ghosts.pop((owner, key), None) if not group else None
        if end is None or not is_news:
            return
        goes_on, self.chain = self.chain == (owner, parent_key), (owner, key)
        self._regret(pool, "", key, parent_key, end, step, goes_on)

    def _regret(
        self, pool: PoolState, seq_id: str, key: int, parent_key: int, end: End, step: int, goes_on: bool = True
    ) -> None:
        size, regrets = pool.block_size, self.regrets
        last = regrets[-1] if regrets else None
        if (
            goes_on
            and last is not None
            and last.step == step
            and last.seq_id == seq_id
            and (last.evicted_step, last.evicted_by) == end
        ):
            regrets[-1] = last._replace(tokens=last.tokens + size, total=last.total + size)
            return
        total = self.regret_tokens + size
        regrets.append(Regret(step, pool.now_ns, seq_id, size, key, parent_key, *end, total))

    def break_off(self) -> None:
        """Events were dropped: what was evicted or admitted meanwhile is not known."""
        self.ghosts.clear()
        self.findable.clear()
        self.loaded.clear()


def _owner(ghost: Ghost) -> str:
    return ghost[0] if isinstance(ghost, tuple) else ""


@dataclass(slots=True)
class RegrettedPrefix:
    """Regrets that begin with the same block, added up."""

    key: int
    parent_key: int
    tokens: int = 0
    times: int = 0  # it was computed again
    last_step: int = 0
    last_wanted_by: str = ""
    evicted_step: int | None = 0  # of its first block, the last time
    evicted_by: str = ""


def top_regrets(regrets: Iterable[Regret]) -> list[RegrettedPrefix]:
    """By tokens, most first. What one request recomputes chunk by chunk belongs to the prefix it began with."""
    prefixes: dict[int, RegrettedPrefix] = {}
    begun: dict[str, RegrettedPrefix] = {}  # by request
    for row in regrets:
        own = begun.get(row.seq_id) if row.seq_id else None  # attached servers do not tell who it was
        if own is None or row.key == own.key:
            own = prefixes.setdefault(row.key, RegrettedPrefix(row.key, row.parent_key))
            own.times += 1
            begun[row.seq_id] = own
        own.tokens += row.tokens
        own.last_step, own.last_wanted_by = row.step, row.seq_id
        if row.key == own.key:
            own.evicted_step, own.evicted_by = row.evicted_step, row.evicted_by
    return sorted(prefixes.values(), key=lambda prefix: (-prefix.tokens, -prefix.last_step, prefix.key))


def sharing_cause(lookups: Iterable[LookupRow], row: LookupRow) -> list[LookupRow]:
    """Other lookups that ended at the same place for the same reason: at the same block, or behind the same one."""
    return [
        other
        for other in lookups
        if other is not row
        and other.reason == row.reason
        and (
            other.key == row.key
            if row.reason in ("evicted", "not_yet_computed")
            else other.parent_key == row.parent_key
        )
    ]
