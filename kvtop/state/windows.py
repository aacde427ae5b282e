"""Numbers over the last seconds of a run: percentiles with their n, rates, the runway, causes of misses and waits."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import nsmallest

from kvtop.state.model import FRESH, IDLE, History, RunState, SequenceState
from kvtop.state.samples import Samples

RATE_WINDOW_NS = 5_000_000_000
QUIET_NS = 5_000_000_000  # an engine that has work and has told of no step for so long is said to be quiet
RUNWAY_WINDOW_NS = 10_000_000_000


@dataclass(slots=True)
class Summary:
    """Percentiles and the maximum of ``n`` samples, in ns; None when there are none."""

    n: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    peak: float | None = None


def summarise(samples: Samples) -> Summary:
    """Of all samples; their order is kept from frame to frame."""
    counted = samples.counted
    if not counted.values:
        return Summary()
    p50, p95, p99 = (counted.percentile(q) for q in (50, 95, 99))
    return Summary(counted.n, p50, p95, p99, counted.values[-1])


def recent_rate(history: History, column: array[int], now_ns: int, span_ns: int = RATE_WINDOW_NS) -> float | None:
    """``column`` per second over the last ``span_ns`` (or since the run began); None before the first step."""
    if not history.t_ns or now_ns <= 0:
        return None
    span_ns = min(span_ns, now_ns)
    return sum(column[bisect_right(history.t_ns, now_ns - span_ns) :]) * 1e9 / span_ns


def recent_steps(history: History, now_ns: int, span_ns: int) -> int:
    """How many of the last steps were done within the last ``span_ns``."""
    return len(history.t_ns) - bisect_right(history.t_ns, now_ns - span_ns)


# Runway ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Runway:
    """How long the reclaimable blocks last. ``ns`` None: used blocks are not growing, or nothing is known yet."""

    reclaimable: int
    growth: float | None  # of used blocks, a second
    floor: float | None  # blocks a second that the running sequences need if none ends
    ns: float | None
    floor_ns: float | None  # the same at the floor's pace
    victim: str | None  # who would be preempted; None: not known for this victim policy, or nobody runs


def runway(state: RunState) -> Runway | None:
    """None without a pool."""
    pool, history = state.pool, state.history
    if pool is None:
        return None
    reclaimable = pool.counts[FRESH] + pool.counts[IDLE]
    span_ns = min(RUNWAY_WINDOW_NS, state.t_ns)
    count = recent_steps(history, state.t_ns, span_ns)
    growth = floor = None
    if count > 1:
        seconds = (history.t_ns[-1] - history.t_ns[-count]) / 1e9
        if seconds > 0:
            growth = (history.used[-1] - history.used[-count]) / seconds
            decoding = sum(1 for seq in state.sequences.values() if is_decoding(seq))
            floor = decoding / pool.block_size * (count - 1) / seconds
    ns, floor_ns = (reclaimable / pace * 1e9 if pace and pace > 0 else None for pace in (growth, floor))
    return Runway(reclaimable, growth, floor, ns, floor_ns, next_victim(state))


def is_decoding(seq: SequenceState) -> bool:
    return seq.state == "running" and seq.num_tokens - seq.num_computed <= 1


def next_victim(state: RunState) -> str | None:
    """Who loses its blocks in the next preemption: the last in the order (priority, arrival, submission)."""
    if state.manifest.get("victim") not in (None, "last-arrived"):
        return None
    running = [seq for seq in state.sequences.values() if seq.state == "running"]
    return max(running, key=lambda seq: _order(state, seq)).seq_id if running else None


def _order(state: RunState, seq: SequenceState) -> tuple[int, int, int, str]:
    arrival = state.arrivals.get(seq.request_id)
    if arrival is None:
        return (0, seq.t_sched_ns, 0, seq.seq_id)
    return (arrival.priority, arrival.t_sched_ns, arrival.req_index, seq.seq_id)


def since_step_ns(state: RunState) -> int | None:
    """How long ago the last step ended; None before the first."""
    return None if state.last_step is None else max(0, state.t_ns - state.last_step.t_done_ns)


def quiet_ns(state: RunState) -> int | None:
    """How long an engine that has work has told of no step, from ``QUIET_NS`` on; None: it is not quiet."""
    since_ns = since_step_ns(state)
    if state.status != "running" or not state.sequences or since_ns is None or since_ns < QUIET_NS:
        return None
    return since_ns


# Queue -------------------------------------------------------------------------------------------------------


def running_and_waiting(state: RunState) -> tuple[int, int]:
    """How many sequences run now, and how many do not."""
    running = sum(1 for seq in state.sequences.values() if seq.state == "running")
    return running, len(state.sequences) - running


@dataclass(slots=True)
class Waiting:
    """Sequences that wait for one reason."""

    reason: str
    count: int = 0
    oldest: str = ""
    oldest_ns: int = 0  # since it was due


def waiting_by_reason(state: RunState) -> list[Waiting]:
    """Most sequences first. Those behind the head of the line are told apart from the head itself."""
    found: dict[str, Waiting] = {}
    for seq in state.sequences.values():
        if seq.state == "running":
            continue
        reason = state.wait_reason(seq)[0]
        row = found.setdefault(reason, Waiting(reason))
        row.count += 1
        age_ns = state.t_ns - seq.t_sched_ns
        if not row.oldest or age_ns > row.oldest_ns:
            row.oldest, row.oldest_ns = seq.seq_id, age_ns
    return sorted(found.values(), key=lambda row: (-row.count, row.reason))


# Prefix cache ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Hits:
    """Prefix lookups of the window. ``missed``: tokens behind the end of the match, by why it ended there."""

    num_lookups: int = 0
    num_with_hits: int = 0
    prompt_tokens: int = 0
    found_tokens: int = 0
    missed: dict[str, int] = field(default_factory=dict)

    @property
    def missed_tokens(self) -> int:
        return self.prompt_tokens - self.found_tokens


def recent_hits(state: RunState) -> Hits:
    """Of the last LATENCY_WINDOW_NS. O(reasons)."""
    sums = state.lookups
    missed = sorted(((reason, count) for reason, count in sums.missed.items() if count), key=lambda item: -item[1])
    return Hits(len(sums.points), sums.num_with_hits, sums.prompt_tokens, sums.found_tokens, dict(missed))


# Holders -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Holder:
    """A request or a tenant, and what it has cost the pool. Shared blocks count for each of their holders."""

    name: str
    kind: str  # request, tenant
    block_ns: int
    num_blocks: int  # now
    cached_tokens: int = 0
    num_prompt: int = 0


def holders(state: RunState, most: int) -> list[Holder]:
    """Requests that live, and tenants where there are several: the ``most`` of them by block-seconds."""
    now_ns, arrivals = state.t_ns, state.arrivals
    costs: dict[str, int] = {}
    blocks: dict[str, int] = {}
    tenants = {name: Holder(name, "tenant", block_ns, 0) for name, block_ns in state.tenant_block_ns.items()}
    for seq in state.sequences.values():
        name, block_ns = seq.request_id, seq.block_ns(now_ns)
        costs[name] = costs.get(name, 0) + block_ns
        blocks[name] = blocks.get(name, 0) + seq.num_held
        arrival = arrivals.get(name)
        tenant = arrival.tenant if arrival else ""
        holder = tenants.get(tenant) or tenants.setdefault(tenant, Holder(tenant, "tenant", 0, 0))
        holder.block_ns += block_ns
        holder.num_blocks += seq.num_held
    top = nsmallest(most, ((-cost, name) for name, cost in costs.items() if cost))
    requests = [Holder(name, "request", -cost, blocks[name], *_prompt(state, name)) for cost, name in top]
    several = tenants.values() if len(tenants) > 1 else ()
    return sorted([*several, *requests], key=lambda holder: (-holder.block_ns, holder.name))[:most]


def _prompt(state: RunState, name: str) -> tuple[int, int]:
    """Tokens of the prompt found in the cache, and all of them; (0, 0) when its first branch has ended."""
    seq = state.sequences.get(name)
    return (seq.cached_tokens, seq.num_prompt) if seq is not None else (0, 0)


def step_columns(history: History, count: int) -> Iterator[tuple[int, int, int, int, int, int]]:
    """(prefill, decode, evictions, preemptions, used, step_ns) of the last ``count`` steps, oldest first."""
    first = max(0, len(history.t_ns) - count)
    return zip(
        history.prefill_tokens[first:], history.decode_tokens[first:], history.evictions[first:],
        history.preemptions[first:], history.used[first:], history.step_ns[first:], strict=True,
    )  # fmt: skip
