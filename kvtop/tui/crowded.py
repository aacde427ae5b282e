"""Figures of attached servers where there is no room for a column each."""

from __future__ import annotations

import re

from kvtop.state.attached_reading import Reading, range_text
from kvtop.state.numbers import Number
from kvtop.tui.text import clean, measured, short
from kvtop.tui.widgets.flow import counted, flow
from kvtop.tui.widgets.lines import Line


def crowded(
    told_ones: list[tuple[Number, Reading]], gone: list[Line], num_gone: int, width: int, height: int
) -> tuple[list[Line], list[Line]]:
    """Figures without columns: all of them, else without causes that are 0, else in short and so many as there is room.

    ``gone``: the line about the ``num_gone`` that are not reported; it comes back, or is a word among the figures.
    """
    some = [(number, reading) for number, reading in told_ones if reading.value or ": " not in number.title]
    for figures in (told_ones, some):
        lines, left = flow(*_sorted_out(figures, brief=False), width, height - len(gone))
        if not left:
            return lines, gone
    return counted(*_sorted_out(some, brief=True), width, height, num_gone), []


def _sorted_out(figures: list[tuple[Number, Reading]], brief: bool) -> tuple[list[Line], dict[str, list[Line]]]:
    """Figures on their own, and those that belong together: ``missed: evicted``, and what a figure is the sum of."""
    alone: list[Line] = []
    groups: dict[str, list[Line]] = {}
    for number, reading in figures:
        group, colon, title = number.title.partition(": ")
        words, truth = _words(title or group, number, reading, brief), _truth(reading)
        if colon:  # they are of one kind: how true they are is said once
            groups.setdefault(f"{group} ({truth})" if truth else group, []).append(words)
            continue
        style = "warn" if is_less(reading) else "faint"
        alone.append([*words, (f" {truth}", style)] if truth else words)
        if reading.by:
            groups[group] = parts_of(reading)
    return alone, groups


def _words(title: str, number: Number, reading: Reading, brief: bool) -> Line:
    """A figure without a column of its own; that it is of blocks goes without saying."""
    text = range_text(reading.lo, reading.hi) if reading.lo is not None else measured(reading.value, number.unit)
    if brief and number.unit == "tokens" and isinstance(reading.value, int | float):
        text = short(reading.value)
    return [(f"{title} ", "soft"), (text.removesuffix(" blocks"), value_style(reading))]


def _truth(reading: Reading) -> str:
    """In a word; "": exact, which goes without saying."""
    return re.split("[ :,]", reading.truth)[0].replace("exact", "")


def parts_of(reading: Reading) -> list[Line]:
    """What a figure is the sum of."""
    return [[(f"{clean(name).replace('_', ' ')} {short(value)}", "text")] for name, value in reading.by]


def parts_text(reading: Reading) -> str:
    """What a figure is the sum of, where the server tells: ``no blocks 3, seats 1``."""
    return ", ".join(text for ((text, _),) in parts_of(reading))


def is_less(reading: Reading) -> bool:
    """It is old, left over, or not of all engines."""
    return reading.truth.startswith(("stale", "still", "partial"))


def value_style(reading: Reading) -> str:
    """What is old, or stands still, is dimmed."""
    return "faint" if reading.truth.startswith(("stale", "still")) else "text"
