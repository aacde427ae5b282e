"""Rows of the prefix tree on screen: which runs are open, in which order; what nobody used again is one row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvtop.state.prefix_tree import TOP, PrefixTree, Runs
from kvtop.tui.text import clean

if TYPE_CHECKING:
    import numpy as np

MIN_DEAD = 4  # leaves never found again, from which they are one row
MOST = 2_000  # rows made

SORTS: dict[str, Callable[[Runs], np.ndarray]] = {
    "saved": lambda runs: runs.all_saved,
    "tokens": lambda runs: runs.all_length,
    "readers": lambda runs: runs.readers,
    "hits": lambda runs: runs.hits,
    "last use": lambda runs: runs.all_last_use,
    "never found": lambda runs: runs.all_never_hit,
}
"""Most first. All but readers and hits count what hangs below a run with it."""


@dataclass(frozen=True, slots=True)
class PrefixRow:
    """``run``: its number in ``Runs``. ``dead``: not it, but leaves below it (TOP: at the top) never found again."""

    id: str
    run: int
    level: int
    is_open: bool | None  # None: nothing hangs below
    dead: tuple[int, ...] = ()


@dataclass(slots=True)
class Openness:
    """What is open: by hand, else what stands at the top."""

    by_hand: dict[str, bool] = field(default_factory=dict)  # by row id

    def __call__(self, row_id: str, level: int) -> bool:
        return self.by_hand.get(row_id, level == 0 and not row_id.startswith("dead"))


def row_id(tree: PrefixTree, run: int) -> str:
    """Of a run: the key of its first block, which stays the same when the run is split."""
    assert tree.pool is not None
    return str(tree.pool.key[int(tree.runs.head[run])])


def prefix_rows(tree: PrefixTree, sort: str, is_open: Openness, *, knows_hits: bool = True) -> list[PrefixRow]:
    """The visible rows from the top down, at most ``MOST``. Without ``knows_hits`` no leaf is known to be dead."""
    runs, weight = tree.runs, SORTS[sort](tree.runs)
    is_dead = knows_hits & (runs.all_saved == 0) & (runs.readers == 0) & (runs.starts[2:] == runs.starts[1:-1])
    rows: list[PrefixRow] = []
    stack = list(reversed(_below(tree, TOP, 0, weight, is_dead, is_open)))
    while stack and len(rows) < MOST:
        row = stack.pop()
        rows.append(row)
        if not row.is_open:
            continue
        if row.dead:
            stack += [PrefixRow(row_id(tree, run), run, row.level + 1, None) for run in reversed(row.dead)]
        else:
            stack += reversed(_below(tree, row.run, row.level + 1, weight, is_dead, is_open))
    return rows


def _below(
    tree: PrefixTree, run: int, level: int, weight: np.ndarray, is_dead: np.ndarray, is_open: Openness
) -> list[PrefixRow]:
    import numpy as np

    runs = tree.runs
    below = runs.below(run)
    ordered = below[np.lexsort((runs.head[below], -runs.all_length[below], -weight[below]))]
    dead = ordered[is_dead[ordered]].tolist()
    if len(dead) < MIN_DEAD:
        dead = []
    rows = []
    for child in (ordered if not dead else ordered[~is_dead[ordered]]).tolist():
        name = row_id(tree, child)
        has_children = len(runs.below(child)) > 0
        rows.append(PrefixRow(name, child, level, is_open(name, level) if has_children else None))
    if dead:
        name = f"dead:{row_id(tree, run) if run != TOP else ''}"
        rows.append(PrefixRow(name, run, level, is_open(name, level), tuple(dead)))
    return rows


def matching_rows(tree: PrefixTree, sort: str, words: str) -> list[PrefixRow]:
    """Every run that a filter fits, without the tree between them; most first.

    A word fits a part of the key (hexadecimal), of the publisher's id or of its tenant; ``tenant:`` only the tenant.
    """
    import numpy as np

    runs, pool = tree.runs, tree.pool
    assert pool is not None
    weight = SORTS[sort](runs)
    found = []
    for run in np.lexsort((runs.head, -weight)).tolist():
        head = int(runs.head[run])
        key = pool.key[head]
        assert key is not None
        texts = (f"{key & 0xFFFFFFFF:08x}", clean(pool.publisher[head]).lower(), clean(pool.tenant[head]).lower())
        if all(_fits(word, texts) for word in words.lower().split()):
            found.append(PrefixRow(row_id(tree, run), run, 0, None))
            if len(found) == MOST:
                break
    return found


def _fits(word: str, texts: tuple[str, str, str]) -> bool:
    if word.startswith("tenant:"):
        return word.removeprefix("tenant:") in texts[2]
    return any(word in text for text in texts)


def way_to(tree: PrefixTree, key: int) -> list[str]:
    """Row ids from the top down to the run that holds the block published as ``key``; [] when it is not there."""
    block = tree.block_of.get(key)
    if block is None:
        return []
    runs, run = tree.runs, int(tree.runs.run_of[block])
    way: list[str] = []
    while run != TOP:
        way.insert(0, row_id(tree, run))
        run = int(runs.parent[run])
    return way
