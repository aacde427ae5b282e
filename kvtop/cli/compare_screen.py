"""``kvtop compare --tui``: policies live side by side in simulated time, or recorded runs."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvtop.engine.errors import UsageError
from kvtop.workloads.words import counted

if TYPE_CHECKING:
    from kvtop.run.spec import RunSpec
    from kvtop.tui.feed import StartableSession

DEFAULT_PACE = 10.0
MOST = 8
_NOT_WITH = ("json", "fail_on", "output", "resume", "plot", "svg", "html")


def show_side_by_side(args: argparse.Namespace) -> int:
    """Open the TUI on the runs.

    Raises:
        UsageError: fewer than two runs or more than ``MOST``, an executor in real time, options that have no use here,
            or no terminal.
    """
    from kvtop.tui.compare_app import run_side_by_side

    for name in _NOT_WITH:
        if getattr(args, name, None):
            raise UsageError(f"--tui shows runs and writes nothing: leave out --{name.replace('_', '-')}")
    if args.runs and args.pace is not None:
        raise UsageError("--pace is of runs made with -w; recorded ones are gone through with [ ] and < >")
    runs = recorded_runs(args.runs) if args.runs else live_runs(args)
    if not 2 <= len(runs) <= MOST:
        raise UsageError(f"--tui: {counted(len(runs), 'run')}, expected two to {MOST} to set side by side")
    pace = DEFAULT_PACE if args.pace is None else args.pace or math.inf
    return run_side_by_side(runs, replay=bool(args.runs), pace=math.inf if args.runs else pace)


def live_runs(args: argparse.Namespace) -> list[tuple[str, StartableSession]]:
    """A session for every combination of -p, --allocator and --vary, with what tells it apart.

    Raises:
        UsageError: points that cannot be compared, or an executor that runs in real time.
    """
    from kvtop.bench import conflicts, is_virtual
    from kvtop.bench.points import point_labels
    from kvtop.cli.bench import make_specs
    from kvtop.run.session import RunSession

    specs = make_specs(args, replicated=False)
    real = next((spec for spec in specs if not is_virtual(spec)), None)
    if real is not None:
        raise UsageError(
            f"--tui: executor {real.executor} runs in real time, and runs that share a machine disturb each other; "
            "expected --executor sim or null (or runs recorded one by one: kvtop bench, then compare RUN RUN --tui)"
        )
    if (found := conflicts(specs, by_workload=False)) and not args.force:
        raise UsageError(f"not comparable: {'; '.join(found)} (--force compares all the same)")
    return [(_short(label, spec), RunSession(spec)) for label, spec in zip(point_labels(specs), specs, strict=True)]


def _short(label: str, spec: RunSpec) -> str:
    """The label without the workload, which all have."""
    return label.replace(f" {Path(spec.workload.name).name}", "", 1)


def recorded_runs(paths: Sequence[Path]) -> list[tuple[str, StartableSession]]:
    """The recordings in ``paths``, runs or directories of runs, named by policy where that tells them apart.

    Raises:
        UsageError: a path without a recording.
    """
    from kvtop.results.load import find_runs
    from kvtop.run.recorded import RecordedSession

    found = [run for path in paths for run in (find_runs(path) or [path])]
    names = [_policy(run) for run in found]
    labels = [name if name and names.count(name) == 1 else run.name for name, run in zip(names, found, strict=True)]
    return [(label, RecordedSession(run)) for label, run in zip(labels, found, strict=True)]


def _policy(run: Path) -> str:
    from kvtop.results.manifest import MANIFEST_NAME, read_manifest

    return str(read_manifest(run).get("policy") or "") if (run / MANIFEST_NAME).is_file() else ""
