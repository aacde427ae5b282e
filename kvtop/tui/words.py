"""Reasons and states in words."""

from __future__ import annotations

from kvtop.state.model import RunState, SequenceState
from kvtop.state.session_status import CONNECTING, NO_ANSWER, STALE
from kvtop.tui.text import clean, plural

STATUS = {
    "starting": "loading",
    "running": "running",
    "paused": "paused",
    "complete": "complete",
    "interrupted": "interrupted",
    "failed": "failed",
    CONNECTING: "connecting",
    NO_ANSWER: "no answer",
    STALE: "stale",
}


def wait_reason(seq: SequenceState, state: RunState) -> str:
    """Why ``seq`` waits, with the one who is in the way and the numbers of the last time it was refused."""
    reason, who = state.wait_reason(seq)
    need, have, blocker = seq.need_blocks, seq.have_blocks, clean(who)
    blocks = "" if need is None or have is None else f"needs {plural(need, 'block')}, "
    match reason:
        case "no_blocks":
            return f"{blocks}there were {have:,}" if blocks else "not enough blocks available"
        case "pinned":
            return f"{blocks}there were {have:,}: the rest is pinned" if blocks else "the blocks it needs are pinned"
        case "no_hole":
            return f"{blocks}no hole that large (there were {have:,})" if blocks else "no hole large enough"
        case "seats":
            seats = state.manifest.get("max_num_seqs")
            return f"all {seats:,} seats taken" if isinstance(seats, int) else "all seats taken"
        case "budget":
            budget = state.manifest.get("max_batched_tokens")
            return f"step's {budget:,} tokens spent" if isinstance(budget, int) else "step's token budget spent"
        case "preempting":
            return f"{blocker} was preempted in this step" if blocker else "a preemption in this step"
        case "head_of_line":
            return f"behind {blocker}" if blocker else "behind the head of the queue"
        case "fault":
            return "injected allocator fault"
        case "beams":
            return "its group of beams has not chosen yet"
        case "":
            return "not yet considered"
        case other:
            return clean(other).replace("_", " ")
