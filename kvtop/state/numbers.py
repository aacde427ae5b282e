"""Every number of the overview by name: how it is read from a state, and what it means.

One table for the screen, for what ``e`` explains, for the JSON of ``kvtop once`` and of exports: of one moment they
cannot differ. None is "not known" or "does not apply", never 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvtop.analysis.slo import Goodput
from kvtop.analysis.stats import ratio
from kvtop.state.attached_numbers import read_number
from kvtop.state.latency import objectives_met, points_of, spread_of
from kvtop.state.model import FRESH, IDLE, IN_TRANSFER, USED, WITHHELD, RunState
from kvtop.state.samples import Samples
from kvtop.state.windows import (
    RATE_WINDOW_NS,
    RUNWAY_WINDOW_NS,
    Hits,
    recent_hits,
    recent_rate,
    running_and_waiting,
    runway,
    since_step_ns,
    summarise,
    waiting_by_reason,
)

Value = int | float | str | None
Read = Callable[[RunState], Value]

PARTS = ("p50", "p95", "p99")
MIN_P99 = 20  # fewer samples than this have no 95th or 99th percentile worth telling
MISS_WORDS = {
    "never_seen": "never seen",
    "evicted": "evicted",
    "last_token": "last block",
    "not_yet_computed": "being computed",
    "other_salt": "other salt",
    "prompt_logprobs": "logprobs asked",
    "cache_off": "cache off",
}
"""Why a match ends, short. ``last block``: all that may be cached was; whole blocks, and one token always computed."""


@dataclass(frozen=True, slots=True)
class Number:
    """``unit``: blocks, slots, tokens, ns, ratio, tokens/s, blocks/s, requests/s, requests, count or name."""

    name: str
    title: str
    unit: str
    read: Read
    formula: str
    window: str = "at the cursor"
    source: str = "exact, from the events of the engine"


def _blocks(state: RunState, which: int) -> int | None:
    return state.pool.counts[which] if state.pool is not None else None


def shared_blocks(state: RunState) -> int | None:
    """Used blocks that two or more sequences hold. O(blocks)."""
    return None if state.pool is None else sum(1 for count in state.pool.refcount if count > 1)


def _fill(state: RunState) -> float | None:
    step = state.last_step
    if step is None:
        return None
    return ratio(step.filled_slots, step.filled_slots + step.reserved_unused_slots)


def _objectives(read: Callable[[Goodput], float | None]) -> Read:
    """None without objectives."""
    return lambda state: None if (met := objectives_met(state)) is None else read(met)


def _total(name: str) -> Read:
    return lambda state: state.totals.get(name, 0) if state.pool is not None else None


def _part(samples: Samples, part: str) -> float | None:
    summary = summarise(samples)
    return getattr(summary, part) if part == "p50" or summary.n >= MIN_P99 else None


def _spread(state: RunState, key: str, part: str) -> float | None:
    spread = spread_of(points_of(state, key))
    return getattr(spread, part) if part == "p50" or spread.n >= MIN_P99 else None


def cached_blocks(state: RunState) -> int | None:
    """Blocks whose prefix is published, in use or not. O(blocks)."""
    return None if state.pool is None else sum(1 for key in state.pool.key if key is not None)


def _used_share(state: RunState) -> float | None:
    return None if state.pool is None else ratio(state.pool.counts[USED], state.pool.num_usable)


def hit_rate(state: RunState) -> float | None:
    if state.manifest.get("prefix_caching") is False:
        return None
    return ratio(state.totals.get("hit_tokens", 0), state.totals.get("query_tokens", 0))


def _runway(field: str) -> Read:
    def read(state: RunState) -> Value:
        ahead = runway(state)
        return None if ahead is None else getattr(ahead, field)

    return read


def _hits(read: Callable[[Hits], Value]) -> Read:
    return lambda state: None if state.manifest.get("prefix_caching") is False else read(recent_hits(state))


def _missed(reason: str) -> Read:
    return _hits(lambda hits: ratio(hits.missed.get(reason, 0), hits.missed_tokens))


def _oldest(state: RunState) -> int | None:
    return max((row.oldest_ns for row in waiting_by_reason(state)), default=None)


def _step(name: str) -> Read:
    return lambda state: getattr(state.last_step, name) if state.last_step is not None else None


def _queued(which: int) -> Read:
    return lambda state: None if state.pool is None else running_and_waiting(state)[which]


def _rate(column: str) -> Read:
    return lambda state: recent_rate(state.history, getattr(state.history, column), state.t_ns)


_WHOLE_RUN, _MINUTE = "the whole run so far", "the last 60 s of run time"
_RECENT, _AHEAD = (
    f"the last {RATE_WINDOW_NS // 10**9} s of run time",
    f"the last {RUNWAY_WINDOW_NS // 10**9} s of run time",
)
_P = "interpolated linearly between the two nearest samples"

_POOL = (
    Number("pool.num_blocks", "blocks", "blocks", lambda s: s.pool.num_blocks if s.pool else None, "size of the pool"),
    Number("pool.used_blocks", "used", "blocks", lambda s: _blocks(s, USED), "blocks with refcount > 0"),
    Number("pool.used_share", "in use", "ratio", _used_share, "used blocks / all blocks that are not withheld"),
    Number("pool.cached_blocks", "cached", "blocks", cached_blocks, "blocks whose prefix is published, used or idle"),
    Number("pool.shared_blocks", "shared", "blocks", shared_blocks, "used blocks with refcount > 1 (part of used)"),
    Number("pool.idle_blocks", "idle", "blocks", lambda s: _blocks(s, IDLE), "refcount 0, prefix published: evictable"),
    Number("pool.fresh_blocks", "fresh", "blocks", lambda s: _blocks(s, FRESH), "refcount 0, nothing published"),
    Number("pool.in_transfer_blocks", "in transfer", "blocks", lambda s: _blocks(s, IN_TRANSFER),
           "released, but not reusable before a copy is done"),
    Number("pool.withheld_blocks", "withheld", "blocks", lambda s: _blocks(s, WITHHELD),
           "out of circulation: the pool may use fewer than it has"),
    Number("pool.usable_blocks", "usable", "blocks", lambda s: s.pool.limit if s.pool else None,
           "blocks that may be used; while too many are in use, more are"),
    Number("pool.token_fill", "token fill", "ratio", _fill, "filled slots / all slots of used blocks"),
    Number("pool.tail_waste_slots", "tail waste", "slots", _step("reserved_unused_slots"),
           "slots of used blocks that hold nothing: last blocks are rarely full"),
    Number("runway.reclaimable_blocks", "reclaimable", "blocks", _runway("reclaimable"), "fresh + idle"),
    Number("runway.growth_blocks_s", "growth", "blocks/s", _runway("growth"), "change of used blocks / time", _AHEAD),
    Number("runway.floor_blocks_s", "floor", "blocks/s", _runway("floor"),
           "decoding sequences / block size x steps a second: what they need if none ends", _AHEAD),
    Number("runway.ns", "runway", "ns", _runway("ns"),
           "reclaimable / growth; not known while used blocks do not grow", _AHEAD, "an extrapolation"),
    Number("runway.victim", "next victim", "name", _runway("victim"),
           "the running sequence that is last by (priority, arrival, submission)"),
)  # fmt: skip
_QUEUE = (
    Number("queue.running", "running", "requests", _queued(0), "sequences that hold a seat"),
    Number("queue.waiting", "waiting", "requests", _queued(1), "sequences that have arrived and hold none"),
    Number("queue.oldest_ns", "oldest waiting", "ns", _oldest, "now - the moment it was due"),
    *(
        Number(f"latency.queue_{part}_ns", f"queue time {part}", "ns", lambda s, part=part: _part(s.queue, part),
               f"submission to the start of the first step that computes a token of it; {_P}", _MINUTE)
        for part in PARTS
    ),
    Number("latency.queue_n", "queue time n", "count", lambda s: summarise(s.queue).n, "samples", _MINUTE),
)  # fmt: skip
_CACHE = (
    Number("cache.hit_rate", "prefix hits", "ratio", hit_rate,
           "prompt tokens found in the cache at first admission / prompt tokens looked up", _WHOLE_RUN),
    Number("cache.query_tokens", "looked up", "tokens", _total("query_tokens"), "prompt tokens looked up", _WHOLE_RUN),
    Number("cache.hit_tokens", "found", "tokens", _total("hit_tokens"), "of them, found in the cache", _WHOLE_RUN),
    Number("cache.recent_hit_rate", "prefix hits, last minute", "ratio",
           _hits(lambda h: ratio(h.found_tokens, h.prompt_tokens)), "tokens found / tokens looked up", _MINUTE),
    Number("cache.recent_request_hit_rate", "requests with a hit", "ratio",
           _hits(lambda h: ratio(h.num_with_hits, h.num_lookups)), "lookups that found a block / lookups", _MINUTE),
    *(
        Number(f"cache.missed_{reason}", f"missed: {words}", "ratio", _missed(reason),
               "tokens behind the end of the match, where it ended for this reason / all such tokens", _MINUTE)
        for reason, words in MISS_WORDS.items()
    ),
    Number("cache.evictions", "evicted", "count", _total("evictions"),
           "idle blocks taken because no fresh one was left", _WHOLE_RUN),
    Number("cache.regretted_tokens", "wanted again", "tokens",
           lambda s: s.cache.regret_tokens if s.pool and not s.cache.is_cut else None,
           "tokens computed again because their block had been evicted", _WHOLE_RUN),
)  # fmt: skip
_LATENCY = (
    *(
        Number(f"latency.{key}_{part}_ns", f"{key.upper()} {part}", "ns",
               lambda s, key=key, part=part: _part(getattr(s, key), part), f"{what}; {_P}", _MINUTE)
        for key, what in (("ttft", "first token - the moment the request was due"),
                          ("itl", "gap between two tokens of a sequence; k tokens of one step are k gaps of gap / k"))
        for part in PARTS
    ),
    Number("latency.ttft_n", "TTFT n", "count", lambda s: summarise(s.ttft).n, "samples", _MINUTE),
    Number("latency.itl_n", "ITL n", "count", lambda s: summarise(s.itl).n, "samples", _MINUTE),
    *(
        Number(f"latency.{key}_{part}_ns", f"{key.upper()} {part}", "ns",
               lambda s, key=key, part=part: _spread(s, key, part), f"{what}; {_P}", _MINUTE)
        for key, what in (("tpot", "(last - first token) / (tokens - 1) of an answer that ended"),
                          ("e2e", "end - the moment the request was due, of an answer that ended"))
        for part in PARTS
    ),
    Number("latency.tpot_n", "TPOT n", "count", lambda s: spread_of(points_of(s, "tpot")).n, "samples", _MINUTE),
    Number("latency.e2e_n", "E2E n", "count", lambda s: spread_of(points_of(s, "e2e")).n, "samples", _MINUTE),
    Number("latency.slo_attainment", "SLO met", "ratio", _objectives(lambda met: met.attainment),
           "requests that met the objectives given with --slo / those judged, of the requests that ended", _MINUTE),
    Number("latency.slo_judged", "SLO n", "requests", _objectives(lambda met: met.judged),
           "requests that ended and are judged by --slo", _MINUTE),
)  # fmt: skip
_RUN = (
    Number("throughput.prefill_tokens_s", "prefill", "tokens/s", _rate("prefill_tokens"),
           "tokens computed below the last known position of their sequence / time", _RECENT),
    Number("throughput.decode_tokens_s", "decode", "tokens/s", _rate("decode_tokens"),
           "tokens computed at the last position / time: each yields a token", _RECENT),
    Number("throughput.requests_s", "requests", "requests/s", _rate("finished"),
           "sequences that ended / time", _RECENT),
    Number("throughput.step_ns", "step", "ns", lambda s: s.history.step_ns[-1] if s.history.step_ns else None,
           "start to end of the last step"),
    Number("throughput.step_tokens", "tokens of the step", "tokens",
           lambda s: s.last_step.prefill_tokens + s.last_step.decode_tokens if s.last_step else None,
           "tokens computed in the last step, of its budget"),
    Number("throughput.step_sequences", "sequences of the step", "requests", _step("num_running"),
           "sequences that hold a seat after the last step"),
    Number("run.since_step_ns", "since the last step", "ns", since_step_ns, "now - the end of the last step"),
    Number("run.preemptions", "preempted", "count", _total("preemptions"),
           "running sequences that lost their blocks", _WHOLE_RUN),
    Number("run.recomputed_tokens", "computed again", "tokens", _total("recomputed_tokens"),
           "positions computed that had been computed before a preemption", _WHOLE_RUN),
    Number("run.copies", "copies", "count", _total("copies"),
           "blocks copied because branches that shared them diverged", _WHOLE_RUN),
    Number("run.finished", "finished", "requests", lambda s: s.num_finished, "requests that ended", _WHOLE_RUN),
    Number("run.rejected", "rejected", "requests", lambda s: s.num_rejected,
           "requests refused at submission", _WHOLE_RUN),
    Number("run.events_dropped", "events dropped", "count", lambda s: s.events_dropped,
           "events this screen was too slow for", _WHOLE_RUN),
)  # fmt: skip

NUMBERS: dict[str, Number] = {number.name: number for number in (*_POOL, *_QUEUE, *_CACHE, *_LATENCY, *_RUN)}


def read_all(state: RunState) -> dict[str, Value]:
    """Every number at this moment, by name. How true one of an attached server's is, ``attached_numbers`` says."""
    if state.attached is not None:
        return {name: read_number(state, name).value for name in NUMBERS}
    return {name: number.read(state) for name, number in NUMBERS.items()}
