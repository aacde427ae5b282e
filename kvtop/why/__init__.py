"""Why a request waited, missed the cache, lost its blocks: its life from the decision log. Loads no polars."""

from kvtop.why.explain import explain
from kvtop.why.facts import Facts, StepTimes, decision_row, facts_of, owner_of, request_row, step_times
from kvtop.why.lines import Line

__all__ = [
    "Facts", "Line", "StepTimes", "decision_row", "explain", "facts_of", "owner_of", "request_row", "step_times",
]  # fmt: skip
