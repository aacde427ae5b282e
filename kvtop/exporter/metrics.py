"""Every metric: its name, kind and meaning, and how it is read. What is not known has no sample, never a 0.

Names with ``vllm:`` mean what they mean there; where kvtop's meaning is narrower, the help says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvtop.engine.types import MissReason, WaitReason
from kvtop.exporter.totals import Buckets, Totals
from kvtop.state.model import RunState

Read = Callable[[Totals, RunState], Iterable["Sample"]]


@dataclass(frozen=True, slots=True)
class Sample:
    value: float
    labels: dict[str, str] = field(default_factory=dict)
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Metric:
    """``kind``: counter, gauge or histogram."""

    name: str
    kind: str
    help: str
    read: Read


# How a metric is read ----------------------------------------------------------------------------------------


def _one(read: Callable[[Totals, RunState], float | None]) -> Read:
    """No label of its own, and no sample before the run has begun."""

    def samples(totals: Totals, state: RunState) -> list[Sample]:
        value = read(totals, state) if state.manifest else None
        return [] if value is None else [Sample(value)]

    return samples


def _count(name: str) -> Read:
    return _one(lambda totals, state: totals.counts[name])


def _step(name: str) -> Read:
    """As of the last step; 0 before the first."""
    return _one(lambda totals, state: getattr(state.last_step, name, 0))


def _by(label: str, read: Callable[[Totals], Counter[str]], always: Iterable[str] = ()) -> Read:
    """One sample for each name; ``always``: those that stand there from the start."""
    always = tuple(always)

    def samples(totals: Totals, state: RunState) -> list[Sample]:
        counts = dict.fromkeys(always, 0) | read(totals)
        return [Sample(count, {label: name}) for name, count in counts.items()] if state.manifest else []

    return samples


def _buckets(read: Callable[[Totals], Buckets]) -> Read:
    def samples(totals: Totals, state: RunState) -> list[Sample]:
        if not state.manifest:
            return []
        found = read(totals)
        counts = found.cumulative
        ends = [*map(repr, found.bounds), "+Inf"]
        rows = [Sample(count, {"le": end}, "_bucket") for end, count in zip(ends, counts, strict=True)]
        total = found.total / found.per_unit if found.per_unit > 1 else found.total
        return [*rows, Sample(total, suffix="_sum"), Sample(counts[-1], suffix="_count")]

    return samples


def _usage(totals: Totals, state: RunState) -> float | None:
    num_blocks, step = state.manifest.get("num_blocks"), state.last_step
    if not num_blocks:
        return None
    return step.used_blocks / (num_blocks - step.withheld_blocks) if step is not None else 0.0


def _blocks(totals: Totals, state: RunState) -> list[Sample]:
    step, pool = state.last_step, state.pool
    if step is not None:
        found = {
            "used": step.used_blocks,
            "idle": step.idle_blocks,
            "fresh": step.fresh_blocks,
            "in_transfer": step.in_transfer_blocks,
            "withheld": step.withheld_blocks,
        }
    elif pool is not None:
        found = dict(zip(("fresh", "idle", "used", "in_transfer", "withheld"), pool.counts, strict=True))
    else:
        return []
    return [Sample(count, {"state": name}) for name, count in found.items()]


def _slots(totals: Totals, state: RunState) -> list[Sample]:
    step = state.last_step
    found = {} if step is None else {"filled": step.filled_slots, "empty": step.reserved_unused_slots}
    return [Sample(count, {"content": name}) for name, count in found.items()]


def _host_blocks(totals: Totals, state: RunState) -> list[Sample]:
    if not (state.manifest.get("host_blocks") or state.manifest.get("host_cache_blocks")) or state.last_step is None:
        return []
    step = state.last_step
    found = {"swapped": step.host_blocks, "cached": step.host_cached_blocks}
    return [Sample(count, {"content": name}) for name, count in found.items()]


def _shared(totals: Totals, state: RunState) -> int | None:
    return None if state.pool is None else sum(count > 1 for count in list(state.pool.refcount))


def _saved(totals: Totals, state: RunState) -> int | None:
    return None if state.pool is None else sum(count - 1 for count in list(state.pool.refcount) if count > 1)


def _waiting(state: RunState) -> Counter[str]:
    """Sequences by why they wait, and requests that no step has seen. Containers are copied in one call: another
    thread may be folding."""
    sequences, arrived = list(state.sequences.values()), list(state.arrivals)
    waiting = Counter(state.wait_reason(seq)[0] or "not_looked_at" for seq in sequences if seq.state != "running")
    known = {seq.request_id for seq in sequences}
    waiting["not_looked_at"] += sum(request_id not in known for request_id in arrived)
    return waiting


def _waiting_by_reason(totals: Totals, state: RunState) -> list[Sample]:
    found = {str(reason): 0 for reason in WaitReason} | {"not_looked_at": 0} | _waiting(state)
    return [Sample(count, {"reason": name}) for name, count in found.items()] if state.manifest else []


_DEFERRED = ("beams", "fault", "pinned", "preempting")


def _vllm_waiting(totals: Totals, state: RunState) -> list[Sample]:
    waiting = _waiting(state)
    deferred = sum(waiting[reason] for reason in _DEFERRED)
    found = {"capacity": waiting.total() - deferred, "deferred": deferred}
    return [Sample(count, {"reason": name}) for name, count in found.items()] if state.manifest else []


_REASONS = {"stop": "stop", "length": "length", "aborted": "abort", "failed": "error", "capacity": "capacity"}


def _ended(totals: Totals) -> Counter[str]:
    return Counter({_REASONS.get(reason, reason): count for reason, count in totals.ended.items()})


def _queue_limit(totals: Totals) -> Counter[str]:
    return Counter(max_num_queued_reqs=totals.rejected["QueueFull"])


def _cache_config(totals: Totals, state: RunState) -> list[Sample]:
    manifest = state.manifest
    if not manifest:
        return []
    labels = {
        "block_size": str(manifest.get("block_size_tokens")),
        "num_gpu_blocks": str(manifest.get("num_blocks")),
        "enable_prefix_caching": str(bool(manifest.get("prefix_caching"))),
        "cache_dtype": str(manifest.get("kv_dtype") or "auto"),
    }
    return [Sample(1, labels)]


_INFO = ("run_id", "policy", "allocator", "eviction", "workload", "executor", "clock", "device", "dtype", "kvtop")


def _run_info(totals: Totals, state: RunState) -> list[Sample]:
    known = {name: str(value) for name in _INFO if (value := state.manifest.get(name)) is not None}
    return [Sample(1, known | {"status": state.status})]  # while its model loads, too: whoever asks learns who answers


def _parts(totals: Totals, state: RunState) -> list[Sample]:
    found = {"schedule": totals.schedule_ns, "execute": totals.execute_ns}
    return [Sample(ns / 1e9, {"part": name}) for name, ns in found.items()] if state.manifest else []


# The metrics -------------------------------------------------------------------------------------------------

_VLLM = (
    Metric("vllm:num_requests_running", "gauge", "Sequences in the batch of the last step.", _step("num_running")),
    Metric("vllm:num_requests_waiting", "gauge", "Sequences that wait, and requests no step has seen yet.",
           _one(lambda t, s: _waiting(s).total())),
    Metric("vllm:num_requests_waiting_by_reason", "gauge",
           "Waiting sequences: capacity (blocks, seats, budget, or behind one of those), deferred (the rest).",
           _vllm_waiting),
    Metric("vllm:kv_cache_usage_perc", "gauge",
           "Used blocks / all blocks (1 = full). Cached blocks that nobody uses are not in it.", _one(_usage)),
    Metric("vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.",
           _count("query_tokens")),
    Metric("vllm:prefix_cache_hits_total", "counter", "Of them, found on the device.", _count("hit_tokens")),
    Metric("vllm:external_prefix_cache_hits_total", "counter", "Of them, found in host memory.",
           _count("host_hit_tokens")),
    Metric("vllm:prompt_tokens_cached_total", "counter", "Prompt tokens found, on the device or in host memory.",
           _one(lambda t, s: t.counts["hit_tokens"] + t.counts["host_hit_tokens"])),
    Metric("vllm:num_preemptions_total", "counter", "Running sequences that lost their blocks.",
           _count("preemptions")),
    Metric("vllm:prompt_tokens_total", "counter", "Prompt tokens of requests whose first token is there.",
           _count("prompt_tokens")),
    Metric("vllm:generation_tokens_total", "counter", "Tokens emitted, of all branches.", _count("output_tokens")),
    Metric("vllm:request_success_total", "counter",
           "Requests that ended, by reason. capacity: alone in the pool, and it could not grow.",
           _by("finished_reason", _ended, _REASONS.values())),
    Metric("vllm:admission_rejections_total", "counter", "Requests refused because the queue was full.",
           _by("reason", _queue_limit)),
    Metric("vllm:request_prompt_tokens", "histogram", "Prompt tokens of requests that ended.",
           _buckets(lambda t: t.prompt_lengths)),
    Metric("vllm:request_generation_tokens", "histogram", "Tokens emitted for requests that ended, all branches.",
           _buckets(lambda t: t.output_lengths)),
    Metric("vllm:request_params_max_tokens", "histogram", "max_tokens of requests that ended.",
           _buckets(lambda t: t.asked_lengths)),
    Metric("vllm:request_params_n", "histogram", "n of requests that ended.", _buckets(lambda t: t.branches)),
    Metric("vllm:iteration_tokens_total", "histogram", "Tokens computed in a step.",
           _buckets(lambda t: t.step_tokens)),
    Metric("vllm:time_to_first_token_seconds", "histogram", "From the moment a request was due to its first token.",
           _buckets(lambda t: t.ttft)),
    Metric("vllm:inter_token_latency_seconds", "histogram",
           "Gaps between the tokens of a sequence; k tokens of one step are k gaps of gap / k.",
           _buckets(lambda t: t.itl)),
    Metric("vllm:request_time_per_output_token_seconds", "histogram", "(last - first token) / (tokens - 1) of one.",
           _buckets(lambda t: t.tpot)),
    Metric("vllm:e2e_request_latency_seconds", "histogram", "From the moment a request was due to its end.",
           _buckets(lambda t: t.e2e)),
    Metric("vllm:request_queue_time_seconds", "histogram",
           "From submission to the first step that computes a token of it.", _buckets(lambda t: t.queue)),
    Metric("vllm:request_inference_time_seconds", "histogram",
           "From the first step that computes a token of it to its end, preemptions included.",
           _buckets(lambda t: t.inference)),
    Metric("vllm:request_prefill_time_seconds", "histogram", "From that step to the first token.",
           _buckets(lambda t: t.prefill)),
    Metric("vllm:request_decode_time_seconds", "histogram", "From the first token to the end.",
           _buckets(lambda t: t.decode)),
    Metric("vllm:cache_config_info", "gauge", "The KV cache, in labels.", _cache_config),
)  # fmt: skip
_KVTOP = (
    Metric("kvtop_run_info", "gauge", "The run, in labels.", _run_info),
    Metric("kvtop_run_seconds", "gauge", "The run's clock.", _one(lambda t, s: s.t_ns / 1e9)),
    Metric("kvtop_blocks", "gauge", "Blocks by state: used, idle (cached, evictable), fresh, in_transfer.", _blocks),
    Metric("kvtop_block_slots", "gauge", "Token slots of used blocks, filled or empty; shared blocks once.", _slots),
    Metric("kvtop_host_blocks", "gauge", "Blocks in host memory: swapped-out sequences, or evicted prefixes.",
           _host_blocks),
    Metric("kvtop_shared_blocks", "gauge", "Used blocks that two or more sequences hold.", _one(_shared)),
    Metric("kvtop_blocks_saved_by_sharing", "gauge", "Blocks more that would be used if nothing were shared.",
           _one(_saved)),
    Metric("kvtop_requests_waiting", "gauge",
           "Waiting sequences by why. head_of_line: behind one that does not fit; not_looked_at: no step has yet.",
           _waiting_by_reason),
    Metric("kvtop_waits_total", "counter", "Times a sequence began to wait for this reason.",
           _by("reason", lambda t: t.waits, map(str, WaitReason))),
    Metric("kvtop_requests_rejected_total", "counter", "Requests refused at submission, by error.",
           _by("error", lambda t: t.rejected, ("InvalidRequest", "QueueFull", "RequestTooLong"))),
    Metric("kvtop_lookup_ends_total", "counter", "Prefix lookups by why the match ended where it did.",
           _by("reason", lambda t: t.lookup_ends, map(str, MissReason))),
    Metric("kvtop_evictions_total", "counter",
           "Cached blocks evicted, by what the room was for: prefill, decode (the sequence has emitted), forced.",
           _by("cause", lambda t: t.evicted, ("prefill", "decode", "forced"))),
    Metric("kvtop_ghost_blocks", "gauge", "Evicted prefixes still remembered, to tell when one is wanted again.",
           _one(lambda t, s: len(s.cache.ghosts))),
    Metric("kvtop_regretted_tokens_total", "counter", "Tokens computed again because their block had been evicted.",
           _one(lambda t, s: s.cache.regret_tokens)),
    Metric("kvtop_computed_tokens_total", "counter", "Tokens computed, those computed again included.",
           _count("computed_tokens")),
    Metric("kvtop_recomputed_tokens_total", "counter", "Tokens computed again after a preemption.",
           _one(lambda t, s: s.totals.get("recomputed_tokens", 0))),
    Metric("kvtop_restored_tokens_total", "counter", "Tokens that came back after a preemption without computing.",
           _one(lambda t, s: s.totals.get("restored_tokens", 0))),
    Metric("kvtop_block_copies_total", "counter", "Blocks copied because branches that shared them diverged.",
           _count("copies")),
    Metric("kvtop_steps_total", "counter", "Steps that computed something.", _count("steps")),
    Metric("kvtop_step_seconds", "histogram", "Start to end of a step.", _buckets(lambda t: t.step)),
    Metric("kvtop_step_part_seconds_total", "counter", "Time in steps, by part: schedule, execute.", _parts),
    Metric("kvtop_events_dropped_total", "counter", "Events this process was too slow for.", _count("events_dropped")),
)  # fmt: skip

METRICS: tuple[Metric, ...] = (*_VLLM, *_KVTOP)
