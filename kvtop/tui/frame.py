"""What a screen is given: the run's state at the cursor, and what changed since it was last given one."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvtop.engine.events import PromptKeys
from kvtop.state.model import PoolState, RunState
from kvtop.state.timeline import Timeline

MIN_P99 = 20  # fewer samples than this have no 99th percentile worth printing


@dataclass(slots=True)
class Sharing:
    """Shared blocks, kept up to date from ``pool.dirty`` alone: a look at all blocks happens once per pool."""

    pool: PoolState | None = None
    refs: dict[int, int] = field(default_factory=dict)  # block -> refcount, where it is 2 or more
    saved: int = 0  # blocks that sharing avoids: the sum of refcount - 1

    def update(self, pool: PoolState | None) -> None:
        if pool is not self.pool:
            self.pool, self.refs, self.saved = pool, {}, 0
            changed = range(pool.num_blocks) if pool else ()
        else:
            changed = pool.dirty if pool else ()
        refs, counts = self.refs, pool.refcount if pool else ()
        for block in changed:
            count = counts[block]
            if count < 2 and block not in refs:  # most of them
                continue
            before = refs.pop(block, 1)
            if count > 1:
                refs[block] = count
            self.saved += max(count, 1) - before

    @property
    def num_shared(self) -> int:
        return len(self.refs)


@dataclass(slots=True)
class Frame:
    """One look at the run, at the moment the cursor is on; nobody changes the state.

    ``dirty`` holds the blocks changed since the last frame that this screen was given; ``whole`` says that it may be
    any of them: the screen was hidden, or the cursor went back.
    """

    state: RunState
    timeline: Timeline = field(default_factory=Timeline)
    dirty: set[int] = field(default_factory=set)
    whole: bool = True
    sharing: Sharing = field(default_factory=Sharing)
    selected: dict[str, str | int] = field(default_factory=dict)  # kind (request, block, prefix) -> what was chosen
    native: str = ""  # last line that native code wrote to file descriptor 2
    is_replay: bool = False
    share_read: float = 1.0  # of a recording that is looked at
    prompt: PromptKeys | None = None  # the prompt that was asked about last


def is_virtual(state: RunState) -> bool:
    return state.manifest.get("clock") == "virtual"


def has_ended(state: RunState) -> bool:
    return state.status in ("complete", "interrupted", "failed")
