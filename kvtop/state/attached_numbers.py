"""The numbers of ``kvtop.state.numbers`` as attached servers report them, by ``attached_reading``'s words of truth."""

from __future__ import annotations

from kvtop.state.attached import Attached, Engine, capacity, occupancy, rate
from kvtop.state.attached_own import OWN, parts
from kvtop.state.attached_reading import (
    NO_GROWTH,
    NOT_REPORTED,
    TWO_LOOKS,
    TWO_USAGES,
    Figure,
    Reading,
    doubtful,
    exact,
    missing,
    never,
    no_events,
    problem,
    truly,
)
from kvtop.state.attached_sums import (
    Sum,
    added_counter,
    added_gauge,
    added_growth,
    merged,
    quantile,
    servers_part,
    together,
    used_blocks,
    used_share,
)
from kvtop.state.model import IDLE, RunState

RATE_NS = 5_000_000_000
SLOPE_NS = 10_000_000_000
MIN_P99 = 20
NS = 1e9
LATENCIES = ("ttft", "itl", "queue", "tpot", "e2e")


def read_number(state: RunState, name: str) -> Reading:
    """Number ``name`` of an attached run."""
    attached = state.attached
    assert attached is not None, "the run is not attached"
    found = figure(name).read(attached, state)
    if found.value is None or found.truth in ("events", "partial", "n/a"):
        return found
    if attached.is_stale(state.t_ns):
        return doubtful(
            found, f"stale {(attached.age_ns(state.t_ns) or 0) / NS:.0f} s", "the server's answers are stale"
        )
    if any(engine.stands_still for engine in attached.engines):
        return doubtful(found, "still", "the gauges stand still")
    return found


def figure(name: str) -> Figure:
    """How number ``name`` is read; one that no server reports says so."""
    return FIGURES.get(name, never(NOT_REPORTED))


def _gauge(name: str) -> Figure:
    return Figure(lambda attached, state: _with_parts(added_gauge(attached, name), attached, name), ((name,),))


def _counter(name: str) -> Figure:
    return Figure(lambda attached, state: _with_parts(added_counter(attached, name), attached, name), ((name,),))


def _with_parts(found: Sum, attached: Attached, name: str) -> Reading:
    reading = exact(found, attached, name)
    return reading if reading.value is None else reading._replace(by=parts(attached, f"{name}/"))


def _blocks(attached: Attached, state: RunState) -> Reading:
    return _whole_number(
        together(attached, ("num_blocks",), lambda engine, name: capacity(engine) or None), attached, "num_blocks"
    )


def _used_share(attached: Attached, state: RunState) -> Reading:
    return exact(
        used_share(attached), attached, "usage" if added_gauge(attached, "usage").value is None else "num_blocks"
    )


def _used(attached: Attached, state: RunState) -> Reading:
    named = "usage" if added_gauge(attached, "usage").value is None else "num_blocks"
    return _whole_number(used_blocks(attached), attached, named)


def _whole_number(found: Sum, attached: Attached, name: str) -> Reading:
    reading = exact(found, attached, name)
    return reading._replace(value=round(found.value)) if found.value is not None else reading


def _cached(attached: Attached, state: RunState) -> Reading:
    if why := no_events(state):
        return missing(why)
    return Reading(
        state.pool.counts[IDLE] if state.pool is not None else 0, "partial" if attached.partial else "events"
    )


def _hit_rate(attached: Attached, state: RunState) -> Reading:
    found = added_counter(attached, "hit_tokens", "query_tokens")
    if found.values is not None and found.values[1]:
        return truly(found.values[0] / found.values[1], "exact", found.part)
    engines = attached.engines
    if found.values is None and len(engines) == 1 and (told := engines[0].last.gauges.get("hit_rate")) is not None:
        return truly(told, "exact", servers_part(attached))
    return missing("no lookups yet" if found.values is not None else _problem_of_two(attached))


def _recent_hit_rate(attached: Attached, state: RunState) -> Reading:
    found = added_growth(attached, ("hit_tokens", "query_tokens"), state.t_ns)
    if found.values is None:
        both = added_counter(attached, "hit_tokens", "query_tokens").values is not None
        return missing(TWO_LOOKS if both else _problem_of_two(attached))
    if found.values[1] <= 0:
        return missing("no lookups in the window")
    return truly(found.values[0] / found.values[1], "exact", found.part)


def _problem_of_two(attached: Attached) -> str:
    """Why no engine has both sides of the hit rate."""
    gone = next((n for n in ("query_tokens", "hit_tokens") if added_counter(attached, n).value is None), "")
    return problem(attached, gone) if gone else "no engine reports both lookups and hits"


def _rates(attached: Attached, state: RunState, *names: str) -> Sum:
    return together(attached, names, lambda engine, name: rate(engine, name, state.t_ns, RATE_NS))


def _rate(name: str) -> Figure:
    def read(attached: Attached, state: RunState) -> Reading:
        found = _rates(attached, state, name)
        if found.value is None and added_counter(attached, name).value is not None:
            return missing(TWO_LOOKS)
        return exact(found, attached, name)

    return Figure(read, ((name,),))


def _computed(attached: Attached, state: RunState) -> Reading:
    """Prompt tokens less those found in the cache: the server counts the two at different moments."""
    found = _rates(attached, state, "prompt_tokens", "hit_tokens")
    if found.values is None:
        each = [_rate(name).read(attached, state).missing for name in ("prompt_tokens", "hit_tokens")]
        return missing(each[0] or each[1] or "no engine reports both prompts and hits")
    return truly(max(0.0, found.values[0] - found.values[1]), "estimate", found.part)


def _bucket(name: str, q: float) -> Figure:
    def read(attached: Attached, state: RunState) -> Reading:
        found = merged(attached, name, state.t_ns)
        if found.histogram is None:
            return missing(found.problem or _no_samples(attached, name))
        n = found.histogram.counts[-1]
        if n < MIN_P99 and q > 0.5:
            return missing(f"only {n:.0f} samples in the window")
        ends = quantile(found.histogram, q)
        if ends is None:
            return missing("no samples in the window")
        low, high = ends[0] * NS, None if ends[1] is None else ends[1] * NS
        return truly(low if high is None else high, "bucket", found.part)._replace(lo=low, hi=high)

    return Figure(read, ((name,),))


def _samples(name: str) -> Figure:
    def read(attached: Attached, state: RunState) -> Reading:
        found = merged(attached, name, state.t_ns)
        if found.histogram is None:
            return missing(found.problem or _no_samples(attached, name))
        return truly(round(found.histogram.counts[-1]), "exact", found.part)

    return Figure(read, ((name,),))


def _no_samples(attached: Attached, name: str) -> str:
    if any(name in engine.last.histograms for engine in attached.engines):
        return TWO_LOOKS
    return problem(attached, name)


def _slope(attached: Attached, state: RunState) -> Sum:
    """Change of used blocks a second over the last ten seconds, by the gauges."""

    def read(engine: Engine, name: str) -> float | None:
        if (ends := engine.ends(state.t_ns, SLOPE_NS)) is None:
            return None
        first, last = (occupancy(engine, point.sample) for point in ends)
        seconds = (ends[1].t_ns - ends[0].t_ns) / NS
        return None if first is None or last is None or seconds <= 0 else (last.used - first.used) / seconds

    return together(attached, ("slope",), read)


def _growth(attached: Attached, state: RunState) -> Reading:
    slope = _slope(attached, state)
    return missing(TWO_USAGES) if slope.value is None else truly(slope.value, "estimate", slope.part)


def _reclaimable(attached: Attached, state: RunState) -> Reading:
    found = used_blocks(attached)
    if found.values is None:
        return missing(_used(attached, state).missing)
    return truly(round(found.values[1]), "exact", found.part)


def _runway(attached: Attached, state: RunState) -> Reading:
    slope, left = _slope(attached, state), _reclaimable(attached, state)
    if slope.value is None or not isinstance(left.value, int):
        return missing(left.missing or TWO_USAGES)
    if slope.part and slope.part != servers_part(attached):
        return missing(f"not all engines report their usage twice: {slope.part}")
    return truly(left.value / slope.value * NS, "estimate", slope.part) if slope.value > 0 else missing(NO_GROWTH)


_SIZE = (("num_pages",), ("num_blocks",), ("capacity_tokens",))  # in the order of ``capacity``
_USED = (("blocks/used",), *(("usage", *size) for size in _SIZE))
_NO_REQUESTS = never("servers do not report single requests")

FIGURES: dict[str, Figure] = OWN | {
    "pool.num_blocks": Figure(_blocks, _SIZE),
    "pool.used_share": Figure(_used_share, (("usage",),)),
    "pool.used_blocks": Figure(_used, _USED),
    "pool.cached_blocks": Figure(_cached),
    "runway.reclaimable_blocks": Figure(_reclaimable, (("blocks/fresh", "blocks/idle"), *_USED[1:])),
    "runway.growth_blocks_s": Figure(_growth, _USED),
    "runway.ns": Figure(_runway, _USED),
    "queue.running": _gauge("running"),
    "queue.waiting": _gauge("waiting"),
    "queue.oldest_ns": _NO_REQUESTS,
    "cache.hit_rate": Figure(_hit_rate, (("hit_tokens", "query_tokens"), ("hit_rate",))),
    "cache.query_tokens": _counter("query_tokens"),
    "cache.hit_tokens": _counter("hit_tokens"),
    "cache.recent_hit_rate": Figure(_recent_hit_rate, (("hit_tokens", "query_tokens"),)),
    "cache.recent_request_hit_rate": _NO_REQUESTS,
    "latency.slo_attainment": _NO_REQUESTS,
    "latency.slo_judged": _NO_REQUESTS,
    "throughput.prefill_tokens_s": Figure(_computed, (("prompt_tokens", "hit_tokens"),)),
    "throughput.decode_tokens_s": _rate("generation_tokens"),
    "throughput.requests_s": _rate("finished"),
    "run.preemptions": _counter("preemptions"),
    "run.finished": _counter("finished"),
    "run.rejected": _counter("rejected"),
    **{
        f"latency.{key}_p{part}_ns": _bucket(key, part / 100)
        for key in LATENCIES
        for part in (50, 95, 99)
    },
    **{f"latency.{key}_n": _samples(key) for key in LATENCIES},
}  # fmt: skip
"""By name of the number; a number that is not here is not reported by any server."""
