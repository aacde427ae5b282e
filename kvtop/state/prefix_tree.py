"""The published blocks as a tree, and the tree compressed into runs: chains of blocks without a branch between them.

``PrefixTree`` is kept from the pool's changed blocks alone, so that it costs what happens in the pool, not its size.
``runs`` adds up over all blocks, which NumPy does in a few milliseconds for 100,000 of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtop.state.model import PoolState

if TYPE_CHECKING:
    import numpy as np

TOP = -1  # parent of a block (or run) at the top of the tree
ABSENT = -2  # parent of a block that is not in the tree, or stands for the same position as another one


class PrefixTree:
    """``parent`` by block id: the block it hangs under, TOP or ABSENT.

    ``twin_of``: blocks of other KV groups at a position that already has a block. A block whose parent is not published
    (a sliding window let it go) stands at the top until the parent is back.
    """

    def __init__(self) -> None:
        self.pool: PoolState | None = None
        self.block_of: dict[int, int] = {}  # key -> block
        self.twin_of: dict[int, int] = {}
        self.num_children: list[int] = []
        self.num_published = 0
        self._up: list[int] = []  # ``parent`` as a list: ten times as fast one by one
        self._keys: list[int | None] = []  # as they are in the tree
        self._waiting: dict[int, set[int]] = {}  # parent's key -> blocks at the top that belong below it
        self._touched: set[int] = set()  # blocks whose parent changed since the columns were written
        self._parent: np.ndarray | None = None
        self._runs: Runs | None = None

    @property
    def parent(self) -> np.ndarray:
        """By block, as a column."""
        import numpy as np

        if self._parent is None:
            self._parent = np.array(self._up, np.int64)
        elif self._touched:
            touched = list(self._touched)
            up = self._up
            self._parent[touched] = [up[block] for block in touched]
        self._touched.clear()
        return self._parent

    def update(self, pool: PoolState | None, changed: Iterable[int], *, whole: bool = False) -> None:
        """Follow ``pool``: ``changed`` holds the blocks that may differ from last time; ``whole``: it may be all."""
        if pool is not self.pool:
            self._begin(pool)
            whole = True
        if pool is None:
            return
        key, known = pool.key, self._keys
        blocks = range(pool.num_blocks) if whole else changed
        moved = [block for block in blocks if key[block] != known[block]]
        self._runs = None  # hits and readers may have changed where keys have not
        if not moved:
            return
        self._take_out([block for block in moved if known[block] is not None])
        new = [block for block in moved if key[block] is not None]
        self._enter(new)
        self._touched.update(moved)

    @property
    def runs(self) -> Runs:
        """Of the tree as it is now. Counted from ``pool`` when first asked for after an ``update``."""
        if self._runs is None:
            self._runs = count_runs(self)
        return self._runs

    def depth(self, block: int) -> int:
        """Blocks before it in its chain."""
        up = self._up
        depth, above = 0, up[self.twin_of.get(block, block)]
        while above >= 0:
            depth, above = depth + 1, up[above]
        return depth

    def _begin(self, pool: PoolState | None) -> None:
        num_blocks = pool.num_blocks if pool is not None else 0
        self.pool, self.block_of, self.twin_of, self._waiting = pool, {}, {}, {}
        self._up, self.num_children = [ABSENT] * num_blocks, [0] * num_blocks
        self._keys = [None for _ in range(num_blocks)]
        self.num_published, self._parent = 0, None

    def _enter(self, new: list[int]) -> None:
        assert self.pool is not None
        key, keys, block_of, twin_of = self.pool.key, self._keys, self.block_of, self.twin_of
        parent_key, up, children, waiting = self.pool.parent_key, self._up, self.num_children, self._waiting
        self.num_published += len(new)
        for block in new:
            mine = keys[block] = key[block]
            assert mine is not None
            standing = block_of.setdefault(mine, block)
            if standing != block:
                twin_of[block] = standing
        for block in new:
            parent = block_of.get(parent_key[block])  # type: ignore[arg-type]
            if parent is None or keys[block] in waiting or block in twin_of:  # few of thousands
                if block not in twin_of:
                    self._hang(block)
                continue
            up[block] = parent
            children[parent] += 1

    def _hang(self, block: int) -> None:
        """Under its parent, and under it what has waited for it."""
        assert self.pool is not None
        above, key = self.pool.parent_key[block], self._keys[block]
        parent = None if above is None else self.block_of.get(above)
        if parent is not None:
            self._up[block] = parent
            self.num_children[parent] += 1
        else:
            self._up[block] = TOP
            if above is not None:
                self._waiting.setdefault(above, set()).add(block)
        if key in self._waiting:
            self._adopt(block, key)

    def _adopt(self, block: int, key: int) -> None:
        for below in self._waiting.pop(key, ()):
            if self._up[below] == TOP and self._keys[below] is not None:
                self._up[below] = block
                self.num_children[block] += 1
                self._touched.add(below)

    def _take_out(self, blocks: list[int]) -> None:
        gone: list[tuple[int, int, int]] = []  # block, its key, its parent
        up, keys, children = self._up, self._keys, self.num_children
        self.num_published -= len(blocks)
        for block in blocks:
            key, keys[block] = keys[block], None
            assert key is not None
            if self.twin_of and self.twin_of.pop(block, None) is not None:
                continue
            above, up[block] = up[block], ABSENT
            del self.block_of[key]
            if above >= 0:
                children[above] -= 1
            elif self._waiting:
                self._forget_waiting(block)
            gone.append((block, key, above))
        for block, key, above in gone:
            if self.twin_of or children[block]:
                self._leave_behind(block, key, above)

    def _forget_waiting(self, block: int) -> None:
        for key in [key for key, waiting in self._waiting.items() if block in waiting]:
            self._waiting[key].discard(block)
            if not self._waiting[key]:
                del self._waiting[key]

    def _leave_behind(self, block: int, key: int, above: int) -> None:
        """What hung under ``block`` hangs under its twin, or stands at the top from now on."""
        below = [other for other, parent in enumerate(self._up) if parent == block] if self.num_children[block] else []
        self.num_children[block] = 0
        self._touched.update(below)
        twins = [other for other, first in self.twin_of.items() if first == block]
        if not twins:
            for other in below:
                self._up[other] = TOP
            if below:
                self._waiting.setdefault(key, set()).update(below)
            return
        first, *others = twins
        del self.twin_of[first]
        self.twin_of.update(dict.fromkeys(others, first))
        self.block_of[key] = first
        for other in below:
            self._up[other] = first
        self.num_children[first] = len(below)
        self._touched.add(first)
        self._adopt(first, key)
        self._hang_again(first, above)

    def _hang_again(self, block: int, above: int) -> None:
        """A twin takes the place of a block that left; its parent may have left, too."""
        if above >= 0 and self._up[above] != ABSENT:
            self._up[block] = above
            self.num_children[above] += 1
        else:
            self._hang(block)


@dataclass(slots=True)
class Runs:
    """Columns, one entry a run, all int64; ``order`` and ``starts`` lead from a run to those below it.

    Blocks that several KV groups published at one position count each in ``num_blocks``, their tokens and hits once.
    The columns ``all_...`` include everything below.
    """

    head: np.ndarray  # its first block
    tail: np.ndarray  # its last one: the only one that may have more than one child
    parent: np.ndarray  # run above, or TOP
    run_of: np.ndarray  # by block: its run, or -1
    depth: np.ndarray  # blocks before ``head`` in its chain
    length: np.ndarray  # positions: tokens it holds, in blocks
    num_blocks: np.ndarray
    saved: np.ndarray  # hits since publication, added up over its blocks: tokens saved, in blocks
    hits: np.ndarray  # of the block hit most
    readers: np.ndarray  # tables that hold the block held by most
    last_use: np.ndarray  # step
    never_hit: np.ndarray  # its blocks that nobody has found since they were published
    all_blocks: np.ndarray
    all_length: np.ndarray
    all_saved: np.ndarray
    all_never_hit: np.ndarray
    all_last_use: np.ndarray
    order: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.head)

    def below(self, run: int) -> np.ndarray:
        """Runs directly below ``run`` (TOP: at the top)."""
        return self.order[self.starts[run + 1] : self.starts[run + 2]]

    def blocks(self, run: int) -> np.ndarray:
        """Block ids of a run, in no order."""
        return (self.run_of == run).nonzero()[0]


def _column(values: object) -> np.ndarray:
    """A view of an ``array("q")``: nothing is copied."""
    import numpy as np

    return np.frombuffer(values, np.int64)  # type: ignore[call-overload]


def count_runs(tree: PrefixTree) -> Runs:
    """Complexity: O(blocks · log(longest chain)), in NumPy."""
    import numpy as np

    pool, parent = tree.pool, tree.parent
    num_all = len(parent)
    children = np.bincount(parent[parent >= 0], minlength=num_all)
    in_tree = parent != ABSENT
    up = np.where(parent >= 0, parent, 0)
    is_head = in_tree & ((parent == TOP) | (children[up] != 1)) if num_all else in_tree
    head_of = np.where(is_head | ~in_tree, np.arange(num_all), up)
    while True:
        further = head_of[head_of]
        if np.array_equal(further, head_of):
            break
        head_of = further
    head = is_head.nonzero()[0]
    number = np.full(num_all, -1, np.int64)
    number[head] = np.arange(len(head))
    run_of = np.where(in_tree, number[head_of], -1)
    nodes = in_tree.nonzero()[0]
    runs_of_nodes, count = run_of[nodes], len(head)

    def total(weights: np.ndarray | None = None) -> np.ndarray:
        chosen = None if weights is None else weights[nodes].astype(np.float64)
        return np.bincount(runs_of_nodes, chosen, minlength=count).astype(np.int64)

    def most(values: np.ndarray) -> np.ndarray:
        found = np.zeros(count, np.int64)
        np.maximum.at(found, runs_of_nodes, values[nodes])
        return found

    assert pool is not None or not num_all
    empty = np.zeros(0, np.int64)
    uses, held, last_use = (
        (_column(pool.uses), _column(pool.refcount) - _column(pool.pins), _column(pool.last_use_step))
        if pool is not None
        else (empty, empty, empty)
    )
    if tree.twin_of:
        uses, held, last_use, run_of = _with_twins(tree, uses, held, last_use, run_of)
    tails = nodes[children[nodes] != 1]
    tail = np.zeros(count, np.int64)
    tail[run_of[tails]] = tails
    above = parent[head]
    parent_run = np.where(above >= 0, run_of[above], TOP) if num_all else empty
    length = total()
    order = np.argsort(parent_run, kind="stable")
    starts = np.searchsorted(parent_run[order], np.arange(TOP, count + 1))
    own = {
        "length": length,
        "blocks": np.bincount(run_of[run_of >= 0], minlength=count),
        "saved": total(uses),
        "never_hit": total(uses == 0),
        "last_use": most(last_use),
    }
    depth, sums = _add_up(parent_run, own)
    return Runs(
        head=head,
        tail=tail,
        parent=parent_run,
        run_of=run_of,
        depth=depth,
        length=length,
        num_blocks=own["blocks"],
        saved=own["saved"],
        hits=most(uses),
        readers=most(held),
        last_use=own["last_use"],
        never_hit=own["never_hit"],
        all_blocks=sums["blocks"],
        all_length=sums["length"],
        all_saved=sums["saved"],
        all_never_hit=sums["never_hit"],
        all_last_use=sums["last_use"],
        order=order,
        starts=starts,
    )


def _with_twins(tree: PrefixTree, uses: np.ndarray, held: np.ndarray, last_use: np.ndarray, run_of: np.ndarray):
    """What the first block of a position counts when those of other groups stand for it, too: the most of each."""
    import numpy as np

    others = np.fromiter(tree.twin_of.keys(), np.int64)
    firsts = np.fromiter(tree.twin_of.values(), np.int64)
    columns = []
    for column in (uses, held, last_use):
        joined = column.copy()
        np.maximum.at(joined, firsts, column[others])
        columns.append(joined)
    run_of = run_of.copy()
    run_of[others] = run_of[firsts]
    return (*columns, run_of)


def _add_up(parent: np.ndarray, own: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Depth of each run, and its own columns with those of all runs below: level by level."""
    import numpy as np

    sums = {name: column.copy() for name, column in own.items()}
    depth = np.zeros(len(parent), np.int64)
    levels: list[np.ndarray] = []
    here = (parent == TOP).nonzero()[0]
    order = np.argsort(parent, kind="stable")
    ordered = parent[order]
    while len(here):
        levels.append(here)
        first, last = np.searchsorted(ordered, here), np.searchsorted(ordered, here, side="right")
        counts = last - first
        spread = np.repeat(first - np.concatenate(([0], np.cumsum(counts)[:-1])), counts) + np.arange(counts.sum())
        below = order[spread]
        depth[below] = depth[parent[below]] + own["length"][parent[below]]
        here = below
    for level in reversed(levels[1:]):
        for name, column in sums.items():
            add = np.maximum if name == "last_use" else np.add
            add.at(column, parent[level], column[level])
    return depth, sums
