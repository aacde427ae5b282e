"""The columns of every result table: fixed and explicit, never inferred from the first rows.

Times are int64 ns of the run's clock, counts are int64; what has not happened or is not known is null, never 0 or NaN.
Every file carries ``kvtop.schema_version`` and ``kvtop.definitions_version`` (what each measured column means:
``DEFINITIONS``) in its Parquet metadata.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from kvtop.results.versions import DEFINITIONS_VERSION, RESULTS_SCHEMA_VERSION

Schema = dict[str, Any]  # column name -> polars data type

INT, TEXT, FLAG = pl.Int64, pl.String, pl.Boolean


def _schema(kind: Any, names: str, /, **others: Any) -> Schema:
    """Columns ``names`` of type ``kind``, in order; ``others`` name the exceptions."""
    return {name: others.get(name, kind) for name in names.split()}


def _typed(kind: Any, names: str) -> Schema:
    return dict.fromkeys(names.split(), kind)


RUNS: Schema = _schema(
    TEXT,
    "run_id sweep_point_hash started_utc status clock executor model device dtype policy policy_params allocator "
    "batch_policy eviction preemption_mode seed replicate workload workload_hash trace_sha256 time_scale limit "
    "cost_model cost_model_hash block_size_tokens num_blocks kv_bytes_per_block max_num_seqs max_batched_tokens "
    "max_model_len prefix_caching chunked_prefill cache_state warmup_requests window_start_ns window_end_ns "
    "events_dropped git_sha git_dirty python torch triton transformers kvtop cpu gpu os definitions_version "
    "schema_version length_scale too_long replay loop kv_dtype victim host_blocks host_cache_blocks computed_by "
    "num_requests max_seconds slo error run_dir",
    **_typed(
        INT,
        "seed replicate limit block_size_tokens num_blocks kv_bytes_per_block max_num_seqs max_batched_tokens "
        "max_model_len warmup_requests window_start_ns window_end_ns events_dropped definitions_version "
        "schema_version host_blocks host_cache_blocks num_requests",
    ),
    **_typed(FLAG, "prefix_caching chunked_prefill git_dirty"),
    **_typed(pl.Float64, "time_scale length_scale max_seconds"),
)

REQUESTS: Schema = _schema(
    INT,
    "run_id req_index request_id session_id turn parent_request_id group tenant class priority n prompt_tokens "
    "requested_output_tokens output_tokens t_sched_ns t_submit_ns t_first_sched_ns t_first_token_ns t_last_token_ns "
    "t_done_ns lag_ns queue_first_ns queue_total_ns prefill_ns ttft_ns ttft_submit_ns tpot_ns e2e_ns itl_max_ns "
    "hit_tokens host_hit_tokens ideal_hit_tokens miss_reason restored_tokens recomputed_tokens num_preemptions "
    "preempted_ns peak_blocks shared_blocks_saved finish_reason status phase slo_ok shared_prefix_tokens",
    **_typed(
        TEXT, "run_id request_id session_id parent_request_id group tenant class miss_reason finish_reason status phase"
    ),
    slo_ok=FLAG,
)

STEPS: Schema = _schema(
    INT,
    "run_id step t_start_ns t_planned_ns t_done_ns device_ns predicted_ns num_running num_waiting prefill_tokens "
    "decode_tokens used_blocks idle_blocks fresh_blocks in_transfer_blocks filled_slots reserved_unused_slots "
    "host_cached_blocks query_tokens hit_tokens host_hit_tokens evictions preemptions copies admitted finished "
    "waiting_reason head_of_line output_tokens",
    **_typed(TEXT, "run_id waiting_reason head_of_line"),
)

EVENTS: Schema = _schema(
    INT,
    "run_id seq step t_ns kind request_id group block block_key parent_key other reason num_tokens age_steps "
    "idle_steps uses need_blocks have_blocks",
    **_typed(TEXT, "run_id kind request_id other reason"),
)

TOKENS: Schema = _schema(INT, "run_id req_index branch token_index t_ns step", run_id=TEXT)

SCHEMAS: dict[str, Schema] = {"requests": REQUESTS, "steps": STEPS, "events": EVENTS}
"""Tables of every run, by file name without ``.parquet``."""

OPTIONAL: dict[str, Schema] = {"tokens": TOKENS}
"""Tables that a run has when they were asked for."""

DEFINITIONS: dict[str, str] = {
    "lag_ns": "t_submit - t_sched",
    "queue_first_ns": "t_first_sched - t_submit",
    "queue_total_ns": "all time spent waiting, preemptions included",
    "prefill_ns": "t_first_token - t_first_sched",
    "ttft_ns": "t_first_token - t_sched",
    "ttft_submit_ns": "t_first_token - t_submit",
    "tpot_ns": "(t_last_token - t_first_token) / (output tokens - 1), mean of branches; null below two and for beams",
    "e2e_ns": "t_done - t_sched",
    "itl_max_ns": "largest gap between two tokens of one branch; a step of k tokens makes k gaps of gap / k",
    "hit_tokens": "tokens taken from the prefix cache at first admission, at most prompt - 1; null: never admitted",
    "host_hit_tokens": "tokens taken at first admission from evicted prefixes in host memory, beside hit_tokens",
    "host_cached_blocks": "host blocks in use for evicted prefixes",
    "restored_tokens": "tokens taken from the prefix cache after a preemption",
    "recomputed_tokens": "positions computed again after a preemption",
    "preempted_ns": "time from each preemption to the next admission, summed; what is computed again comes after it",
    "peak_blocks": "most table entries held at once by a branch, summed over the branches",
    "shared_blocks_saved": "most table entries at once without a block of their own (hits in use, forks)",
    "head_of_line": "sequence at the head of the queue that was refused in the step: everyone behind it waits for it",
    "ideal_hit_tokens": "tokens that an infinite cache would have served, with every earlier prompt in it: whole "
    "blocks, at most prompt - 1; null: not computed, or the prompt is longer than the engine takes",
    "shared_prefix_tokens": "the same with blocks of one token: what the prompt has in common with an earlier one",
    "phase": "where the first token fell: before (warmup), in (steady) or after (drain) the window from the first to "
    "the last step with at least half the peak number of running sequences; without a token where the request ended, "
    "and drain when it was cut off; the first warmup_requests by intended arrival are warmup",
    "slo_ok": "it met every objective that applies to it; null: no objective applies, or the run itself cut it off",
    "predicted_ns": "what a cost model says the step takes: all that a simulated one takes, or --cost-model beside a "
    "real one; null: none was given",
    "output_tokens": "of a step: tokens emitted in it",
    "window_start_ns, window_end_ns": "start and end of the window that phase is told by",
    "token_index": "of a branch, from 0; a step of k tokens gives k rows with its end as time",
    "cutoff": "the request was alive when the run ended; what had happened by then is kept",
}
"""What each measured column means, by definitions version 2. Version 1 had no phases: every request was steady, and the
window went from the first step to the last."""


def file_metadata(run_id: str) -> dict[str, str]:
    """Key-value metadata of every Parquet file of a run."""
    return {
        "kvtop.run_id": run_id,
        "kvtop.schema_version": str(RESULTS_SCHEMA_VERSION),
        "kvtop.definitions_version": str(DEFINITIONS_VERSION),
    }
