"""Pool: how full? And how much is reused?"""

from __future__ import annotations

from kvtop.state.model import FRESH, IDLE, IN_TRANSFER, USED, PoolState
from kvtop.tui import glyphs
from kvtop.tui.frame import Frame
from kvtop.tui.panels.base import TextPanel
from kvtop.tui.stats import levels
from kvtop.tui.text import percent, short, whole
from kvtop.tui.widgets.lines import Line, width_of


class PoolPanel(TextPanel):
    """Occupancy as four numbers, never one; prefix hits; evictions, preemptions, copies."""

    TITLE = "Pool"
    QUESTION = "how full?"
    HELP = """\
used + idle + fresh = all blocks. shared: used blocks that two or more
sequences hold (counted in used).
token fill   filled slots / all slots of used blocks. The rest is tail
             waste: the last block of a sequence is rarely full.
prefix hits  prompt tokens found in the prefix cache at first admission /
             prompt tokens looked up. Only whole blocks, and at most all
             but the last token of a prompt: 100 % cannot be reached.
host hits    of the same tokens, those found beyond that in host memory, to
             where evicted prefixes went (with --host-cache-blocks only)
evicted      published idle blocks taken because no fresh one was left
preempted    running sequences that lost their blocks to others, and have
             to compute them again
copies       blocks copied because branches that shared them diverged"""

    def note(self, frame: Frame) -> Line:
        pool = frame.state.pool
        return [(f"{percent(pool.counts[USED], pool.num_blocks)} used", "text")] if pool else []

    def lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        pool = frame.state.pool
        if pool is None:
            return [[("no pool yet", "soft")]]
        bar = occupancy_bar(pool, frame.sharing.num_shared, width)
        host = self._host(frame)
        tall = height >= 8 + bool(host)
        below = [self._fill(frame, width), *self._totals(frame, width, host, tall)]
        if not tall:
            return [bar, self._counts(frame, pool, width), *below]
        chart_rows = height - 6 - len(below)
        chart = used_chart(frame, pool, width, chart_rows) if chart_rows > 0 else []
        return [bar, *self._table(frame, pool), *below, *chart]

    def _counts(self, frame: Frame, pool: PoolState, width: int) -> Line:
        """All counts on one line: shortened (12.3k), then with glyphs for words, when they would not fit."""
        counts = [
            ("used", glyphs.USED, pool.counts[USED], "used"),
            ("shared", glyphs.MANY, frame.sharing.num_shared, "shared"),
            ("idle", glyphs.IDLE, pool.counts[IDLE], "idle"),
            ("fresh", glyphs.FRESH, pool.counts[FRESH], "text"),
        ]
        if pool.counts[IN_TRANSFER]:
            counts.append((glyphs.TRANSFER, glyphs.TRANSFER, pool.counts[IN_TRANSFER], "transfer"))
        worded: Line = [s for name, _, n, style in counts for s in ((f"{name} ", "soft"), (f"{whole(n)} ", style))]
        drawn: Line = [s for _, glyph, n, style in counts for s in ((f"{glyph} ", style), (f"{short(n)}   ", "text"))]
        fitting = worded if width_of(worded) - 1 <= width else drawn
        return [*fitting[:-1], (fitting[-1][0].rstrip(), fitting[-1][1])]

    def _table(self, frame: Frame, pool: PoolState) -> list[Line]:
        shared, saved = frame.sharing.num_shared, frame.sharing.saved
        rows = [
            (glyphs.USED, "used", "used", pool.counts[USED], ""),
            (glyphs.MANY, "shared", "shared", shared, f"saves {whole(saved)} blocks" if saved else ""),
            (glyphs.IDLE, "idle", "idle", pool.counts[IDLE], "evictable" if pool.counts[IDLE] else ""),
            (glyphs.FRESH, "fresh", "fresh", pool.counts[FRESH], ""),
        ]
        size = len(whole(pool.num_blocks))
        table: list[Line] = []
        for glyph, style, name, count, remark in rows:
            share = percent(count, pool.num_blocks)
            row: Line = [(f"{glyph} ", style), (f"{name:<7}", "soft"), (f"{whole(count):>{size}}", "text")]
            table.append([*row, (f"{share:>8}", "text"), (f"   {remark}", "soft")])
        return table

    def _fill(self, frame: Frame, width: int) -> Line:
        step = frame.state.last_step
        if step is None or not step.used_blocks:
            return [("token fill ", "soft"), ("nothing stored", "soft")]
        waste = step.reserved_unused_slots
        total = step.filled_slots + waste
        return [
            ("token fill ", "soft"),
            (percent(step.filled_slots, total), "text"),
            ("  tail waste ", "soft"),
            (f"{whole(waste)} slots" if width >= 44 else short(waste), "text"),
        ]

    def _totals(self, frame: Frame, width: int, host: Line, tall: bool) -> list[Line]:
        """Hits and what happened. ``host``, if any, has a line of its own where it is ``tall``."""
        totals = frame.state.totals
        queried, hit = totals.get("query_tokens", 0), totals.get("hit_tokens", 0)
        if frame.state.manifest.get("prefix_caching") is False:
            rate: Line = [("prefix caching is off", "soft")]
        elif queried:
            rate = [(percent(hit, queried), "good" if hit else "text")]
            rate += (
                []
                if host and not tall
                else [(f" of {short(queried)}{' prompt' if width >= 44 else ''} tokens", "soft")]
            )
        else:
            rate = [("no lookups yet", "soft")]
        events: Line = []
        for key, name in (("evictions", "evicted"), ("preemptions", "preempted"), ("copies", "copies")):
            count = totals.get(key, 0)
            loud = "warn" if count and key == "preemptions" else "text"
            events += [(f"  {name} " if events else f"{name} ", "soft"), (short(count), loud)]
        hits: Line = [("prefix hits ", "soft"), *rate]
        if not tall:
            return [[*hits, *([("  ", "soft"), *host[:2]] if host else [])], events]
        return [hits, *([host] if host else []), events]

    def _host(self, frame: Frame) -> Line:
        """What the host tier adds, where there is one: its hits, then how full it is."""
        totals, size = frame.state.totals, frame.state.manifest.get("host_cache_blocks")
        if not size:
            return []
        queried, hit, held = (totals.get(name, 0) for name in ("query_tokens", "host_hit_tokens", "host_cached"))
        rate = percent(hit, queried) if queried else "none yet"
        held_of = f"  {short(held)} of {short(size)} blocks"
        return [("host hits ", "soft"), (rate, "good" if hit else "text"), (held_of, "soft")]


def occupancy_bar(pool: PoolState, num_shared: int, width: int) -> Line:
    """used, shared, idle, fresh as one bar; whatever is there shows at least once."""
    parts = [
        (pool.counts[USED] - num_shared, glyphs.USED, "used"),
        (num_shared, glyphs.MANY, "shared"),
        (pool.counts[IN_TRANSFER], glyphs.TRANSFER, "transfer"),
        (pool.counts[IDLE], glyphs.IDLE, "idle"),
        (pool.counts[FRESH], glyphs.FRESH, "fresh"),
    ]
    lengths = [max(1, count * width // pool.num_blocks) if count > 0 else 0 for count, _, _ in parts]
    if any(lengths):
        largest = lengths.index(max(lengths))
        lengths[largest] = max(0, lengths[largest] + width - sum(lengths))
    return [(glyph * n, style) for n, (_, glyph, style) in zip(lengths, parts, strict=True) if n]


def used_chart(frame: Frame, pool: PoolState, width: int, height: int) -> list[Line]:
    """Used blocks over the last seconds of run time, the full pool at the top."""
    history = frame.state.history
    values = levels(history, history.used, frame.state.t_ns, width)
    rows = glyphs.bar_chart(values, width, height, top=pool.num_blocks)
    return [[("used blocks, a second a bar", "faint")], *([(row, "usedchart")] for row in rows)]
