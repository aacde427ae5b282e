"""When a step was: from the columns of the history, which hold the last few thousand."""

from __future__ import annotations

from bisect import bisect_left

from kvtop.state.model import RunState


def time_of(state: RunState, step: int) -> int | None:
    """When ``step`` was done, in ns of the run's clock; None: it is no longer (or not yet) known."""
    steps = state.history.step
    if not steps or step < steps[0] or step > steps[-1]:
        return None
    # Steps follow each other, but for what was dropped: then search.
    at = step - steps[0]
    if at >= len(steps) or steps[at] != step:
        at = bisect_left(steps, step)
    return state.history.t_ns[at] if steps[at] == step else None


def ago(state: RunState, step: int) -> int | None:
    """ns from ``step`` until now; None: not known."""
    then = time_of(state, step)
    return None if then is None else max(0, state.t_ns - then)
