"""The chapter of a recording of attached servers: every figure with how true it is, and what nobody reported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvtop.cli.text import MISSING, percent
from kvtop.report.html import Row, bullets, pairs, paragraph, table
from kvtop.report.observed import NOT_LOOKED, STOOD_STILL, Observed, Stretch
from kvtop.state.attached_json import servers_json, streams_json
from kvtop.state.attached_numbers import LATENCIES, MIN_P99, read_number
from kvtop.state.attached_reading import Reading, no_events, range_text
from kvtop.state.attached_sums import added_counter, quantile
from kvtop.state.numbers import MISS_WORDS
from kvtop.workloads.words import counted, was

TRUTHS = (
    "Each figure says how true it is. exact: from the servers' gauges and counters. bucket: between two bounds of "
    "their histograms. events: from the blocks they stored and removed. estimate: worked out from these. partial: some "
    "engines, servers or events are not in it. Counters are those of the recording: what a server had counted before "
    "its first look is not in them."
)
MOST_STRETCHES = 200
COUNTED = (
    ("requests finished", "finished"), ("prompt tokens", "prompt_tokens"), ("generated tokens", "generation_tokens"),
    ("prompt tokens looked up", "query_tokens"), ("prompt tokens found in the cache", "hit_tokens"),
    ("preemptions", "preemptions"), ("tokens computed again after a preemption", "recomputed_tokens"),
    ("blocks evicted", "evictions"), ("tokens computed again after an eviction", "regretted_tokens"),
    ("blocks copied", "copies"), ("requests rejected", "rejected"),
)  # fmt: skip
GAUGES = (
    ("pool.used_share", "blocks in use"), ("pool.idle_blocks", "idle blocks"), ("pool.fresh_blocks", "fresh blocks"),
    ("pool.shared_blocks", "shared blocks"), ("pool.token_fill", "token fill"), ("queue.running", "requests running"),
    ("queue.waiting", "requests waiting"),
)  # fmt: skip
SHARES = ("pool.used_share", "pool.token_fill")


def title(found: Observed) -> str:
    return f"Attached servers: {found.state.manifest.get('workload') or found.path.name}"


def lead(found: Observed) -> str:
    looks, engines = counted(len(found.times_s), "look"), counted(len(found.attached.engines), "engine")
    ranks = counted(len(found.attached.streams), "rank")
    said = [f"{looks} at {engines}"] if found.attached.servers or found.times_s else []
    said += [f"KV events of {ranks}"] if found.attached.streams else []
    return f"A recording of {found.end_s:,.1f} s{': ' if said else ''}{' and '.join(said)}."


def parts(found: Observed) -> Iterator[tuple[str, list[str]]]:
    """Headings with their HTML; figures stand between them."""
    found_wrong = bullets(_findings(found))
    yield "Findings", [f'<div class="findings">{found_wrong}</div>' if found_wrong else paragraph("Nothing to note.")]
    yield "What was looked at", [pairs(_facts(found)), *_sources(found)]
    yield "Over the whole recording", [paragraph(TRUTHS), _sums(found), _latencies(found), _gauges(found)]


def after(found: Observed) -> Iterator[tuple[str, list[str]]]:
    if found.stretches:
        shown = [_stretch(stretch) for stretch in found.stretches[:MOST_STRETCHES]]
        more = len(found.stretches) - len(shown)
        said = [paragraph(f"{more:,} more are not shown.")] if more else []
        header = ["Who", "from", "to", "why"]
        yield "When something was not known", [table(header, shown, kind="text"), *said]
    if found.news:
        more = found.num_news - len(found.news)
        said = [paragraph(f"{more:,} more are not shown.")] if more else []
        yield (
            "What happened",
            [table(["At", "what"], [[f"{t:,.1f} s", text] for t, text in found.news], kind="text"), *said],
        )
    yield "Not reported", [_missing(found)]


def as_json(found: Observed) -> dict[str, Any]:
    """The same for programs. ``null``: not reported."""
    sums = {name: found.totals.sums(name) for _, name in COUNTED}
    return {
        "attached": found.state.manifest.get("servers") or [],
        "directory": found.path.name,
        "seconds": found.end_s,
        "status": found.status,
        "counted": {
            name: {"value": None if values is None else values[0], "truth": _truth(found, "exact", name, values)}
            for name, values in sums.items()
        },
        "servers": servers_json(found.state),
        "kv_events": streams_json(found.attached),
        "evictions": _grown(found, "evictions", found.attached.num_removed),
        "regretted_tokens": _grown(found, "regretted_tokens", found.state.cache.regret_tokens),
        "lookup_ends": found.totals.by_label("lookup_ends/") if found.totals.tells("lookup_ends/") else None,
        "not_known": [[s.start_s, s.end_s, s.who, s.why] for s in found.stretches],
    }


def _grown(found: Observed, name: str, by_events: int) -> int | None:
    """By the servers' own counters; else by KV events; None: neither was there."""
    if (values := found.totals.sums(name)) is not None:
        return round(values[0])
    return None if no_events(found.state) else by_events


def _truth(found: Observed, exact: str, name: str, values: object) -> str:
    return "n/a" if values is None else found.totals.truth(exact, found.attached, name)


def _findings(found: Observed) -> Iterator[str]:
    attached = found.attached
    answered = {server.name for server in attached.servers.values() if server.t_ok_ns is not None}
    if found.status != "complete":
        yield f"the recording is {found.status or 'not ended'}{f': {found.error}' if found.error else ''}"
    for server in attached.servers.values():
        if server.t_ok_ns is None:
            yield f"{server.name} never answered{f': {server.problem}' if server.problem else ''}: it is in no figure"
    for is_it, what in (
        (lambda s: s.who in answered, "a server did not answer"),
        (lambda s: s.why == STOOD_STILL, "the gauges of an engine stood still, and what it said was not trusted"),
        (lambda s: s.why == NOT_LOOKED, "kvtop did not look"),
    ):
        if own := [stretch for stretch in found.stretches if is_it(stretch)]:
            total = sum((found.end_s if s.end_s is None else s.end_s) - s.start_s for s in own)
            times = "once" if len(own) == 1 else f"{len(own):,} times"
            long = f", for {total:,.1f} s in all" if total >= 0.05 else ""  # the last look alone lasts no time
            yield f"{times} {what}{long}: see When something was not known"
    if found.totals.num_restarts:
        yield f"{counted(found.totals.num_restarts, 'restart')} of engines: their counters began anew"
    if why := no_events(found.state):
        is_counted = found.totals.sums("evictions") is not None
        what = "cached blocks and the prefix tree" if is_counted else "blocks, evictions and what was wanted again"
        yield f"{what} are not reported: {why}"
    elif attached.partial:
        yield f"the prefix tree is partial at the end: {attached.partial}"
    lost = sum(stream.num_lost for stream in attached.streams.values())
    if lost:
        yield f"{counted(lost, 'message')} of KV events {was(lost)} lost"


def _facts(found: Observed) -> list[tuple[str, str]]:
    manifest = found.state.manifest
    keys = (
        ("model", "model"), ("server", "server_kind"), ("block size", "block_size_tokens"), ("blocks", "usable_blocks"),
        ("prefix caching", "prefix_caching"), ("started (UTC)", "started_utc"), ("kvtop", "kvtop_version"),
    )  # fmt: skip
    facts = [(name, _word(manifest.get(key))) for name, key in keys if manifest.get(key) not in (None, "")]
    return [
        ("recorded in", found.path.name),
        *facts,
        ("a look every", f"{found.attached.interval_ns / 1e9:g} s"),
        ("status", found.status),
    ]


def _word(value: Any) -> str:
    return (
        "on" if value is True else "off" if value is False else f"{value:,}" if isinstance(value, int) else str(value)
    )


def _sources(found: Observed) -> Iterator[str]:
    rows: list[Row] = []
    for server in found.attached.servers.values():
        last = "never" if server.t_ok_ns is None else f"{server.t_ok_ns / 1e9:,.1f} s"
        rows.append([server.name, server.kind or MISSING, str(len(server.engines)), last, server.problem or MISSING])
    if rows:
        yield table(["Metrics", "kind", "engines", "last good answer at", "problem at the end"], rows, kind="text")
    rows = [
        [f"{s.source} rank {s.rank}", f"{s.num_messages:,}", f"{s.num_replayed:,}", f"{s.num_lost:,}",
         f"{s.num_cached:,}", s.partial or "whole"]
        for s in found.attached.streams.values()
    ]  # fmt: skip
    if rows:
        yield table(
            ["KV events", "messages", "of them replayed", "lost", "cached at the end", "tree"], rows, kind="text"
        )


def _sums(found: Observed) -> str:
    totals, attached = found.totals, found.attached
    rows: list[Row] = []
    for words, name in COUNTED:
        values = totals.sums(name)
        if values is not None:
            rows.append([words, f"{values[0]:,.0f}", totals.truth("exact", attached, name)])
    both = totals.sums("hit_tokens", "query_tokens")
    if both is not None and both[1] > 0:
        truth = totals.truth("exact", attached, "hit_tokens", "query_tokens")
        rows.append(["prefix cache hit rate", percent(both[0] / both[1]), truth])
    begin_s, end_s = found.answered_s or (0.0, 0.0)  # counters grow between answers, not while nobody answers
    seconds = end_s - begin_s
    for words, name in (("generated tokens a second", "generation_tokens"), ("requests finished a second", "finished")):
        values = totals.sums(name)
        if values is not None and seconds > 0:
            rows.append([f"{words}, mean", _rounded(values[0] / seconds), totals.truth("exact", attached, name)])
    for reason, count in totals.by_label("lookup_ends/").items():
        words = f"prefix matches that ended: {MISS_WORDS.get(reason, reason)}"
        rows.append([words, f"{count:,.0f}", totals.truth("exact", attached, f"lookup_ends/{reason}")])
    by_events = {"cache.evictions": "blocks removed from the cache", "pool.cached_blocks": "cached at the end"}
    if added_counter(attached, "evictions").value is not None:  # the number is since that server's start
        del by_events["cache.evictions"]
    for name, words in by_events.items():
        reading = read_number(found.state, name)
        if reading.value is not None:
            rows.append([words, f"{reading.value:,}", reading.truth])
    if not no_events(found.state):
        truth = "partial" if attached.partial else "events"
        rows.append(["tokens evicted and wanted again", f"{found.state.cache.regret_tokens:,}", truth])
        rows.append(["evicted keys not wanted again (ghosts)", f"{len(found.state.cache.ghosts):,}", truth])
    return (
        table(["Counted", "value", "how true"], rows, kind="told")
        if rows
        else paragraph("No server reported a counter twice.")
    )


def _latencies(found: Observed) -> str:
    rows: list[Row] = []
    for key in LATENCIES:
        histogram = found.totals.histograms.get(key)
        if histogram is None:
            continue
        n = histogram.counts[-1]
        cells = [_range(histogram, q) if n >= (MIN_P99 if q > 0.5 else 1) else MISSING for q in (0.5, 0.95, 0.99)]
        truth = found.totals.truth("bucket", found.attached, key)
        rows.append([key if key == "queue" else key.upper(), f"{n:,.0f}", *cells, truth])
    if not rows:
        return paragraph("Latencies: not reported twice by any server.")
    return table(["Latency", "n", "p50", "p95", "p99", "how true"], rows, kind="counted told")


def _range(histogram: Any, q: float) -> str:
    ends = quantile(histogram, q)
    return MISSING if ends is None else range_text(ends[0] * 1e9, None if ends[1] is None else ends[1] * 1e9)


def _gauges(found: Observed) -> str:
    rows: list[Row] = []
    for name, words in GAUGES:
        known = [reading for reading in found.series[name] if _is_known(reading)]
        if not known:
            continue
        values = [float(reading.value) for reading in known if isinstance(reading.value, int | float)]
        truths = sorted({reading.truth for reading in known})
        cells = [min(values), sum(values) / len(values), max(values)]
        said = [percent(v) if name in SHARES else _rounded(v) for v in cells]
        rows.append([words, f"{len(values):,}", *said, "; ".join(truths)])
    if not rows:
        return paragraph("Gauges: not reported by any server.")
    return table(["At the looks", "n", "least", "mean", "most", "how true"], rows, kind="counted told")


def _rounded(value: float) -> str:
    """Three digits and at most two decimals: ``12,346``, ``8.55``, ``0.06``; what is not 0 is not shown as 0."""
    if value >= 100:
        return f"{value:,.0f}"
    return "<0.01" if 0 < value < 0.005 else f"{value:.3g}" if value >= 1 else f"{value:.2f}" if value else "0"


def _is_known(reading: Reading) -> bool:
    return reading.value is not None and not reading.truth.startswith(("stale", "still"))


def _stretch(stretch: Stretch) -> Row:
    end = "the end" if stretch.end_s is None else f"{stretch.end_s:,.1f} s"
    return [stretch.who, f"{stretch.start_s:,.1f} s", end, stretch.why]


def _missing(found: Observed) -> str:
    reasons: dict[str, list[str]] = {}
    for name, reading in found.missing():
        reasons.setdefault(reading.missing, []).append(name)
    rows = [[why, ", ".join(titles)] for why, titles in reasons.items()]
    return table(["Why", "figures"], rows, kind="text") if rows else paragraph("Everything was.")
