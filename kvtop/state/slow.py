"""Where the time of the slow ones went, who they are, and what a gap between tokens depends on.

Definitions (docs/latency.md has them in full). Of a request, its time is cut at moments that the log holds:

    late       due -> submitted: a step ran when it was due
    capacity   in the queue, while its head was refused for want of blocks (no_blocks, pinned, no_hole), or nobody was
               admitted because somebody had just been preempted
    seats      in the queue, while all seats were taken
    budget     in the queue, while the step's tokens were spent
    unsaid     in the queue, with no reason on record
    prefill    its first step -> its first token
    preempted  without blocks: from a preemption until it was admitted again
    beside     decoding, in steps that also computed prompt tokens (interference)
    decode     decoding, in all other steps

A gap between tokens has one cause: ``preempted`` when it holds a preemption, ``beside`` when the step that ended it
also computed prompt tokens, else ``decode``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kvtop.state.latency import METRICS, Metric, Spread, ended_well, points_of, spread_of, value_of
from kvtop.state.model import RunState
from kvtop.state.request_rows import DONE, EndedRow, LiveRow, Row, ended_rows
from kvtop.state.samples import LATENCY_WINDOW_NS, Point
from kvtop.state.step_clock import StepClock
from kvtop.workloads.words import counted

PARTS = ("late", "capacity", "seats", "budget", "unsaid", "prefill", "preempted", "beside", "decode")
SLOW = 95  # percentile from which on one is slow
MIN_SLOW = 20  # of fewer values there is no slow set


@dataclass(slots=True)
class Anatomy:
    """Mean time by part over the slow ones: those at or above ``limit_ns``, the SLOW-th percentile.

    ``n``: of them, those whose parts are known; ``untold`` began before the steps that are kept. Of ITL ``counts`` says
    how many of the slow gaps have each cause.
    """

    limit_ns: float
    n: int = 0
    untold: int = 0
    mean_ns: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outlier:
    """One of the slowest. ``lead``: kind and id, for ``app.select``."""

    value_ns: float
    name: str
    cause: str  # of PARTS
    text: str
    lead: tuple[str, str | int]


@dataclass(slots=True)
class BySize:
    """Gaps that ended in steps with ``low`` to ``high`` decoding sequences, or of one kind."""

    label: str
    spread: Spread


@dataclass(slots=True)
class Analysis:
    """Everything the Latency screen shows of one metric at one moment."""

    metric: Metric
    points: list[Point]
    spread: Spread
    anatomy: Anatomy | None  # None: too few values
    outliers: list[Outlier]
    by_size: list[BySize]
    untold_gaps: int = 0  # gaps whose step is no longer kept


def analyse(state: RunState, key: str) -> Analysis:
    """O(samples + steps kept + requests in the window)."""
    clock, points = StepClock(state), points_of(state, key)
    spread = spread_of(points)
    limit = None
    if spread.n >= MIN_SLOW:
        limit = spread.p95
    if key == "itl":
        anatomy, outliers = _slow_gaps(state, clock, points, limit)
    else:
        anatomy, outliers = _slow_requests(state, clock, key, limit)
    by_size, untold = gaps_by_size(clock, points if key == "itl" else points_of(state, "itl"))
    return Analysis(METRICS[key], points, spread, anatomy, outliers, by_size, untold)


def _slow_requests(
    state: RunState, clock: StepClock, key: str, limit: float | None
) -> tuple[Anatomy | None, list[Outlier]]:
    rows = sorted(
        ((value, row) for row in _candidates(state, key) if (value := value_of(row, key)) is not None),
        key=lambda pair: (-pair[0], pair[1].name),
    )
    outliers = [_outlier(state, clock, key, value, row) for value, row in rows[:20]]
    if limit is None:
        return None, outliers
    anatomy = Anatomy(limit)
    slow = [(value, row) for value, row in rows if value >= limit]
    for value, row in slow:
        parts = parts_of(state, clock, row, key)
        if parts is None:
            anatomy.untold += 1
            continue
        anatomy.n += 1
        anatomy.mean_ns += value
        scale = value / max(1, sum(parts.values())) if key == "tpot" else 1  # a token's share of the answer's time
        for part, ns in parts.items():
            anatomy.parts[part] = anatomy.parts.get(part, 0) + ns * scale
    if anatomy.n:
        anatomy.mean_ns /= anatomy.n
        anatomy.parts = {part: ns / anatomy.n for part, ns in anatomy.parts.items()}
    return anatomy, outliers


def _candidates(state: RunState, key: str) -> Iterator[Row]:
    """Requests whose value of the metric is from within the window; TTFT and queue also of those that live."""
    oldest = state.t_ns - LATENCY_WINDOW_NS
    if key in ("tpot", "e2e"):
        yield from ended_well(state)
        return
    for row in ended_rows(state):
        moment = row.event.t_first_token_ns if key == "ttft" else row.event.t_first_sched_ns
        if moment is not None and moment >= oldest:
            yield row
    for seq in state.sequences.values():
        row = LiveRow(state, seq)
        if seq.seq_id != seq.request_id or row.status == "waiting":
            continue
        moment = seq.t_first_token_ns if key == "ttft" else row.first_sched_ns
        if moment is not None and moment >= oldest:
            yield row


def parts_of(state: RunState, clock: StepClock, row: Row, key: str) -> dict[str, int] | None:
    """The time that the metric counts, of one request, by part. None: its steps are no longer all known."""
    cuts = _moments(row)
    first, last = METRICS[key].cuts
    start, end = cuts.get(first), cuts.get(last)
    if start is None or end is None or not clock.knows(start):
        return None
    out: dict[str, int] = {}

    def inside(a: str, b: str) -> tuple[int, int] | None:
        low, high = cuts.get(a), cuts.get(b)
        if low is None or high is None:
            return None
        low, high = max(low, start), min(high, end)
        return (low, high) if high > low else None

    def add(parts: dict[str, int]) -> None:
        for part, ns in parts.items():
            if ns:
                out[part] = out.get(part, 0) + ns

    away = _away(state, clock, row)
    if span := inside("due", "submitted"):
        add({"late": span[1] - span[0]})
    if span := inside("submitted", "scheduled"):
        add(clock.waits(*span))
    if span := inside("scheduled", "first"):
        for low, high in _without(span, away):
            add({"prefill": high - low})
        add({"preempted": _within(span, away)})
    if span := inside("first", "end" if last == "end" else "last"):
        for low, high in _without(span, away):
            add(clock.decoding(low, high))
        add({"preempted": _within(span, away)})
    return out


def _moments(row: Row) -> dict[str, int | None]:
    if isinstance(row, EndedRow):
        event = row.event
        return {
            "due": event.t_sched_ns,
            "submitted": event.t_submit_ns,
            "scheduled": event.t_first_sched_ns,
            "first": event.t_first_token_ns,
            "last": event.t_last_token_ns,
            "end": event.t_done_ns,
        }
    seq = row.seq
    return {
        "due": seq.t_sched_ns,
        "submitted": seq.t_submit_ns,
        "scheduled": row.first_sched_ns,
        "first": seq.t_first_token_ns,
        "last": seq.t_last_token_ns,
        "end": None,
    }


def _away(state: RunState, clock: StepClock, row: Row) -> list[tuple[int, int]]:
    """When it had no blocks after preemptions, from its log; of a request with branches those of the first."""
    if not row.preemptions:
        return []
    log = state.logs.find(row.name, ended=row.id.startswith(DONE))
    starts = dict(zip(clock.steps, clock.starts, strict=True))
    found: list[tuple[int, int]] = []
    since: int | None = None
    for entry in (*log.older, *log.entries) if log is not None else ():
        if entry.decision[1] != row.name:
            continue
        if entry.decision[0] == "preempted":
            since = starts.get(entry.step)
        elif entry.decision[0] == "resumed" and since is not None:
            found.append((since, starts.get(entry.step, since)))
            since = None
    return found


def _within(span: tuple[int, int], away: Iterable[tuple[int, int]]) -> int:
    return sum(max(0, min(span[1], high) - max(span[0], low)) for low, high in away)


def _without(span: tuple[int, int], away: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    begin = span[0]
    for low, high in away:
        if high <= begin or low >= span[1]:
            continue
        if low > begin:
            yield begin, low
        begin = max(begin, high)
    if begin < span[1]:
        yield begin, span[1]


def _outlier(state: RunState, clock: StepClock, key: str, value: float, row: Row) -> Outlier:
    parts = parts_of(state, clock, row, key)
    cause = max(parts, key=lambda part: parts[part]) if parts else ""
    share = parts[cause] / max(1, sum(parts.values())) if parts else 0.0
    return Outlier(value, row.name, cause, f"{100 * share:.0f} %" if parts else "", ("request", row.name))


# Gaps --------------------------------------------------------------------------------------------------------


def _slow_gaps(
    state: RunState, clock: StepClock, points: list[Point], limit: float | None
) -> tuple[Anatomy | None, list[Outlier]]:
    held = {(t_ns, gap): seq_id for t_ns, gap, seq_id in state.preempted_gaps.points}
    rows = sorted(points, key=lambda point: (-point[1], point[0]))
    outliers = [found for point in rows[:20] if (found := _gap_outlier(clock, held, point)) is not None]
    if limit is None:
        return None, outliers
    anatomy, total = Anatomy(limit), 0
    for point in rows:
        if point[1] < limit:
            break
        cause = _cause(clock, held, point)
        if cause is None:
            anatomy.untold += point[2]
            continue
        anatomy.n += point[2]
        total += point[1] * point[2]
        anatomy.parts[cause] = anatomy.parts.get(cause, 0.0) + point[1] * point[2]
        anatomy.counts[cause] = anatomy.counts.get(cause, 0) + point[2]
    if anatomy.n:
        anatomy.mean_ns = total / anatomy.n
        anatomy.parts = {part: ns / anatomy.n for part, ns in anatomy.parts.items()}
    return anatomy, outliers


def _cause(clock: StepClock, held: dict[tuple[int, int], str], point: Point) -> str | None:
    if (point[0], point[1]) in held:
        return "preempted"
    place = clock.by_end.get(point[0])
    return None if place is None else "beside" if clock.prefill[place] else "decode"


def _gap_outlier(clock: StepClock, held: dict[tuple[int, int], str], point: Point) -> Outlier | None:
    t_ns, gap, count = point
    cause, place = _cause(clock, held, point), clock.by_end.get(t_ns)
    if cause is None or place is None:
        return None
    step, who = clock.steps[place], held.get((t_ns, gap))
    name = who or counted(count, "gap")
    text = f"{clock.prefill[place]:,} prompt tokens" if cause == "beside" else f"{clock.decode[place]:,} decoding"
    return Outlier(gap, name, cause, f"step {step:,}, {text}", ("step", step))


def gaps_by_size(clock: StepClock, points: Iterable[Point]) -> tuple[list[BySize], int]:
    """Gaps by how many sequences decoded in the step that ended them (powers of two), then by prompt tokens in it."""
    sizes: dict[int, list[Point]] = {}
    kinds: dict[bool, list[Point]] = {False: [], True: []}
    untold = 0
    for point in points:
        place = clock.by_end.get(point[0])
        if place is None:
            untold += point[2]
            continue
        sizes.setdefault(max(1, clock.decode[place]).bit_length() - 1, []).append(point)
        kinds[clock.prefill[place] > 0].append(point)
    found = [BySize(_size_label(power), spread_of(of_size)) for power, of_size in sorted(sizes.items())]
    found.append(BySize("no prefill in the step", spread_of(kinds[False])))
    found.append(BySize("prefill in the step", spread_of(kinds[True])))
    return found, untold


def _size_label(power: int) -> str:
    low, high = 1 << power, (2 << power) - 1
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"
