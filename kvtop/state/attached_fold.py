"""Fold what is seen of attached servers: counters into windows that survive restarts, blocks into a logical pool.

Servers count from their start. What is shown is the difference between two looks at one *life* of an engine: a counter
that has fallen, or a new start time of the process, begins another. So no rate is negative, and no window holds two
lives. Only the machine's monotonic clock is used.
"""

from __future__ import annotations

from itertools import islice

from kvtop.engine.events import EngineSample, KvEvents, Origin, Sample
from kvtop.state.attached import WINDOW_NS, Attached, Engine, Point, Row, Server, rate
from kvtop.state.attached_sums import added_gauge, together, used_share
from kvtop.state.block_runs import settle
from kvtop.state.blocks import BLOCK_FOLDS
from kvtop.state.model import RunState

MIN_PACE_NS = 1_000_000_000  # two looks right behind each other say nothing about a pace


def attached_of(state: RunState) -> Attached:
    """The attached part of ``state``: there from the start of a run that is attached, whoever has answered by then."""
    if state.attached is None:
        manifest = state.manifest
        state.attached = Attached(
            servers={name: Server(name) for name in manifest.get("servers") or ()},
            interval_ns=int(manifest.get("interval_ns", 1_000_000_000)),
        )
    return state.attached


# Metrics -----------------------------------------------------------------------------------------------------


def fold_sample(state: RunState, event: Sample) -> None:
    attached = attached_of(state)
    attached.news = []
    state.step, state.t_ns = event.step, max(state.t_ns, event.t_ns)
    server = attached.servers.setdefault(event.server, Server(event.server))
    if event.problem != server.problem:
        attached.news.append(f"{event.server}: {event.problem or 'answers again'}")
    server.problem, server.t_ns, server.took_ns = event.problem, event.t_ns, event.took_ns
    if event.problem:
        return
    server.kind, server.t_ok_ns = event.kind, event.t_ns
    is_new = None not in (server.started, event.started) and server.started != event.started
    server.started = event.started
    for name in [name for name in server.engines if name not in {_name(sample) for sample in event.engines}]:
        del server.engines[name]
    for sample in event.engines:
        _fold_engine(attached, server, sample, event.t_ns, is_new)
    attached.rows.append(_row(attached, event.t_ns))


def _name(sample: EngineSample) -> str:
    return f"{sample.model} {sample.engine}".strip()


def _fold_engine(attached: Attached, server: Server, sample: EngineSample, t_ns: int, is_new: bool) -> None:
    name = _name(sample)
    engine = server.engines.get(name)
    if engine is None:
        engine = server.engines[name] = Engine(sample)
    elif is_new or _has_fallen(engine.last, sample):
        engine.points.clear()
        engine.num_restarts += 1
        engine.num_still = 0
        attached.news.append(f"{server.name}: engine {sample.engine or '0'} was restarted, its counters begin anew")
    elif sample.gauges.get("running", 0) > 0 and _same(engine.last, sample):
        engine.num_still += 1
    else:
        engine.num_still = 0
    engine.last = sample
    points = engine.points
    if points and t_ns - points[-1].t_ns > max(WINDOW_NS, 3 * attached.interval_ns):
        points.clear()  # nobody has looked for so long (suspended, asleep): the mean over the gap is no rate of now
    points.append(Point(t_ns, sample))
    while len(points) > 2 and points[1].t_ns <= t_ns - WINDOW_NS:
        points.popleft()


def _has_fallen(before: EngineSample, after: EngineSample) -> bool:
    """A counter, or a bucket's, is lower than it was: they only grow within one life."""
    if any(value < before.counters.get(name, value) for name, value in after.counters.items()):
        return True
    for name, histogram in after.histograms.items():
        earlier = before.histograms.get(name)
        if earlier is None or earlier.bounds != histogram.bounds:
            continue
        if any(new < old for new, old in zip(histogram.counts, earlier.counts, strict=True)):
            return True
    return False


def _same(before: EngineSample, after: EngineSample) -> bool:
    return before.gauges == after.gauges and before.counters == after.counters


def _row(attached: Attached, t_ns: int) -> Row:
    span_ns = max(attached.interval_ns, MIN_PACE_NS)

    def pace(name: str) -> float | None:
        return together(attached, (name,), lambda engine, name: rate(engine, name, t_ns, span_ns)).value

    return Row(
        t_ns,
        used_share(attached).value,
        added_gauge(attached, "running").value,
        added_gauge(attached, "waiting").value,
        pace("prompt_tokens"),
        pace("generation_tokens"),
    )


# Blocks ------------------------------------------------------------------------------------------------------


def fold_kv_events(state: RunState, event: KvEvents) -> None:
    """Blocks stored and removed change the pool and the tree as the embedded engine's decisions do."""
    attached = attached_of(state)
    attached.news = list(event.notes)
    state.step, state.t_ns = event.step, max(state.t_ns, event.t_ns)
    for endpoint, problem in event.troubles.items():
        attached.troubles.pop(endpoint, None)
        if problem:
            attached.troubles[endpoint] = problem
    if event.troubles and not event.streams:  # no block is known from it
        return
    attached.num_stored += event.stored
    attached.num_removed += event.removed
    if attached.kv_since_ns is None:
        attached.kv_since_ns = event.t_ns
    for stream in event.streams:
        attached.streams[f"{stream.source} rank {stream.rank}"] = stream
    pool = state.pool
    if pool is None:
        return
    pool.now_ns = event.t_ns
    step, cache = event.step, state.cache
    decisions = iter(event.decisions)
    # In older recordings nothing says which rank it was: there all are one.
    for origin in event.origins or [Origin(len(event.decisions), "", 0)]:
        owner, was_before = f"{origin.source} rank {origin.rank}", origin.when == "before"
        for decision in islice(decisions, origin.count):
            kind = decision[0]
            if fold := BLOCK_FOLDS.get(kind):
                fold(pool, state.sequences, (decision,), step)
            if kind == "evict":
                cache.evicted_by_rank(owner, decision, None if was_before else step)
            elif kind == "publish":
                cache.stored(pool, owner, decision, step, is_news=not was_before and not origin.is_load)
            elif kind == "cleared":
                cache.forget(owner)
    settle(pool, 0)
