"""What the cells of a block map show: a number for each cell, for all cells at once, in NumPy.

A *look* says what is shown of a block: who shares it, who owns it, how old it is, how often it was found. The glyph
carries it first, colour second. Every look has its glyphs, styles and legend here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

from kvtop.state.model import FRESH, IDLE, IN_TRANSFER, NOT_KNOWN, USED, WITHHELD, PoolState, RunState
from kvtop.tui import glyphs
from kvtop.tui.widgets.lines import Line

if TYPE_CHECKING:
    import numpy as np

# Codes. 2..9 are refcounts; DIGITS + n shows the digit n, DIGITS + 10 more than nine.
_FRESH, _USED, _MANY, _IDLE, _PARTIAL, _TRANSFER, NOTHING = 0, 1, 10, 11, 12, 13, 14
_DIGITS, _UNKNOWN, _WITHHELD = 16, 27, 28
_CODES = 32
LIT = 0x400  # a block of the selected request or prefix is in the cell
NUM_HUES = 8
_HUE = _CODES  # code + _HUE * hue; hue 0: none
_OUTSIDE = 7  # state of what is no block, behind those of blocks

_GLYPHS = {
    _FRESH: glyphs.FRESH,
    _IDLE: glyphs.IDLE,
    _USED: glyphs.USED,
    _PARTIAL: glyphs.PARTIAL,
    _TRANSFER: glyphs.TRANSFER,
    _MANY: glyphs.MANY,
    NOTHING: " ",
    **{n: str(n) for n in range(2, 10)},
    **{_DIGITS + n: str(n) for n in range(10)},
    _DIGITS + 10: glyphs.MANY,
    _UNKNOWN: "?",
    _WITHHELD: glyphs.WITHHELD,
}
_STYLES = {
    _FRESH: "fresh", _IDLE: "idle", _USED: "used", _PARTIAL: "used", _TRANSFER: "transfer", _MANY: "many", NOTHING: "",
    **{n: "shared" if n < 4 else "shared4" for n in range(2, 10)},
    **{_DIGITS + n: f"heat{(n + 1) // 2}" for n in range(11)},
    _UNKNOWN: "faint", _WITHHELD: "faint",
}  # fmt: skip
_LETTERS = "abcdefgh"

LOOKS = ("refcount", "owner", "age", "heat")
TOLD_LOOKS = ("cached", "age")
"""Of attached servers: who holds a block, how many, and how often it was found they do not report."""


def hue_of(seq_id: str) -> int:
    """1..NUM_HUES: the same for a request and its branches, in every run and on every screen."""
    return crc32(seq_id.partition("#")[0].encode()) % NUM_HUES + 1


def glyph_of(code: int, letters: bool = False) -> str:
    """``letters``: owners as letters, where there are no colours to tell them apart."""
    base, hue = code % _CODES, (code & ~LIT) // _HUE
    return _LETTERS[hue - 1] if letters and hue and base in (_USED, _PARTIAL) else _GLYPHS.get(base, " ")


def style_of(code: int) -> str:
    hue = (code & ~LIT) // _HUE
    return f"owner{hue}" if hue else _STYLES.get(code % _CODES, "")


def looks_of(state: RunState) -> tuple[str, ...]:
    """The looks that the log tells of."""
    return LOOKS if state.attached is None else TOLD_LOOKS


def legend(look: str, one_block: bool, letters: bool = False, withheld: bool = False, fresh: str = "fresh") -> Line:
    """What the glyphs of a look mean. ``withheld``: there are such blocks; ``fresh``: what those without content are
    called."""
    base: Line = [(f"{glyphs.FRESH} ", "fresh"), (f"{fresh}  ", "soft")]
    if withheld:
        base += [(f"{glyphs.WITHHELD} ", "faint"), ("withheld  ", "soft")]
    if look in ("refcount", "owner"):
        base += [(f"{glyphs.IDLE} ", "idle"), ("idle  ", "soft")]
        owned = ("a-h", "owner1") if letters else (glyphs.USED, "used" if look == "refcount" else "owner1")
        base += [(f"{owned[0]} ", owned[1]), ("used  " if look == "refcount" else "used, by owner  ", "soft")]
        if not letters:
            base += [(f"{glyphs.PARTIAL} ", owned[1]), ("partly filled  ", "soft")]
        most = "shared by n" if one_block else "shared by n at most"
        return [*base, ("2", "shared"), ("-", "soft"), ("9 ", "shared4"), (f"{glyphs.MANY} ", "many"), (most, "soft")]
    if look == "heat":
        what = "times found since published" if one_block else "times found at most"
        base += [("0", "heat0"), (" never ", "soft"), ("1", "heat1"), ("-", "soft"), ("9 ", "heat5")]
        base += [(f"{glyphs.MANY} ", "heat5"), (what, "soft"), (f"  {glyphs.USED} ", "used"), ("unpublished", "soft")]
        return base
    what = "" if one_block else ", the oldest"
    base += [("0", "heat0"), (" <2 steps old ", "soft"), ("1", "heat1"), (" <4 ", "soft"), ("2", "heat1")]
    return [*base, (" <8 … ", "soft"), ("9", "heat5"), (f" <1,024 {glyphs.MANY} more{what}", "soft")]


@dataclass(slots=True)
class Hues:
    """The hue of each block's first owner, kept from the changed blocks."""

    pool: PoolState | None = None
    hues: np.ndarray | None = None

    def update(self, pool: PoolState, changed: set[int], whole: bool) -> np.ndarray:
        import numpy as np

        if pool is not self.pool or self.hues is None:
            self.pool, whole = pool, True
            self.hues = np.zeros(pool.num_blocks, np.uint8)
        known: dict[str, int] = {}
        owners, hues = pool.owners, self.hues
        for block in range(pool.num_blocks) if whole else changed:
            names = owners[block]
            if not names:
                hues[block] = 0
                continue
            hue = known.get(names[0])
            if hue is None:
                hue = known[names[0]] = hue_of(names[0])
            hues[block] = hue
        return hues


def cell_codes(
    pool: PoolState,
    order: np.ndarray | None,
    density: int,
    look: str,
    step: int,
    hues: np.ndarray | None = None,
    published: np.ndarray | None = None,
    lit: np.ndarray | None = None,
) -> np.ndarray:
    """The codes of all cells, ``density`` blocks each, in ``order`` (block ids; None: by block id).

    A mixed cell shows what most of its blocks are; refcounts and hits are the highest, an age the oldest. The look
    ``cached`` shows nothing but what they are. ``hues`` is needed for the look ``owner``, ``published`` for ``heat``;
    ``lit``: blocks to mark. Complexity: O(blocks), in NumPy.
    """
    import numpy as np

    num_blocks = pool.num_blocks
    num_cells = -(-num_blocks // density)
    first = np.arange(0, num_cells * density, density)
    cell = np.arange(num_cells).repeat(density)

    def laid_out(column: np.ndarray, outside: int) -> np.ndarray:
        """A column of the pool, cell after cell; ``outside``: for what the last cell has too much."""
        found = np.full(num_cells * density, outside, column.dtype)
        found[:num_blocks] = column if order is None else column[order]
        return found

    def highest(column: np.ndarray) -> np.ndarray:
        """By cell. Rows of a dozen would take several times as long one by one."""
        return np.maximum.reduceat(column, first) if num_cells else column

    states = laid_out(np.frombuffer(pool.state, np.uint8), _OUTSIDE)
    by_state = np.bincount(cell * (_OUTSIDE + 1) + states, minlength=num_cells * (_OUTSIDE + 1))
    counts = by_state.reshape(num_cells, _OUTSIDE + 1).T[[IN_TRANSFER, USED, IDLE, FRESH, WITHHELD]]
    most = np.argmax(counts, axis=0)  # on a tie the first of these
    codes = np.array([_TRANSFER, _USED, _IDLE, _FRESH, _WITHHELD], np.int64)[most]
    used = most == 1
    refcount = highest(laid_out(_column(pool.refcount), 0))
    if look in ("refcount", "owner"):
        codes = np.where(used, np.clip(refcount, 1, _MANY), codes)
        not_full = (states == USED) & (laid_out(_column(pool.filled), 0) < pool.block_size)
        partly = np.bincount(cell[not_full], minlength=num_cells)
        codes[used & (refcount <= 1) & (2 * partly > counts[1])] = _PARTIAL
    elif look == "heat":
        assert published is not None, "hits are those since publication"
        uses = np.where(laid_out(published, 0), laid_out(_column(pool.uses), 0), NOT_KNOWN)
        hits = highest(uses)
        codes = np.where((hits >= 0) & (most < 3), _DIGITS + np.clip(hits, 0, 10), codes)
    elif look == "age":
        since = laid_out(_column(pool.since_step), NOT_KNOWN)
        known = (states != FRESH) & (states != WITHHELD) & (states != _OUTSIDE) & (since != NOT_KNOWN)
        codes = np.where(most < 3, _ages(highest(np.where(known, step - since, NOT_KNOWN))), codes)
    if look == "owner" and hues is not None:
        codes = codes + _HUE * _majority_hue(laid_out(hues, 0), cell, num_cells, used & (refcount <= 1))
    if lit is not None:
        codes = codes | np.where(highest(laid_out(lit, 0)), LIT, 0)
    return codes


def _ages(age: np.ndarray) -> np.ndarray:
    """Codes of the ages of cells, in steps: the digit n is an age below 2 ** (n + 1). NOT_KNOWN: of none in it."""
    import numpy as np

    digit = np.log2(np.clip(age, 1, None)).astype(np.int64)
    return np.where(age >= 0, _DIGITS + np.clip(digit, 0, 10), _UNKNOWN)


def _majority_hue(hues: np.ndarray, cell: np.ndarray, num_cells: int, where: np.ndarray) -> np.ndarray:
    """By cell; 0 where no block has one, and where ``where`` is not."""
    import numpy as np

    counts = np.bincount(cell * (NUM_HUES + 1) + hues, minlength=num_cells * (NUM_HUES + 1))
    counts = counts.reshape(num_cells, -1)[:, 1:]
    found = np.where(counts.any(axis=1), counts.argmax(axis=1) + 1, 0)
    return np.where(where, found, 0)


def _column(values: object) -> np.ndarray:
    import numpy as np

    return np.frombuffer(values, np.int64)  # type: ignore[call-overload]
