"""Headless runs: each point (workload, policy, allocator, replicate) in its own engine process, results on disk.

A finished point is never overwritten unasked; an interrupted or failed one is run again. Loads no Textual.
"""

from kvtop.bench.points import (
    WORKLOAD_SETTINGS,
    conflicts,
    is_virtual,
    plan_points,
    point_label,
    point_labels,
    replicates,
)
from kvtop.bench.progress import Progress
from kvtop.bench.runner import Outcome, Point, run_point, run_points

__all__ = [
    "WORKLOAD_SETTINGS",
    "Outcome",
    "Point",
    "Progress",
    "conflicts",
    "is_virtual",
    "plan_points",
    "point_label",
    "point_labels",
    "replicates",
    "run_point",
    "run_points",
]
