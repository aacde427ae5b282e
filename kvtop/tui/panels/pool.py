"""Pool: how full, of what, and for how long?"""

from __future__ import annotations

from collections.abc import Callable

from kvtop.state.model import FRESH, IDLE, IN_TRANSFER, USED, WITHHELD, PoolState, RunState
from kvtop.state.windows import RUNWAY_WINDOW_NS, runway
from kvtop.tui import glyphs
from kvtop.tui.frame import Frame
from kvtop.tui.panels.base import TextPanel
from kvtop.tui.stats import levels
from kvtop.tui.text import clean, duration, fit, percent, plural, short, whole
from kvtop.tui.widgets.lines import Line, width_of

WINDOW_S = RUNWAY_WINDOW_NS // 1_000_000_000
_CHART = "used "


class PoolPanel(TextPanel):
    """Occupancy as four numbers, never one; how long the rest lasts, and who is next to lose its blocks."""

    TITLE = "Pool"
    QUESTION = "how full, and how long?"
    HELP = """\
used + idle + fresh = all blocks, less those withheld by a limit that was
set while the run goes on (of a pool that still shrinks: so many of all
it is to withhold). shared: used blocks that two or more
sequences hold (counted in used). idle blocks are evicted when no fresh
one is left.
tail waste   slots of used blocks that hold nothing: the last block of a
             sequence is rarely full
runway       how long fresh and idle blocks last at the pace at which used
             ones grew in the last 10 s: then somebody is preempted. It
             ends sooner or later than that when the pace changes
decodes      what the decoding sequences take a second if none ends
victim       who would lose its blocks first
Enter leads to the map of all blocks."""

    NUMBERS = (
        "pool.num_blocks", "pool.used_share", "pool.used_blocks", "pool.cached_blocks", "pool.shared_blocks",
        "pool.idle_blocks", "pool.fresh_blocks", "pool.in_transfer_blocks", "pool.withheld_blocks",
        "pool.usable_blocks", "pool.token_fill",
        "pool.tail_waste_slots", "runway.ns", "runway.reclaimable_blocks", "runway.growth_blocks_s",
        "runway.floor_blocks_s", "runway.victim",
    )  # fmt: skip
    LEADS_TO = "Block map"

    def note(self, frame: Frame) -> Line:
        pool = frame.state.pool
        if pool is None:
            return []
        size = f"{plural(pool.num_blocks, 'block')} of {plural(pool.block_size, 'token')}  "
        return [(size, "soft"), *_limited(pool), (f"{percent(pool.counts[USED], pool.num_usable)} used", "text")]

    def lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        pool = frame.state.pool
        if pool is None:
            return [[("no pool yet", "soft")]]
        bar = occupancy_bar(pool, frame.sharing.num_shared, width)
        out = [bar, self._counts(frame, pool, width), _runway(frame.state, width)]
        chart_rows = height - len(out)
        return [*out, *(used_chart(frame, pool, width, chart_rows) if chart_rows > 0 else [])][:height]

    def _counts(self, frame: Frame, pool: PoolState, width: int) -> Line:
        """All counts and the waste on one line: shortened (12.3k), then with glyphs for words, where they do not fit;
        last without the waste."""
        shares = width >= 100
        counts = [
            ("used", glyphs.USED, pool.counts[USED], "used"),
            ("shared", glyphs.MANY, frame.sharing.num_shared, "shared"),
            ("idle", glyphs.IDLE, pool.counts[IDLE], "idle"),
            ("fresh", glyphs.FRESH, pool.counts[FRESH], "text"),
        ]
        if pool.counts[IN_TRANSFER]:
            counts.append((glyphs.TRANSFER, glyphs.TRANSFER, pool.counts[IN_TRANSFER], "transfer"))
        if pool.counts[WITHHELD]:
            counts.append(("withheld", glyphs.WITHHELD, pool.counts[WITHHELD], "faint"))
        worded, shortened = _worded(counts, whole, pool.num_blocks if shares else 0), _worded(counts, short, 0)
        drawn: Line = [s for _, glyph, n, style in counts for s in ((f"{glyph} ", style), (f"{short(n)}   ", "text"))]
        waste: Line = [("  ", ""), *_waste(frame.state)]
        forms = [worded + waste, shortened + waste, worded, shortened, drawn + waste, drawn]
        return next((form for form in forms if width_of(form) - 2 <= width), drawn)


def _worded(counts: list[tuple[str, str, int, str]], number: Callable[[int], str], num_blocks: int) -> Line:
    """Name, glyph, count and style of each in a row; with ``num_blocks`` also which share of them it is."""
    line: Line = []
    for name, glyph, count, style in counts:
        share = f" {percent(count, num_blocks)}" if num_blocks else ""
        of = [("of them ", "soft")] if name == "shared" else []  # counted in used: its glyph is no plus sign
        line += [*of, (f"{glyph} ", style), (f"{name} ", "soft"), (f"{number(count)}{share}  ", style)]
    return line


def _limited(pool: PoolState) -> Line:
    """What became of a limit below the size of the pool."""
    wanted, withheld = pool.num_blocks - pool.limit, pool.counts[WITHHELD]
    if withheld < wanted:
        return [(f"shrinking: {withheld:,} of {wanted:,} withheld  ", "warn")]
    return [(f"{pool.limit:,} usable  ", "warn")] if wanted else []


def _waste(state: RunState) -> Line:
    step = state.last_step
    if step is None or not step.used_blocks:
        return []
    total = step.filled_slots + step.reserved_unused_slots
    return [("tail waste ", "soft"), (percent(step.reserved_unused_slots, total), "text")]


def _runway(state: RunState, width: int) -> Line:
    """How long until somebody is preempted, and who."""
    ahead = runway(state)
    line: Line = [("runway ", "title")]
    if ahead is None or ahead.growth is None:
        why = "not known yet" if state.last_step is None else f"not known: no two steps in the last {WINDOW_S} s"
        return [*line, (why, "soft")]
    if ahead.ns is None:
        line += [("no preemption in sight", "good"), (f": used blocks change by {ahead.growth:+.1f}/s", "soft")]
    else:
        line += [(duration(ahead.ns), "warn" if ahead.ns < 10e9 else "text")]
        line += [(f"  {whole(ahead.reclaimable)} reclaimable / {ahead.growth:.1f} a second", "soft")]
    parts: list[Line] = []
    if ahead.victim is not None:
        parts.append([("  next victim ", "soft"), (fit(clean(ahead.victim), 14).rstrip(), "text")])
    if ahead.floor:
        parts.append([(f"  decodes alone take {ahead.floor:.1f} a second", "soft")])
    for part in parts:
        line += part if width_of(line) + width_of(part) <= width else []
    return line


def occupancy_bar(pool: PoolState, num_shared: int, width: int) -> Line:
    """used, shared, idle, fresh, withheld as one bar; whatever is there shows at least once."""
    parts = [
        (pool.counts[USED] - num_shared, glyphs.USED, "used"),
        (num_shared, glyphs.MANY, "shared"),
        (pool.counts[IN_TRANSFER], glyphs.TRANSFER, "transfer"),
        (pool.counts[IDLE], glyphs.IDLE, "idle"),
        (pool.counts[FRESH], glyphs.FRESH, "fresh"),
        (pool.counts[WITHHELD], glyphs.WITHHELD, "faint"),
    ]
    lengths = [max(1, count * width // pool.num_blocks) if count > 0 else 0 for count, _, _ in parts]
    if any(lengths):
        largest = lengths.index(max(lengths))
        lengths[largest] = max(0, lengths[largest] + width - sum(lengths))
    return [(glyph * n, style) for n, (_, glyph, style) in zip(lengths, parts, strict=True) if n]


def used_chart(frame: Frame, pool: PoolState, width: int, height: int) -> list[Line]:
    """Used blocks in each of the last seconds of run time, the full pool at the top."""
    history, room = frame.state.history, width - len(_CHART)
    values = levels(history, history.used, frame.state.t_ns, room)
    rows = glyphs.bar_chart(values, room, height, top=pool.num_blocks)
    return [[(_CHART if i == 0 else " " * len(_CHART), "faint"), (row, "usedchart")] for i, row in enumerate(rows)]
