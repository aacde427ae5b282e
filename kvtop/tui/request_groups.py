"""Rows of the table of requests put together: by whose they are, why they wait, or how they begin."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvtop.state.request_rows import EndedRow, LiveRow, Row
from kvtop.tui.text import clean, plural
from kvtop.tui.widgets.lines import Line

GROUP = "\x00group:"
"""Begins the ids of rows that head a group; no id of a request holds a NUL."""
_REASONS = {
    "no_blocks": "not enough blocks", "pinned": "blocks pinned", "no_hole": "no hole", "seats": "all seats taken",
    "budget": "token budget spent", "preempting": "a preemption in this step", "head_of_line": "behind the head",
    "": "not yet considered",
}  # fmt: skip


def _reason(row: Row) -> str:
    """What it waits for; running and ended ones are groups of their own."""
    if isinstance(row, EndedRow):
        return "ended"
    if row.is_running:
        return "running"
    return f"waits: {_REASONS.get(row.reason, clean(row.reason).replace('_', ' '))}"


GROUPS: dict[str, Callable[[Row], str]] = {
    "tenant": lambda row: clean(row.tenant),
    "reason": _reason,
    "prefix": lambda row: row.prefix,
}
"""What ``g`` goes through after none. "": in no group, and last."""


@dataclass(slots=True)
class Group:
    """Rows of one value, in the order they came in."""

    by: str
    value: str
    rows: list[Row] = field(default_factory=list)

    @property
    def id(self) -> str:
        return f"{GROUP}{self.value}"

    def title(self, is_open: bool) -> Line:
        """What it is, how many do what, and what they hold together: a block that two of them hold counts twice."""
        live = [row for row in self.rows if isinstance(row, LiveRow)]
        running = sum(row.is_running for row in live)
        counts = [(running, "running"), (len(live) - running, "waiting"), (len(self.rows) - len(live), "ended")]
        told = ", ".join(f"{number:,} {what}" for number, what in counts if number)
        hits = [(row.cached, row.prompt) for row in self.rows if row.cached is not None and row.prompt]
        asked = sum(prompt for _, prompt in hits)
        line: Line = [("▼ " if is_open else "▶ ", "soft"), (f"{self.by} ", "soft"), (self.value or "none", "title")]
        line += [(f"  {plural(len(self.rows), 'request')}", "strong"), (f": {told}", "text")]
        if held := sum(row.blocks or 0 for row in live):
            line += [(f"  holds {plural(held, 'block')}", "text")]
        if asked:
            line += [(f"  hit {100 * sum(cached for cached, _ in hits) / asked:.0f} %", "text")]
        return line


def grouped(rows: Iterable[Row], by: str) -> list[Group]:
    """Groups by name, those without a value last; in each, rows as they came."""
    groups: dict[str, Group] = {}
    value_of = GROUPS[by]
    for row in rows:
        value = value_of(row)
        groups.setdefault(value, Group(by, value)).rows.append(row)
    return sorted(groups.values(), key=lambda group: (not group.value, group.value))
