"""What is drawn: block glyphs and chart characters, with an ASCII stand-in for every one of them.

The map's glyphs are East Asian *neutral*, so that a terminal with wide ambiguous characters keeps its columns.
"""

from __future__ import annotations

import codecs
import os

FRESH, IDLE, USED, PARTIAL, TRANSFER, MANY, WITHHELD = ".", "░", "▪", "▫", "~", "+", "x"
BARS = " ▁▂▃▄▅▆▇█"

_STAND_INS = {
    "░": "o",
    "▪": "#",
    "▫": ":",
    "─": "-",
    "│": "|",
    "┆": ":",
    "—": "-",
    "–": "-",
    "·": "|",
    "…": "~",
    "µ": "u",
    "×": "x",
    "≥": ">",
    "▶": ">",
    "⏸": "=",
    "●": "*",
    "■": "#",
    "▲": "^",
    "▼": "v",
    "↑": "^",
    "↓": "v",
    "→": ">",
    "✓": "+",
    "▁": "_",
    "▂": ".",
    "▃": ":",
    "▄": "-",
    "▅": "=",
    "▆": "+",
    "▇": "*",
    "█": "#",
}
_TABLE = str.maketrans(_STAND_INS)


def to_ascii(text: str) -> str:
    """``text`` with stand-ins for the glyphs above and ``?`` for anything else outside ASCII, cell for cell."""
    if text.isascii():
        return text
    from rich.cells import cell_len

    text = text.translate(_TABLE)
    return "".join(c if c.isascii() else "?" * cell_len(c) for c in text)


def locale_is_utf8() -> bool:
    """Whether the terminal's locale can show the glyphs (LC_ALL, LC_CTYPE, LANG in that order)."""
    name = next((os.environ[key] for key in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(key)), "")
    if "." in name:
        try:
            return codecs.lookup(name.split(".", 1)[1].split("@")[0]).name == "utf-8"
        except LookupError:
            return False
    return False


def bar_chart(values: list[float], width: int, height: int = 1, top: float | None = None) -> list[str]:
    """The last ``width`` values as columns of eighths, ``height`` rows from the top down; zero is blank.

    Newest right. A value above zero always shows; ``top`` is the full height (default: the largest value).
    """
    values = values[-width:] if width > 0 else []
    peak = max(values, default=0.0) if top is None else top
    steps = 8 * height
    levels = [0 if v <= 0 or peak <= 0 else max(1, round(min(1.0, v / peak) * steps)) for v in values]
    pad = " " * (width - len(levels))
    ladder = BARS[0] * steps + BARS + BARS[8] * steps  # of a row, by the level: nothing, eighths, all
    return [pad + "".join([ladder[level + steps - 8 * row] for level in levels]) for row in range(height - 1, -1, -1)]
