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
    evicted_step: int
    evicted_by: str
    total: int  # tokens regretted in the run so far, these included


@dataclass(slots=True)
class CacheLog:
    """Lookups and regrets, and what is needed to tell a regret: which keys left, and who could have found them."""

    lookups: deque[LookupRow] = field(default_factory=lambda: deque(maxlen=LOOKUPS_KEPT))
    regrets: deque[Regret] = field(default_factory=lambda: deque(maxlen=REGRETS_KEPT))
    ghosts: dict[int, tuple[int, str]] = field(default_factory=dict)  # evicted key -> step, for whom; oldest first
    findable: dict[str, int] = field(default_factory=dict)  # live sequence -> blocks it could have found at admission
    loaded: dict[int, int] = field(default_factory=dict)  # block -> step it was filled from the host tier in

    @property
    def regret_tokens(self) -> int:
        """Recomputed because of evictions, in the run so far."""
        return self.regrets[-1].total if self.regrets else 0

    def until(self, step: int) -> CacheLog:
        """What was known when ``step`` ended, as far as it is kept. Which keys were ghosts then is not."""
        lookups, regrets = list(self.lookups), list(self.regrets)
        return CacheLog(
            lookups=deque(lookups[: bisect_right(lookups, step, key=lambda row: row.step)], LOOKUPS_KEPT),
            regrets=deque(regrets[: bisect_right(regrets, step, key=lambda row: row.step)], REGRETS_KEPT),
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

    def evicted(self, key: int, step: int, cause: str) -> None:
        ghosts = self.ghosts
        ghosts.pop(key, None)  # to the end
        ghosts[key] = (step, cause)
        if len(ghosts) > 2 * GHOSTS_KEPT:
            self.ghosts = dict(islice(ghosts.items(), len(ghosts) - GHOSTS_KEPT, None))

    def published(self, sequences: dict[str, SequenceState], pool: PoolState, decision: Decision, step: int) -> None:
        """A block of the first KV group is computed (or loaded): was it there before?"""
        _, seq_id, group, block, key, parent_key = decision
        end = self.ghosts.pop(key, None) if not group else None
        if self.loaded.pop(block, None) == pool.since_step[block]:  # its tokens came back from host memory
            return
        seq = sequences.get(seq_id)
        if end is None or seq is None or seq.table.index(block) >= self.findable.get(seq_id, 0):
            return
        self._regret(pool, seq_id, key, parent_key, end, step)

    def stored(self, pool: PoolState, decision: Decision, step: int) -> None:
        """An attached server stored a block: was it there before? Who stored it, and whether it was computed again or
        loaded from another tier, is not reported."""
        _, _, group, _, key, parent_key = decision
        end = self.ghosts.pop(key, None) if not group else None
        if end is not None:
            self._regret(pool, "", key, parent_key, end, step)

    def _regret(self, pool: PoolState, seq_id: str, key: int, parent_key: int, end: tuple[int, str], step: int) -> None:
        size, regrets = pool.block_size, self.regrets
        last = regrets[-1] if regrets else None
        if (
            last is not None
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


@dataclass(slots=True)
class RegrettedPrefix:
    """Regrets that begin with the same block, added up."""

    key: int
    parent_key: int
    tokens: int = 0
    times: int = 0  # it was computed again
    last_step: int = 0
    last_wanted_by: str = ""
    evicted_step: int = 0  # of its first block, the last time
    evicted_by: str = ""


def top_regrets(regrets: Iterable[Regret]) -> list[RegrettedPrefix]:
    """By tokens, most first. What one request recomputes chunk by chunk belongs to the prefix it began with."""
    prefixes: dict[int, RegrettedPrefix] = {}
    begun: dict[str, RegrettedPrefix] = {}  # by request
    for row in regrets:
        own = begun.get(row.seq_id)
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
