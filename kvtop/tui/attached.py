"""How figures of attached servers look: with their truth beside them, stale ones dimmed, missing ones with a reason."""

from __future__ import annotations

import re

from kvtop.state.attached import Attached, Row
from kvtop.state.attached_numbers import LATENCIES, read_number
from kvtop.state.attached_reading import Reading, no_events, range_text
from kvtop.state.attached_sums import added_counter, servers_part
from kvtop.state.model import RunState
from kvtop.state.numbers import NUMBERS, PARTS, Number
from kvtop.state.session_status import CONNECTING, is_simulated, status_of
from kvtop.tui import glyphs
from kvtop.tui.crowded import crowded, is_less, parts_of, value_style
from kvtop.tui.frame import Frame
from kvtop.tui.glyphs import bar_chart
from kvtop.tui.text import clean, duration, fit_ends, measured, plural, short, whole
from kvtop.tui.widgets.flow import counted
from kvtop.tui.widgets.lines import Line, cut, width_of

COLUMN = 38  # cells of a number with its truth
CHARTS: dict[str, tuple[str, str]] = {
    "Pool": ("used_share", "usedchart"),
    "Queue": ("waiting", "warn"),
    "Throughput": ("generation_tokens", "decode"),
}
"""Panel -> column of ``Row`` it draws, and its style."""


def told(state: RunState, number: Number) -> tuple[str, str]:
    """A number in words, and how true it is ("": exact, of an engine of our own)."""
    if state.attached is None:
        return measured(number.read(state), number.unit), ""
    reading = read_number(state, number.name)
    if reading.value is None:
        return f"not reported: {reading.missing}", ""
    if reading.lo is not None:
        return range_text(reading.lo, reading.hi), reading.truth
    return measured(reading.value, number.unit), reading.truth


def number_lines(frame: Frame, title: str, names: tuple[str, ...], width: int, height: int) -> list[Line]:
    """What the panel ``title`` says of attached servers: its numbers, a chart where there is room, what is missing."""
    state = frame.state
    assert state.attached is not None
    readings = {name: read_number(state, name) for name in names}
    told_ones = [(NUMBERS[name], reading) for name, reading in readings.items() if reading.value is not None]
    columns = max(1, min(4, (width + 2) // COLUMN))
    while columns > 1 and any(_room_for(reading) >= width // columns for _, reading in told_ones):
        if len(told_ones) > (columns - 1) * (height - 1):
            break  # in fewer columns some would not be seen at all
        columns -= 1
    cell = width // columns
    cells = [_cell(number, reading, cell - 1 if columns > 1 else width) for number, reading in told_ones]
    out = [_beside(cells[start : start + columns], cell) for start in range(0, len(cells), columns)]
    gone = _missing(readings)
    gone = gone if len(out) + len(gone) <= height else [_missing_at_all(readings)] if gone else []
    if len(out) + len(gone) > height:
        out, gone = crowded(told_ones, gone, len(readings) - len(told_ones), width, height)
    else:
        by = {number.title: parts_of(reading) for number, reading in told_ones if reading.by}
        out += counted([], by, width, height - len(out) - len(gone))
    if title in CHARTS and (room := height - len(out) - len(gone)) >= 1:
        out += _chart(state.attached, *CHARTS[title], width, min(room, 4))
    return [*out[: max(1, height - len(gone))], *gone][:height]


def _cell(number: Number, reading: Reading, width: int) -> Line:
    text = range_text(reading.lo, reading.hi) if reading.lo is not None else measured(reading.value, number.unit)
    style = value_style(reading)
    label = f"{fit_ends(number.title, 14 if width >= 34 else 11)} "
    line: Line = [(label, "soft"), (f"{text:>13}", style)]
    truth: Line = [(f"  {reading.truth}", "warn" if is_less(reading) else "faint")]
    if width_of(line) + width_of(truth) <= width:
        return [*line, *truth]
    # No room: a figure that is less than it seems still says so, in a word.
    word: Line = [(f" {re.split('[ :,]', reading.truth)[0]}", "warn")] if is_less(reading) else []
    room = max(0, width - width_of(word))
    if width_of(line) > room:  # the name gives way to the figure
        line = [(f"{fit_ends(number.title, max(0, room - width_of([(text, '')]) - 1))} ", "soft"), (text, style)]
    return [*cut(line, room), *word]


def _room_for(reading: Reading) -> int:
    """Cells of a figure whose truth must not be left out."""
    return 30 + len(reading.truth) if is_less(reading) else 0


def _beside(cells: list[Line], width: int) -> Line:
    line: Line = []
    for index, cell in enumerate(cells):
        line += [*cell, (" " * max(0, width - width_of(cell)), "")] if index < len(cells) - 1 else cell
    return line


def _missing(readings: dict[str, Reading]) -> list[Line]:
    """One line a reason, with the numbers it is the reason for."""
    reasons: dict[str, list[str]] = {}
    for name, reading in readings.items():
        if reading.value is None:
            reasons.setdefault(reading.missing, []).append(NUMBERS[name].title)
    return [
        [("n/a ", "warn"), (f"{', '.join(titles[:3])}{', ...' if titles[3:] else ''}: {clean(why)}", "soft")]
        for why, titles in reasons.items()
    ]


def _missing_at_all(readings: dict[str, Reading]) -> Line:
    titles = [NUMBERS[name].title for name, reading in readings.items() if reading.value is None]
    return [("n/a ", "warn"), (f"{len(titles)} (e says why): {', '.join(titles)}", "soft")]


def _column(attached: Attached, name: str, width: int) -> list[float]:
    """The last looks' ``name``; [] where none reports it."""
    index = Row._fields.index(name)
    values = [row[index] for row in list(attached.rows)[-width:]]
    return [] if all(value is None for value in values) else [float(value or 0.0) for value in values]


def _chart(attached: Attached, column: str, style: str, width: int, height: int) -> list[Line]:
    values = _column(attached, column, width)
    if not values:
        return []
    rows = bar_chart(values, width, height, top=1.0) if column == "used_share" else bar_chart(values, width, height)
    return [[(row, style)] for row in rows]


def look_lanes(frame: Frame, width: int, height: int) -> list[Line]:
    """A column a look, in place of a column a step."""
    attached = frame.state.attached
    assert attached is not None
    lanes = (("in use", "used_share", "usedchart"), ("runs", "running", "good"), ("waits", "waiting", "warn"),
             ("tok/s", "generation_tokens", "decode"))  # fmt: skip
    out: list[Line] = []
    for label, column, style in lanes:
        chart = _chart(attached, column, style, max(1, width - 7), 1)
        out.append([(f"{label:<7}", "soft"), *(chart[0] if chart else [("not reported", "soft")])])
    steps = "a column a look at the server; what its single steps did is not reported"
    return [*out, [(steps, "soft")]][:height]


def no_blocks(state: RunState) -> str:
    """Why no cached block is shown: what is missing to know them, or that there is none."""
    why = no_events(state)
    return f"not reported: {why}" if why else "no block is cached, as far as KV events tell"


def no_regrets(state: RunState) -> str:
    """Why nothing is shown as wanted again."""
    why = no_events(state)
    tokens = None if state.attached is None else added_counter(state.attached, "regretted_tokens").value
    if why and tokens is not None:  # it counts them, and does not say which they were
        return f"{measured(tokens, 'tokens')} wanted again in all; of which prefixes is not reported"
    return f"not reported: {why}" if why else "nothing that was evicted has been wanted again"


def block_legend(state: RunState) -> Line:
    """Of the logical map."""
    if state.pool is None:
        return [(no_blocks(state), "soft")]
    return [
        (f"{glyphs.IDLE} ", "idle"),
        ("cached (in use or not is not reported)  ", "soft"),
        (f"{glyphs.FRESH} ", "fresh"),
        ("nothing cached (free, or in use)", "soft"),
    ]


def latency_lines(frame: Frame, width: int, height: int) -> list[Line]:
    """A row a latency: ranges of p50, p95 and p99, and n; then what is missing."""
    state = frame.state
    gone: dict[str, list[str]] = {}
    less: dict[str, list[str]] = {}
    rows: list[tuple[str, str, str, list[tuple[str, str]]]] = []  # name, n and its style, texts and styles of the parts
    for key in LATENCIES:
        n = read_number(state, f"latency.{key}_n")
        if not isinstance(n.value, int | float):
            gone.setdefault(n.missing, []).append(key)
            continue
        if n.truth.startswith("partial"):
            less.setdefault(n.truth, []).append(key)
        found = [read_number(state, f"latency.{key}_{part}_ns") for part in PARTS]
        texts = ["-" if r.lo is None else range_text(r.lo, r.hi).replace(" ", "") for r in found]
        name = "queue" if key == "queue" else key.upper()
        rows.append((name, short(n.value), value_style(n), list(zip(texts, map(value_style, found), strict=True))))
    last = max([len("n"), *(len(n) for _, n, _, _ in rows)]) + 1
    longest = max([3, *(len(text) for *_, parts in rows for text, _ in parts)]) + 1
    shown = next((some for some in ((0, 1, 2), (0, 2)) if 5 + longest * len(some) + last <= width), (0,))
    cell = max(longest, (width - 5 - last) // len(shown))
    head = "".join(f"{PARTS[i]:>{cell}}" for i in shown)
    out: list[Line] = [[(f"{'':<5}{head}{'n':>{last}}", "faint")]]
    for name, n, n_style, parts in rows:
        cells = [(f"{parts[i][0]:>{cell}}", parts[i][1]) for i in shown]
        out.append([(f"{name:<5}", "title"), *cells, (f"{n:>{last}}", n_style)])
    notes: list[Line] = [[(truth, "warn"), (f": {', '.join(keys)}", "soft")] for truth, keys in less.items()]
    out = [*out[: max(1, height - len(notes))], *notes]
    out += [[("n/a ", "warn"), (f"{', '.join(keys)}: {clean(why)}", "soft")] for why, keys in gone.items()]
    return out[:height]


def source_lines(frame: Frame, height: int) -> list[Line]:
    """Each server and each rank of KV events: whether it can be trusted."""
    state, attached = frame.state, frame.state.attached
    assert attached is not None
    out: list[Line] = []
    for server in attached.servers.values():
        out.append([("metrics  ", "soft"), (clean(server.name), "text"), (f"  {server.kind or '-'}  ", "soft")])
        if server.problem:
            out[-1] += [(clean(server.problem), "bad")]
        elif server.t_ok_ns is None:
            out[-1] += [("no answer yet", "warn")]
        else:
            age = f"{max(0, state.t_ns - server.t_ok_ns) / 1e9:.0f} s old"
            out[-1] += [(f"ok, {age}, {duration(server.took_ns)}", "good")]
        for engine in server.engines.values() if len(server.engines) > 1 else ():
            used = engine.last.gauges.get("usage")
            share = "-" if used is None else f"{100 * used:.1f} %"
            out.append([(f"  engine {clean(engine.last.engine)}  {share} in use", "soft")])
    for stream in attached.streams.values():
        name: Line = [("events   ", "soft"), (f"{clean(stream.source)} rank {stream.rank}", "text")]
        out.append([*name, (f"  lag {duration(stream.lag_ns)}", "soft")])
        last = f"sequence {stream.last_seq:,}" if stream.last_seq >= 0 else "no message yet"
        line: Line = [(f"  {last}  ", "soft"), (f"{whole(stream.num_cached)} cached  ", "text")]
        trouble = stream.problem or stream.partial
        line += [(clean(trouble), "warn")] if trouble else [("whole", "good")]
        if stream.num_orphans:
            line += [(f"  {1 - stream.num_orphans / max(1, stream.num_cached):.0%} of the tree hangs together", "warn")]
        out.append(line)
    for endpoint, problem in attached.troubles.items():
        out.append([("events   ", "soft"), (f"{clean(endpoint)}: ", "text"), (clean(problem), "bad")])
    if not attached.streams and not attached.troubles:
        out.append([("events   ", "soft"), (no_events(state), "soft")])
    return out[:height]


def source_note(state: RunState) -> Line:
    """For titles: what makes the figures less than they seem."""
    attached = state.attached
    if attached is None or status_of(state) == CONNECTING:  # the header says so
        return []
    if attached.is_stale(state.t_ns):
        age = attached.age_ns(state.t_ns)
        return [("no answer" if age is None else f"stale {age / 1e9:.0f} s", "warn")]
    if any(engine.stands_still for engine in attached.engines):
        return [("stands still", "warn")]
    if part := servers_part(attached):
        return [(f"partial: {part}", "warn")]
    return [("events partial", "warn")] if attached.partial else []


def badge(state: RunState) -> Line:
    """For the header."""
    attached = state.attached
    if attached is None:
        return []
    note = source_note(state)
    engines: Line = [(f"{plural(len(attached.engines), 'engine')} ", "soft")] if attached.engines else []
    simulated: Line = [(" SIMULATED ", "badge"), (" ", "")] if is_simulated(state) else []
    return [*simulated, (" ATTACHED ", "badge"), (" ", ""), *(note or engines), (" ", "")]
