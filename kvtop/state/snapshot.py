"""One moment of a run as plain data: the same numbers that the screen shows, by the same names."""

from __future__ import annotations

from typing import Any

from kvtop.state.attached_json import servers_json, streams_json, to_json
from kvtop.state.findings import findings
from kvtop.state.model import RunState
from kvtop.state.numbers import NUMBERS, read_all
from kvtop.state.session_status import is_simulated, status_of, told_elsewhere
from kvtop.state.windows import holders, waiting_by_reason

SCHEMA = 1
MOST_HOLDERS = 50
_MANIFEST_KEYS = (
    "model", "device", "dtype", "executor", "clock", "policy", "workload", "num_blocks", "block_size_tokens",
    "max_num_seqs", "max_batched_tokens", "prefix_caching",
)  # fmt: skip


def snapshot(state: RunState) -> dict[str, Any]:
    """Everything of the overview at this moment, ready for JSON: null is "not known", and nothing is NaN."""
    return {
        "schema": SCHEMA,
        "run_id": state.run_id,
        "status": status_of(state),
        "simulated": is_simulated(state),
        "step": state.step,
        "t_ns": state.t_ns,
        "run": {key: state.manifest.get(key) for key in _MANIFEST_KEYS},
        "numbers": read_all(state) if state.attached is None else _numbers_of_servers(state),
        "waiting": [
            {"reason": row.reason, "count": row.count, "oldest": row.oldest, "oldest_ns": row.oldest_ns}
            for row in waiting_by_reason(state)
        ],
        "head_of_line": _head(state),
        "holders": [
            {
                "kind": row.kind,
                "name": row.name,
                "block_ns": row.block_ns,
                "blocks": row.num_blocks,
                "cached_tokens": row.cached_tokens,
                "prompt_tokens": row.num_prompt,
            }
            for row in holders(state, MOST_HOLDERS)
        ],
        "findings": [
            {"rule": row.rule, "text": row.text, "lead": None if row.lead is None else list(row.lead)}
            for row in findings(state)
        ],
        "attached": None
        if state.attached is None
        else {
            "servers": servers_json(state),
            "kv_events": streams_json(state.attached),
            "troubles": state.attached.troubles,
        },
        "paused_by": state.paused_by or None,
        "stalled": state.stalled or None,
        "error": state.error or None,
    }


def _numbers_of_servers(state: RunState) -> dict[str, dict[str, object]]:
    """Why a server does not answer stands beside the server, and not beside each number."""
    numbers, elsewhere = to_json(state, list(NUMBERS)), told_elsewhere(state)
    for number in numbers.values():
        if (why := number.get("missing")) in elsewhere:
            number["missing"] = elsewhere[str(why)]
    return numbers


def _head(state: RunState) -> dict[str, Any] | None:
    """Who is first in the queue, and the blocks it was found to need and to have when it was last considered."""
    head = state.sequences.get(state.head_of_line)
    if head is None:
        return None
    reason, _ = state.wait_reason(head)
    return {"name": head.seq_id, "reason": reason, "need_blocks": head.need_blocks, "have_blocks": head.have_blocks}
