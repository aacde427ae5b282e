"""Runs side by side: are they comparable, what does each measure, and by how much do two of them differ.

A *column* is one configuration; its runs are replicates of it. With several replicates a column shows their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvtop.analysis.column_statistics import Statistics, column_statistics
from kvtop.analysis.compare_json import comparison_json
from kvtop.analysis.compare_notes import comparison_notes
from kvtop.analysis.gates import Tripped
from kvtop.analysis.labels import setting, short
from kvtop.analysis.load_rates import same_load
from kvtop.analysis.measures import BY_KEY, PRIMARY, Measure
from kvtop.analysis.memory_report import memory_by_column
from kvtop.analysis.replicates import one_run_repeated, pairs
from kvtop.analysis.slo import Slo
from kvtop.analysis.stats import mean
from kvtop.analysis.summary import EVERYTHING, RunSummary, Selection, load_run
from kvtop.engine.errors import KvtopError, UsageError

MUST_AGREE = {
    "workload_hash": "workload hash",
    "clock": "clock kind",
    "cost_model": "cost model",
    "cost_model_hash": "cost model",
    "block_size_tokens": "block size",
}
"""Manifest keys in which runs may not differ, with their names for the user."""

CONFIGURATION = (
    "workload", "policy", "policy_params", "allocator", "batch_policy", "victim", "eviction", "preemption_mode",
    "prefix_caching", "chunked_prefill", "executor", "model", "device", "dtype", "kv_dtype", "computed_by",
    "block_size_tokens", "num_blocks", "host_blocks", "host_cache_blocks",
    "max_num_seqs", "max_batched_tokens", "max_model_len", "loop", "too_long", "time_scale", "length_scale", "limit",
    "clock", "cost_model",
    "gpu", "cpu", "kvtop",
)  # fmt: skip
"""Manifest keys that make a column; those that differ between columns name it, policy always."""


@dataclass(slots=True)
class Column:
    """Replicates of one configuration."""

    label: str
    runs: list[RunSummary] = field(default_factory=list)

    def value(self, measure: Measure) -> float | None:
        """The mean over replicates; None when one of them has no value (a mean of fewer would hide it)."""
        values = [measure.read(run) for run in self.runs]
        known = [value for value in values if value is not None]
        return mean(known) if len(known) == len(values) else None

    def n(self, measure: Measure) -> int | None:
        return None if measure.n is None else sum(measure.n(run) for run in self.runs)

    @property
    def status(self) -> str:
        statuses = sorted({run.status for run in self.runs})
        return statuses[0] if len(statuses) == 1 else ", ".join(statuses)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Columns of one workload. ``conflicts`` is not empty only when comparing them was forced."""

    workload: str
    shared: dict[str, Any]  # the part of the configuration in which all columns agree, by manifest key
    columns: list[Column]
    conflicts: list[str]
    notes: list[str]
    memory: list[dict[str, float | None]]  # of each column, where allocators differ
    statistics: list[Statistics]  # of each column
    primary: list[Measure]  # what the comparison is declared to be about
    same_load: bool | None  # realised rates within 1 %; None: not known
    gates: list[Tripped] = field(default_factory=list)  # what ``check_gates`` found

    def change(self, measure: Measure, column: Column) -> float | None:
        """Difference of ``column`` from the first: relative for times and rates, absolute for ratios and counts."""
        before, after = self.columns[0].value(measure), column.value(measure)
        if before is None or after is None:
            return None
        if measure.unit in ("ratio", "count"):
            return after - before
        if before == 0:
            return 0.0 if after == 0 else None
        return after / before - 1

    def as_json(self) -> dict[str, Any]:
        """Plain data with stable keys (``kvtop.analysis.compare_json``)."""
        return comparison_json(self)


@dataclass(frozen=True, slots=True)
class Options:
    """What a comparison is asked for besides the runs. ``force``: also set side by side what is not comparable."""

    force: bool = False
    slo: Slo | None = None  # None: no goodput
    selection: Selection = EVERYTHING  # whose requests enter the latencies
    primary: tuple[str, ...] = PRIMARY  # keys of measures


DEFAULTS = Options()


def compare_paths(paths: Sequence[Path], options: Options = DEFAULTS) -> list[Comparison]:
    """Load and compare runs and directories of runs. A single directory with several workloads gives one
    comparison a workload; a run in a directory that cannot be read is left out, and a note says so. The table of runs
    that lies beside them (``results/*`` of a shell names it too) is passed over.

    Raises:
        UsageError: no run, or runs that cannot be compared and are not forced.
    """
    runs, left_out = load_paths(paths, options)
    comparisons = compare_by_workload(runs, options) if len(_runs_among(paths)) == 1 else [compare_runs(runs, options)]
    comparisons[-1].notes.extend(left_out)
    return comparisons


def _runs_among(paths: Sequence[Path]) -> list[Path]:
    """``paths`` without the table of runs that lies beside them, unless it is all there is."""
    from kvtop.results.runs_table import RUNS_NAME

    return [path for path in paths if path.name != RUNS_NAME] or list(paths)


def load_paths(paths: Sequence[Path], options: Options) -> tuple[list[RunSummary], list[str]]:
    """The runs of all ``paths``, a note for each in a directory that cannot be read; a table of runs is passed over.

    Raises:
        UsageError: no run; a path of a single run that cannot be read.
    """
    runs: list[RunSummary] = []
    failed: list[str] = []
    for path in _runs_among(paths):
        loaded, unread = _load_path(path, options)
        runs += loaded
        failed += unread
    if not runs:
        raise UsageError("; ".join(failed))
    return runs, [f"left out: {text}" for text in failed]


def compare_by_workload(runs: Sequence[RunSummary], options: Options = DEFAULTS) -> list[Comparison]:
    """One comparison a workload, in the order they first appear.

    Raises:
        UsageError: see ``compare_runs``.
    """
    groups: dict[str, list[RunSummary]] = {}
    for run in runs:
        groups.setdefault(str(run.manifest.get("workload")), []).append(run)
    return [compare_runs(group, options) for group in groups.values()]


def load_readable(run_dirs: Sequence[Path], options: Options = DEFAULTS) -> tuple[list[RunSummary], list[str]]:
    """Summaries of the runs that can be read, and one line for each that cannot."""
    runs: list[RunSummary] = []
    failed: list[str] = []
    for run_dir in run_dirs:
        try:
            runs.append(load_run(run_dir, slo=options.slo, selection=options.selection))
        except KvtopError as error:
            failed.append(str(error))
    return runs, failed


def _load_path(path: Path, options: Options) -> tuple[list[RunSummary], list[str]]:
    """The run of a directory, or the runs below it in the order of their columns, with a line for each left out.

    Raises:
        UsageError: no run, or a single one that cannot be read.
    """
    from kvtop.results.load import find_runs

    inside = find_runs(path)
    if inside in ([], [path]):
        return [load_run(path, slo=options.slo, selection=options.selection)], []
    runs, failed = load_readable(inside, options)
    return sorted(runs, key=_place), failed


def _place(run: RunSummary) -> list[Any]:
    """Where a run of a directory comes: by the name without its hash, then by its settings, off before on."""
    values = [run.manifest.get(key) for key in CONFIGURATION]
    numbers = [(float(v), "") if isinstance(v, int | float) else (-1.0, str(v or "")) for v in values]
    return [Path(run.path).name.rpartition("-")[0], *numbers]


def compare_runs(runs: Sequence[RunSummary], options: Options = DEFAULTS) -> Comparison:
    """Group replicates into columns, and set each against the first.

    Raises:
        UsageError: workload hash, clock kind, cost model or block size differ, and ``options.force`` is not set.
    """
    conflicts = find_conflicts(runs)
    if conflicts and not options.force:
        raise UsageError(
            f"not comparable: {'; '.join(conflicts)} (`kvtop compare --force` sets them side by side all the same)"
        )
    columns = _columns(runs)
    repeated = _without_repetitions(columns)
    workloads = dict.fromkeys(str(run.manifest.get("workload")) for run in runs)
    primary = [BY_KEY[key] for key in options.primary]
    return Comparison(
        workload=", ".join(workloads),
        shared=_shared(runs),
        columns=columns,
        conflicts=conflicts,
        notes=[*repeated, *comparison_notes(columns, options.selection)],
        memory=memory_by_column(columns),
        statistics=column_statistics([column.runs for column in columns], primary),
        primary=primary,
        same_load=_same_load(columns),
    )


def _same_load(columns: Sequence[Column]) -> bool | None:
    """Whether every replicate had the same realised rate under all configurations; None where that is not known."""
    found = {
        same_load(first.load, other.load)
        for column in columns[1:]
        for first, other in pairs(columns[0].runs, column.runs)
    }
    return False if False in found else None if None in found else True


def find_conflicts(runs: Sequence[RunSummary]) -> list[str]:
    """What must agree and does not, one phrase each. Only runs of the same replicate number share a workload hash."""
    conflicts: dict[str, None] = {}
    for key, name in MUST_AGREE.items():
        seen: dict[Any, tuple[Any, RunSummary]] = {}
        for run in runs:
            value = run.manifest.get(key)
            part = run.manifest.get("replicate") if key == "workload_hash" else None
            first_value, first = seen.setdefault(part, (value, run))
            if value != first_value:
                conflicts[f"{name} is {short(first_value)} in {first.path} and {short(value)} in {run.path}"] = None
                break
    return list(conflicts)


def _shared(runs: Sequence[RunSummary]) -> dict[str, Any]:
    first = runs[0].manifest
    return {key: first.get(key) for key in CONFIGURATION if len({repr(run.manifest.get(key)) for run in runs}) == 1}


def _columns(runs: Sequence[RunSummary]) -> list[Column]:
    columns: dict[tuple[Any, ...], Column] = {}
    for run in runs:
        key = tuple(repr(run.manifest.get(name)) for name in CONFIGURATION)
        # The same replicate twice is a run set against itself, not one more sample of it.
        again = sum(
            other.manifest.get("replicate") == run.manifest.get("replicate") for other in _runs_of(columns, key)
        )
        columns.setdefault((*key, again), Column("")).runs.append(run)
    found = list(columns.values())
    _name(found)
    return found


def _without_repetitions(columns: Sequence[Column]) -> list[str]:
    """Keep one replicate of each column where all of them are one run repeated: they are no samples of anything, and
    as such would make every ``n`` larger and every interval a point. A note says so."""
    if not all(one_run_repeated(column.runs) for column in columns):
        return []
    numbers = ", ".join(f"{column.label} {len(column.runs)}" for column in columns)
    for column in columns:
        first = min(column.runs, key=lambda run: run.manifest.get("replicate") or 0)
        column.runs[:] = [first]
    return [f"simulated replicates of the same requests are one run repeated ({numbers}): one of each is taken"]


def _runs_of(columns: dict[tuple[Any, ...], Column], key: tuple[Any, ...]) -> list[RunSummary]:
    return [run for other, column in columns.items() if other[:-1] == key for run in column.runs]


def _name(columns: list[Column]) -> None:
    """Policy, and whatever else tells the columns apart; the directory where nothing does."""
    manifests = [column.runs[0].manifest for column in columns]
    differing = [key for key in CONFIGURATION if key != "policy" and len({repr(m.get(key)) for m in manifests}) > 1]
    for column, manifest in zip(columns, manifests, strict=True):
        parts = [str(manifest.get("policy") or "?"), *(setting(key, manifest.get(key)) for key in differing)]
        column.label = " ".join(part for part in parts if part)
    labels = [column.label for column in columns]
    for column in columns:
        if labels.count(column.label) > 1:
            column.label = f"{column.label} ({Path(column.runs[0].path).resolve().name})"
    labels = [column.label for column in columns]
    for index, column in enumerate(columns):
        if labels.count(column.label) > 1:
            column.label = f"{column.label} #{labels[: index + 1].count(column.label)}"
