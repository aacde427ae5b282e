"""What a number means where it is shown: its formula, and where it is from."""

from __future__ import annotations

from kvtop.attach.metric_names import spelled
from kvtop.engine.events import EngineSample
from kvtop.state.attached import Attached
from kvtop.state.attached_numbers import figure, read_number
from kvtop.state.model import RunState
from kvtop.state.numbers import Number
from kvtop.tui.crowded import parts_text


def meaning(state: RunState, number: Number) -> tuple[str, str]:
    """Of a number: its formula, and where it is from and how true it is."""
    if state.attached is None:
        return number.formula, number.source
    reading, read = read_number(state, number.name), figure(number.name)
    if reading.value is None:
        return number.formula, "not reported"
    by = parts_text(reading)
    said = ", ".join(filter(None, (reading.truth, _metrics(state.attached, read.sources))))
    return read.formula or number.formula, f"{said}{f'; {by}' if by else ''}"


def _metrics(attached: Attached, sources: tuple[tuple[str, ...], ...]) -> str:
    """The servers' metrics that a figure is from, as they stand at /metrics; "": none."""
    found: dict[str, None] = {}
    for server in attached.servers.values():
        for engine in server.engines.values():
            row = next((row for row in sources if all(_tells(engine.last, name) for name in row)), ())
            found |= dict.fromkeys(spelled(name, server.kind) for name in row)
    return " and ".join(filter(None, found))


def _tells(sample: EngineSample, name: str) -> bool:
    if name.endswith("/"):
        return any(other.startswith(name) for other in (*sample.gauges, *sample.counters))
    return any(name in table for table in (sample.gauges, sample.counters, sample.histograms, sample.info))
