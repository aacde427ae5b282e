"""Lines as text: which request of which run, then time, step and words of each line."""

from __future__ import annotations

from kvtop.values_in_text import wrap
from kvtop.why.facts import Facts
from kvtop.why.lines import Line
from kvtop.workloads.words import counted

_HEADER = ("time", "step", "")
_NARROWEST = 30  # cells for the words; with less they are not wrapped


def render(facts: Facts, lines: list[Line], width: int | None = None) -> str:
    """The whole text. ``width``: wrap it to that many cells."""
    return "\n".join([title(facts), "", render_lines(lines, width)])


def render_lines(lines: list[Line], width: int | None = None) -> str:
    """Time, step and text of each line; the sequence too, where there are several."""
    several = len({line.seq_id for line in lines}) > 1
    rows = [_cells(line, several) for line in lines]
    sizes = [max(len(row[i]) for row in [*rows, _HEADER]) for i in range(3)]
    parts = _row(_HEADER, "", sizes, several, None)
    for row, line in zip(rows, lines, strict=True):
        parts += _row(row, line.text, sizes, several, width)
    return "\n".join(parts)


def _cells(line: Line, several: bool) -> tuple[str, str, str]:
    time = "-" if line.t_ns is None else f"{line.t_ns / 1e9:,.3f} s"
    return time, "-" if line.step is None else f"{line.step:,}", line.seq_id if several else ""


def _row(cells: tuple[str, str, str], text: str, sizes: list[int], several: bool, width: int | None) -> list[str]:
    left = f"{cells[0].rjust(sizes[0])}  {cells[1].rjust(sizes[1])}  "
    left += f"{cells[2].ljust(sizes[2])}  " if several else ""
    if width is None or width - len(left) < _NARROWEST:
        return [(left + text).rstrip()]
    wrapped = wrap(text, width - len(left), break_long_words=False) or [""]
    return [(left + wrapped[0]).rstrip(), *(" " * len(left) + part for part in wrapped[1:])]


def title(facts: Facts) -> str:
    """Which request of which run."""
    run = facts.run
    words = [str(run[key]) for key in ("workload", "policy", "allocator") if run.get(key)]
    if run.get("num_blocks") and run.get("block_size_tokens"):
        words.append(f"{counted(run['num_blocks'], 'block')} of {counted(run['block_size_tokens'], 'token')}")
    if run.get("clock") == "virtual":
        words.append("simulated time")
    return f"request {facts.name}" + (f"  ({', '.join(words)})" if words else "")
