"""The tables of names: which metrics of vLLM, SGLang and kvtop's own servers say what, under one name of kvtop's.

Of several metrics in a row, an engine's first one counts: a server that serves the old name beside the new one is not
counted twice. A row whose name ends in ``/`` is one figure for each value of the metric's label (``LABELS``):
``blocks/`` is read as ``blocks/used``, ``blocks/idle`` and so on. kvtop's own servers have vLLM's names where they mean
the same, and ``kvtop_*`` for what only kvtop knows. SGLang's agree with its python/sglang/srt/metrics/collector.py and,
of later releases, observability/metrics_collector.py; no real server of it was looked at.
"""

from __future__ import annotations

Table = dict[str, tuple[str, ...]]

GAUGES: Table = {
    "usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "waiting/": ("kvtop_requests_waiting", "vllm:num_requests_waiting_by_reason"),
    "hit_rate": ("vllm:gpu_prefix_cache_hit_rate", "sglang:cache_hit_rate"),
    "capacity_tokens": ("sglang:max_total_num_tokens",),
    "blocks/": ("kvtop_blocks",),
    "slots/": ("kvtop_block_slots",),
    "shared_blocks": ("kvtop_shared_blocks",),
    "host_blocks/": ("kvtop_host_blocks",),
}
COUNTERS: Table = {
    "prompt_tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    "generation_tokens": ("vllm:generation_tokens_total", "sglang:generation_tokens_total"),
    "query_tokens": (
        "vllm:prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_queries_total",
        "sglang:prompt_tokens_total",
    ),
    "hit_tokens": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "sglang:cached_tokens_total"),
    "lookup_ends/": ("kvtop_lookup_ends_total",),
    "evictions": ("kvtop_evictions_total",),
    "evictions/": ("kvtop_evictions_total",),
    "regretted_tokens": ("kvtop_regretted_tokens_total",),
    "preemptions": ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
    "recomputed_tokens": ("kvtop_recomputed_tokens_total",),
    "copies": ("kvtop_block_copies_total",),
    "steps": ("kvtop_steps_total",),
    "step_seconds": ("kvtop_step_part_seconds_total",),
    "events_dropped": ("kvtop_events_dropped_total",),
    "finished": ("vllm:request_success_total", "sglang:num_requests_total"),
    "rejected": ("kvtop_requests_rejected_total", "vllm:admission_rejections_total"),
    "rejected/": ("kvtop_requests_rejected_total",),
}
HISTOGRAMS: Table = {
    "ttft": ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds"),
    "itl": (
        "vllm:inter_token_latency_seconds",
        "vllm:time_per_output_token_seconds",
        "sglang:inter_token_latency_seconds",
        "sglang:time_per_output_token_seconds",
    ),
    "queue": ("vllm:request_queue_time_seconds", "sglang:queue_time_seconds"),
    "tpot": ("vllm:request_time_per_output_token_seconds",),
    "e2e": ("vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds"),
}
LABELS = {
    "kvtop_blocks": "state",
    "kvtop_block_slots": "content",
    "kvtop_host_blocks": "content",
    "kvtop_requests_waiting": "reason",
    "kvtop_lookup_ends_total": "reason",
    "kvtop_evictions_total": "cause",
    "kvtop_requests_rejected_total": "error",
    "vllm:num_requests_waiting_by_reason": "reason",
}
"""The label that tells the series of a metric apart. Its plain name is their sum."""
INFOS = ("vllm:cache_config_info", "sglang:cache_config_info")
INFO_LABELS = {
    "block_size": "block_size",
    "page_size": "block_size",
    "num_gpu_blocks": "num_blocks",
    "num_pages": "num_pages",
    "enable_prefix_caching": "prefix_caching",
}
INFO_GAUGES = {"sglang:page_size": "block_size", "sglang:num_pages": "num_pages"}  # since 0.5.11, in place of labels
STARTED = "process_start_time_seconds"
OURS = "kvtop_run_info"  # kvtop's own servers have vLLM's names too; this one tells them apart

_BY_KIND = {"vllm": ("vllm:",), "sglang": ("sglang:",), "kvtop": ("kvtop_", "vllm:")}


def spelled(ours: str, kind: str) -> str:
    """The metric that says ``ours`` at servers of ``kind`` ("": of any), as one finds it at /metrics; "": none does.

    Where a kind has an old and a new name, both.
    """
    head, slash, label = ours.partition("/")
    row = f"{head}{slash}"
    names = next((table[row] for table in (GAUGES, COUNTERS, HISTOGRAMS) if row in table), ())
    if ours in INFO_LABELS.values():
        names = (*INFOS, *(name for name, label in INFO_GAUGES.items() if label == ours))
    starts = _BY_KIND.get(kind, ("",))
    own = [f'{name}{{{LABELS[name]}="{label}"}}' if label else name for name in names if name.startswith(starts)]
    return " or ".join(own[:1] if kind == "kvtop" else own)
