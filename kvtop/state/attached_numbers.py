"""The numbers of ``kvtop.state.numbers`` as attached servers report them: each with how true it is, or what is missing.

    exact      a gauge or counter of the server's, as it stood at the last look
    bucket     between two bounds of a histogram: a range, never a point
    events     from the blocks that were stored and removed
    estimate   worked out from the above
    n/a        not reported, and what would report it

A server that has not answered lately makes all of its figures ``stale``; lost events make theirs ``partial``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kvtop.state.attached import (
    WINDOW_NS,
    Attached,
    added,
    added_counter,
    added_gauge,
    capacity,
    growth,
    merged,
    quantile,
    rate,
    used_share,
)
from kvtop.state.model import IDLE, RunState

RATE_NS = 5_000_000_000
SLOPE_NS = 10_000_000_000
MIN_P99 = 20
NS = 1e9
LATENCIES = ("ttft", "itl", "queue", "tpot", "e2e")

NO_KV = "give kvtop --kv-events (vLLM and SGLang: start the server with --kv-events-config)"
NO_REFS = "servers do not report it: neither metrics nor events name owners or references"
NO_FREE = "servers do not report it: what is cached cannot be told from what is free"
NO_CAUSE = "servers do not report why a match ended"


class Reading(NamedTuple):
    """``value`` None: not reported, and ``missing`` says why. ``lo``, ``hi``: ends of a bucket (``hi`` None: above)."""

    value: float | str | None
    truth: str
    lo: float | None = None
    hi: float | None = None
    missing: str = ""


Read = Callable[[Attached, RunState], Reading]


def missing(why: str) -> Reading:
    return Reading(None, "n/a", missing=why)


def read_number(state: RunState, name: str) -> Reading:
    """Number ``name`` of an attached run."""
    attached = state.attached
    assert attached is not None, "the run is not attached"
    found = READS.get(name, _never(NO_REFS))(attached, state)
    if found.value is None or found.truth in ("events", "partial", "n/a"):
        return found
    if attached.is_stale(state.t_ns):
        age = attached.age_ns(state.t_ns)
        old = "stale" if age is None else f"stale {age / NS:.0f} s"
        return found._replace(truth=old) if found.truth != "estimate" else missing("the server's answers are stale")
    if any(engine.stands_still for engine in attached.engines):
        return found._replace(truth="still") if found.truth != "estimate" else missing("the gauges stand still")
    return found


def _problem(attached: Attached, name: str) -> str:
    """Why nothing says ``name``."""
    for server in attached.servers.values():
        if server.t_ok_ns is None:
            return server.problem or "no answer yet"
    if not attached.servers:
        return "give kvtop the server's URL, too"
    broken = next((engine.last.broken[name] for engine in attached.engines if name in engine.last.broken), None)
    return f"the server says {broken}" if broken is not None else "the server does not report it"


def _never(why: str) -> Read:
    return lambda attached, state: missing(why)


def _exact(value: float | None, attached: Attached, name: str) -> Reading:
    return missing(_problem(attached, name)) if value is None else Reading(value, "exact")


def _gauge(name: str) -> Read:
    return lambda attached, state: _exact(added_gauge(attached, name), attached, name)


def _counter(name: str) -> Read:
    return lambda attached, state: _exact(added_counter(attached, name), attached, name)


def _blocks(attached: Attached, state: RunState) -> Reading:
    sizes = [capacity(engine) for engine in attached.engines]
    if sizes and all(sizes):
        return Reading(sum(size or 0 for size in sizes), "exact")
    return missing(_problem(attached, "num_blocks"))


def _used_share(attached: Attached, state: RunState) -> Reading:
    return _exact(used_share(attached), attached, "usage")


def _used(attached: Attached, state: RunState) -> Reading:
    share, size = used_share(attached), _blocks(attached, state).value
    if share is None or not isinstance(size, int):
        return missing(_problem(attached, "usage" if share is None else "num_blocks"))
    return Reading(round(share * size), "exact")


def _cached(attached: Attached, state: RunState) -> Reading:
    if attached.kv_since_ns is None or state.pool is None:
        return missing(NO_KV if not state.manifest.get("kv_events") else "no event yet")
    return Reading(state.pool.counts[IDLE], "partial" if attached.partial else "events")


def _evictions(attached: Attached, state: RunState) -> Reading:
    if attached.kv_since_ns is None:
        return missing(NO_KV if not state.manifest.get("kv_events") else "no event yet")
    return Reading(attached.num_removed, "partial" if attached.partial else "events")


def _hit_rate(attached: Attached, state: RunState) -> Reading:
    queried, hit = added_counter(attached, "query_tokens"), added_counter(attached, "hit_tokens")
    if queried and hit is not None:
        return Reading(hit / queried, "exact")
    rates = [engine.last.gauges.get("hit_rate") for engine in attached.engines]
    if queried is None and len(rates) == 1 and rates[0] is not None:
        return Reading(rates[0], "exact")
    return missing("no lookups yet" if queried == 0 else _problem(attached, "query_tokens"))


def _recent_hit_rate(attached: Attached, state: RunState) -> Reading:
    def grown(name: str) -> float | None:
        return added(attached, lambda engine: _first(growth(engine, name, state.t_ns, WINDOW_NS)))

    queried, hit = grown("query_tokens"), grown("hit_tokens")
    if queried is None or hit is None:
        return missing(_problem(attached, "query_tokens") if queried is None else _problem(attached, "hit_tokens"))
    return Reading(hit / queried, "exact") if queried > 0 else missing("no lookups in the window")


def _first(pair: tuple[float, float] | None) -> float | None:
    return None if pair is None else pair[0]


def _rate(name: str) -> Read:
    def read(attached: Attached, state: RunState) -> Reading:
        value = added(attached, lambda engine: rate(engine, name, state.t_ns, RATE_NS))
        if value is None and added_counter(attached, name) is not None:
            return missing("two looks are needed")
        return _exact(value, attached, name)

    return read


def _computed(attached: Attached, state: RunState) -> Reading:
    """Prompt tokens less those found in the cache: the server counts the two at different moments."""
    prompt, hit = _rate("prompt_tokens")(attached, state), _rate("hit_tokens")(attached, state)
    if not isinstance(prompt.value, float) or not isinstance(hit.value, float):
        return missing(prompt.missing or hit.missing)
    return Reading(max(0.0, prompt.value - hit.value), "estimate")


def _bucket(name: str, q: float) -> Read:
    def read(attached: Attached, state: RunState) -> Reading:
        found = merged(attached, name, state.t_ns)
        if found is None or isinstance(found, str):
            return missing(found or _no_samples(attached, name))
        n = found.counts[-1]
        if n < MIN_P99 and q > 0.5:
            return missing(f"only {n:.0f} samples in the window")
        ends = quantile(found, q)
        if ends is None:
            return missing("no samples in the window")
        low, high = ends[0] * NS, None if ends[1] is None else ends[1] * NS
        return Reading(low if high is None else high, "bucket", low, high)

    return read


def _samples(name: str) -> Read:
    def read(attached: Attached, state: RunState) -> Reading:
        found = merged(attached, name, state.t_ns)
        if found is None or isinstance(found, str):
            return missing(found or _no_samples(attached, name))
        return Reading(round(found.counts[-1]), "exact")

    return read


def _no_samples(attached: Attached, name: str) -> str:
    if any(name in engine.last.histograms for engine in attached.engines):
        return "two looks are needed"
    return _problem(attached, name)


def _slope(attached: Attached, state: RunState) -> float | None:
    """Change of used blocks a second over the last ten seconds, by the usage gauges."""
    total = 0.0
    for engine in attached.engines:
        ends, size = engine.ends(state.t_ns, SLOPE_NS), capacity(engine)
        if ends is None or size is None:
            return None
        first, last = (point.sample.gauges.get("usage") for point in ends)
        seconds = (ends[1].t_ns - ends[0].t_ns) / NS
        if first is None or last is None or seconds <= 0:
            return None
        total += (last - first) * size / seconds
    return total if attached.engines else None


def _growth(attached: Attached, state: RunState) -> Reading:
    slope = _slope(attached, state)
    return missing("usage and pool size are needed, twice") if slope is None else Reading(slope, "estimate")


def _reclaimable(attached: Attached, state: RunState) -> Reading:
    used, size = _used(attached, state), _blocks(attached, state)
    if not isinstance(used.value, int) or not isinstance(size.value, int):
        return missing(used.missing or size.missing)
    return Reading(size.value - used.value, "exact")


def _runway(attached: Attached, state: RunState) -> Reading:
    slope, left = _slope(attached, state), _reclaimable(attached, state)
    if slope is None or not isinstance(left.value, int):
        return missing(left.missing or "usage and pool size are needed, twice")
    return Reading(left.value / slope * NS, "estimate") if slope > 0 else missing("used blocks do not grow")


def _lost(attached: Attached, state: RunState) -> Reading:
    if not attached.streams:
        return missing(NO_KV if not state.manifest.get("kv_events") else "no event yet")
    return Reading(sum(stream.num_lost for stream in attached.streams.values()), "events")


READS: dict[str, Read] = {
    "pool.num_blocks": _blocks,
    "pool.used_share": _used_share,
    "pool.used_blocks": _used,
    "pool.cached_blocks": _cached,
    "pool.idle_blocks": _never(NO_FREE),
    "pool.fresh_blocks": _never(NO_FREE),
    "pool.in_transfer_blocks": _never("servers do not report it"),
    "pool.token_fill": _never("servers do not report it"),
    "pool.tail_waste_slots": _never("servers do not report it"),
    "runway.reclaimable_blocks": _reclaimable,
    "runway.growth_blocks_s": _growth,
    "runway.ns": _runway,
    "queue.running": _gauge("running"),
    "queue.waiting": _gauge("waiting"),
    "queue.oldest_ns": _never("servers do not report single requests"),
    "cache.hit_rate": _hit_rate,
    "cache.query_tokens": _counter("query_tokens"),
    "cache.hit_tokens": _counter("hit_tokens"),
    "cache.recent_hit_rate": _recent_hit_rate,
    "cache.recent_request_hit_rate": _never("servers do not report single requests"),
    "cache.evictions": _evictions,
    "latency.slo_attainment": _never("servers do not report single requests"),
    "latency.slo_judged": _never("servers do not report single requests"),
    "throughput.prefill_tokens_s": _computed,
    "throughput.decode_tokens_s": _rate("generation_tokens"),
    "throughput.requests_s": _rate("finished"),
    "throughput.step_ns": _never("servers do not report single steps"),
    "run.preemptions": _counter("preemptions"),
    "run.recomputed_tokens": _never("servers do not report it"),
    "run.copies": _never("servers do not report it"),
    "run.finished": _counter("finished"),
    "run.rejected": _counter("rejected"),
    "run.events_dropped": _lost,
    **{
        f"cache.missed_{reason}": _never(NO_CAUSE)
        for reason in (
            "never_seen", "evicted", "last_token", "not_yet_computed", "other_salt", "prompt_logprobs", "cache_off",
        )
    },
    **{
        f"latency.{key}_p{part}_ns": _bucket(key, part / 100)
        for key in LATENCIES
        for part in (50, 95, 99)
    },
    **{f"latency.{key}_n": _samples(key) for key in LATENCIES},
}  # fmt: skip
"""By name of the number; a number that is not here is not reported by any server."""


def to_json(state: RunState, names: list[str]) -> dict[str, dict[str, object]]:
    """Each number with its truth; ``lo`` and ``hi`` of a range (``hi`` null: above ``lo``), what is missing."""
    found: dict[str, dict[str, object]] = {}
    for name in names:
        reading = read_number(state, name)
        found[name] = {"value": reading.value, "truth": reading.truth}
        if reading.lo is not None:
            found[name] |= {"value": None, "lo": reading.lo, "hi": reading.hi}
        if reading.missing:
            found[name]["missing"] = reading.missing
    return found


def servers_json(state: RunState) -> list[dict[str, object]]:
    """Each server and its engines: which answer, how old it is, what each reports of its own pool and queue."""
    attached = state.attached
    assert attached is not None, "the run is not attached"
    return [
        {
            "server": server.name,
            "kind": server.kind or None,
            "problem": server.problem or None,
            "age_ns": None if server.t_ok_ns is None else max(0, state.t_ns - server.t_ok_ns),
            "engines": [
                {
                    "engine": engine.last.engine or None,
                    "model": engine.last.model or None,
                    "used_share": engine.last.gauges.get("usage"),
                    "num_blocks": capacity(engine),
                    "running": engine.last.gauges.get("running"),
                    "waiting": engine.last.gauges.get("waiting"),
                    "restarts": engine.num_restarts,
                    "stands_still": engine.stands_still,
                }
                for engine in server.engines.values()
            ],
        }
        for server in attached.servers.values()
    ]


def streams_json(attached: Attached) -> list[dict[str, object]]:
    """Each rank whose KV events are followed: how far, what is missing."""
    return [
        {
            "endpoint": stream.source,
            "rank": stream.rank,
            "sequence": stream.last_seq,
            "messages": stream.num_messages,
            "lost": stream.num_lost,
            "replayed": stream.num_replayed,
            "cached_blocks": stream.num_cached,
            "tiers": stream.tiers,
            "coverage": None if not stream.num_cached else 1 - stream.num_orphans / stream.num_cached,
            "partial": stream.partial or None,
            "lag_ns": stream.lag_ns,
        }
        for stream in attached.streams.values()
    ]
