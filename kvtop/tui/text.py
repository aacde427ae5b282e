"""Text for the screen: external strings made harmless, numbers short enough never to wrap."""

from __future__ import annotations

import unicodedata

from rich.cells import cell_len, set_cell_size

from kvtop.values_in_text import kept_whole

_DROPPED = frozenset(("Cc", "Cf", "Cs", "Co", "Cn"))  # controls, bidi and zero width, surrogates, private, unassigned
_SPACES = frozenset("\t\n\r\x0b\x0c\x85\u2028\u2029")


def clean(text: object) -> str:
    """``text`` on one line without anything that could move the cursor, reorder or hide what is shown."""
    text = str(text)
    if text.isascii() and text.isprintable():
        return text
    kept = (" " if c in _SPACES else c for c in text)
    return "".join(c for c in kept if unicodedata.category(c) not in _DROPPED and not _is_variation(c))


def _is_variation(char: str) -> bool:
    return "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"


def fit(text: str, width: int, align: str = "left") -> str:
    """``text`` in exactly ``width`` cells: padded, or cut with an ellipsis at the end, before a value or behind it."""
    length = cell_len(text)
    if length > width:
        return "" if width <= 0 else set_cell_size(text[: kept_in(text, width - 1)] + "…", width)
    pad = " " * (width - length)
    return pad + text if align == "right" else text + pad


def fit_ends(text: str, width: int) -> str:
    """As ``fit``, but the last word stays: of several names that begin alike, it tells which one this is."""
    first, _, last = text.rpartition(" ")
    room = width - cell_len(last) - 1
    if cell_len(text) <= width or room < 2 or not first:
        return fit(text, width)
    return fit(f"{fit(first, room).rstrip()} {last}", width)


def kept_in(text: str, width: int) -> int:
    """How many characters of ``text`` stay where it is cut to ``width`` cells; no value is split from its unit."""
    return kept_whole(text, len(set_cell_size(text, width)))


def whole(number: int) -> str:
    """12345 -> 12,345."""
    return f"{number:,}"


def short(number: float) -> str:
    """At most five characters: 999, 1.2k, 12.3k, 123k, 1.2M ..."""
    for unit in ("", "k", "M", "G", "T"):
        if abs(number) < 999.5:
            return f"{number:.0f}{unit}" if not unit or abs(number) >= 99.95 else f"{number:.1f}{unit}"
        number /= 1000
    return f"{number:.0f}P"


def duration(ns: float | None) -> str:
    """At most seven characters with the unit: 850 ns, 85.2 µs, 182 ms, 1.41 s, 2m05s, 3h02m; ``-`` for None."""
    if ns is None:
        return "-"
    for limit, scale, unit in ((999.5, 1, "ns"), (999.5e3, 1e3, "µs"), (999.5e6, 1e6, "ms"), (99.95e9, 1e9, "s")):
        if ns < limit:
            return f"{ns:.0f} ns" if scale == 1 else f"{_three_digits(ns / scale)} {unit}"
    seconds = round(ns / 1e9)
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"


def _three_digits(value: float) -> str:
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def seconds(ns: int) -> str:
    """An age in at most six characters: 0.4s, 12.3s, 2m05s, 3h02m."""
    tenths = max(0, ns) // 100_000_000
    return f"{tenths // 10}.{tenths % 10}s" if tenths < 1000 else duration(ns)


def clock(ns: int) -> str:
    """Run time as h:mm:ss."""
    total = max(0, ns) // 1_000_000_000
    return f"{total // 3600}:{total % 3600 // 60:02d}:{total % 60:02d}"


def percent(part: float, total: float) -> str:
    """``part`` of ``total``; ``-`` when the total is 0. Never 100 % unless it is all, never 0 % unless it is none."""
    if total <= 0:
        return "-"
    share = 100 * part / total
    if 0 < share < 0.05 or 99.95 <= share < 100:
        return "<0.1 %" if share < 1 else ">99.9 %"
    return f"{share:.1f} %" if share < 100 else f"{share:.0f} %"


def measured(value: float | str | None, unit: str) -> str:
    """A value of ``state.numbers`` with its unit; ``not known`` for None."""
    if value is None:
        return "not known"
    if isinstance(value, str):
        return clean(value) or "nobody"
    match unit:
        case "ratio":
            return percent(value, 1)
        case "ns":
            return duration(value)
        case "count" | "requests":
            return f"{value:,.0f}"
    return f"{value:,.0f} {unit}" if value >= 100 or value == int(value) else f"{value:.3g} {unit}"


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def join_fitting(parts: list[str], width: int, separator: str = " ") -> str:
    """As many of ``parts`` as fit into ``width`` cells, then how many are left out: ``r1 r2 +7``."""
    line = ""
    for i, part in enumerate(parts):
        longer = part if not line else line + separator + part
        rest = len(parts) - i - 1
        room = width - (len(f" +{rest:,}") if rest else 0)
        if cell_len(longer) > room:
            left_out = f"+{len(parts) - i:,}"
            return fit(f"{line} {left_out}" if line else fit(part, max(1, width)), width).rstrip()
        line = longer
    return line
