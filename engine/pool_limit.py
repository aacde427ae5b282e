"""A limit below the size of the pool: which blocks it withholds, and how many it is still short of.

The memory stays allocated. Blocks are withheld as they become available, so a limit below what is in use takes effect
bit by bit while sequences give blocks back; nobody is preempted for it. Raised, it gives blocks back at once, the
last one withheld first: what was fresh is then where it was.
"""

from __future__ import annotations

from collections import OrderedDict

from kvtop.engine.errors import InvariantError


class PoolLimit:
    """Of ``num_blocks`` blocks, ``size`` may be in circulation; ``owed`` are to be withheld and cannot be yet."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = self.size = num_blocks
        self.withheld: dict[int, None] = {}  # in the order in which they were taken
        self.owed = 0

    def set(self, size: int, fresh: OrderedDict[int, None]) -> list[int]:
        """A new limit. Returns the withheld blocks that are fresh again; ``owed`` says how many are to be taken."""
        self.size = size
        gone = self.num_blocks - size
        back = [self.withheld.popitem()[0] for _ in range(len(self.withheld) - gone)]
        for block in back:
            fresh[block] = None
        self.owed = gone - len(self.withheld)
        return back

    def take_fresh(self, fresh: OrderedDict[int, None]) -> list[int]:
        """Withhold fresh blocks, those that would be used last first."""
        blocks = [fresh.popitem()[0] for _ in range(min(self.owed, len(fresh)))]
        self.take(blocks)
        return blocks

    def take(self, blocks: list[int]) -> None:
        """Withhold ``blocks``, which are nowhere else any more."""
        self.withheld.update(dict.fromkeys(blocks))
        self.owed -= len(blocks)

    def check(self) -> None:
        """Raises InvariantError when the counts disagree."""
        if len(self.withheld) + self.owed != self.num_blocks - self.size or self.owed < 0:
            raise InvariantError(
                f"{len(self.withheld)} blocks are withheld and {self.owed} owed, the limit is {self.size} of "
                f"{self.num_blocks}"
            )
