"""Runs the points of a bench where the options say, tells each result, and keeps the runs."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvtop.cli.bench_report import overall_text, report_outcome
from kvtop.cli.metrics_options import open_exporter, session_maker
from kvtop.cli.terminal import ProgressLine, interruptible
from kvtop.run.session import RunSession
from kvtop.run.spec import RunSpec

if TYPE_CHECKING:
    from kvtop.bench import Outcome, Point, Progress
    from kvtop.bench.runner import Done, MakeSession, Observer
    from kvtop.bench.store import Store

EXIT_INTERRUPTED = 130


@dataclass(slots=True)
class BenchResult:
    """What became of the points, in order, and the exit code that says it."""

    outcomes: list[Outcome] = field(default_factory=list)
    exit_code: int = 0


@dataclass(slots=True)
class Bench:
    """Where runs are made and kept. ``out``: the local folder of the runs, a mirror of the store where there is one."""

    out: Path
    jobs: int = 1
    force: bool = False
    store: Store | None = None
    ray: str | None = None
    ray_options: dict[str, float] = field(default_factory=dict)
    line: ProgressLine = field(default_factory=ProgressLine)
    quiet: bool = False  # no line for each run
    make_session: MakeSession = RunSession

    def where(self, run_dir: Path) -> str:
        """What the user is told about where a run is kept."""
        return str(run_dir) if self.store is None else f"{self.store.url}/{run_dir.name}"

    def write(self, name: str, data: bytes) -> None:
        """Keep a file beside the runs, replacing it as a whole."""
        from kvtop.results.files import write_bytes

        if self.store is None:
            write_bytes(self.out / name, data)
        else:
            self.store.write(name, data)

    def run(self, specs: Sequence[RunSpec], *, resume: bool, names: Mapping[str, str] | None = None) -> BenchResult:
        """Run the points, a result line for each. Ctrl-C ends those under way in good order.

        ``names`` are labels by the name of a run's directory, instead of ``point_labels``.
        """
        points, line = self._plan(specs, resume, names), self.line
        ended: dict[int, Outcome] = {}
        result = BenchResult()

        def observe(under_way: Sequence[Progress]) -> None:
            if line.due:
                line.show(overall_text(under_way, len(ended), len(points)))

        def done(index: int, outcome: Outcome) -> None:
            line.clear()
            ended[index] = outcome = self._kept(outcome)
            good = self._report(f"[{len(ended)}/{len(points)}] ", outcome)
            result.exit_code = result.exit_code or int(not good)

        try:
            with interruptible():
                self._execute(points, observe, done)
        except KeyboardInterrupt:
            line.clear()
            rest = f", {len(points) - len(ended)} not started" if len(ended) < len(points) else ""
            place = self.out if self.store is None else self.store.url
            print(f"kvtop: interrupted; finished rows are kept in {place}{rest}", file=sys.stderr)
            result.exit_code = EXIT_INTERRUPTED
        result.outcomes = [ended[index] for index in sorted(ended)]
        if not self._write_runs(result.outcomes):
            result.exit_code = result.exit_code or 1
        return result

    def _write_runs(self, outcomes: Sequence[Outcome]) -> bool:
        """``runs.parquet``; False, with a line that says so, when the disk or the store refuses."""
        from kvtop.engine.errors import KvtopError
        from kvtop.results.runs_table import write_runs

        try:
            if not any(outcome.run_dir is not None and outcome.run_dir.is_dir() for outcome in outcomes):
                return True
            if self.store is None:
                write_runs(self.out)
            else:
                self.store.write_runs()
        except KvtopError as error:
            print(f"kvtop: {error}", file=sys.stderr)
            return False
        return True

    def _plan(self, specs: Sequence[RunSpec], resume: bool, names: Mapping[str, str] | None) -> list[Point]:
        from kvtop.bench import Point, is_virtual, plan_points, point_labels
        from kvtop.bench.store import plan_in_store

        together = len(specs) if self.ray is not None else min(self.jobs, len(specs))
        specs = [
            spec if is_virtual(spec) else msgspec.structs.replace(spec, concurrent_points=together) for spec in specs
        ]
        if self.store is None:
            planned = plan_points(specs, self.out, resume=resume, force=self.force)
        else:
            planned = plan_in_store(specs, self.store, self.out, resume=resume, force=self.force)
        if names is None:
            labels = point_labels([spec for spec, _ in planned])
        else:
            labels = [names[Path(spec.run_dir or "").name] for spec, _ in planned]
        return [Point(spec, label, kept) for (spec, kept), label in zip(planned, labels, strict=True)]

    def _execute(self, points: Sequence[Point], observe: Observer, done: Done) -> None:
        if self.ray is None:
            from kvtop.bench import run_points

            run_points(points, observe, done, jobs=self.jobs, force=self.force, make_session=self.make_session)
            return
        from kvtop.bench.ray_cluster import run_on_ray

        assert self.store is not None
        run_on_ray(points, self.store, self.ray, observe, done, **self.ray_options)

    def _kept(self, outcome: Outcome) -> Outcome:
        """A run made here for a store goes there; one that cannot is a failed one."""
        from kvtop.bench.store import StoreError

        if self.store is None or self.ray is not None or outcome.status == "kept" or outcome.run_dir is None:
            return outcome
        if not outcome.run_dir.is_dir():
            return outcome
        try:
            self.store.upload(outcome.run_dir, outcome.run_dir.name)
        except StoreError as error:
            return replace(outcome, status="failed", error=str(error), exit_code=1)
        return outcome

    def _report(self, place: str, outcome: Outcome) -> bool:
        where = None if outcome.run_dir is None else self.where(outcome.run_dir)
        return report_outcome(place, outcome, where, quiet=self.quiet)


@contextmanager
def open_bench(args: argparse.Namespace, *, force: bool) -> Iterator[Bench]:
    """A bench as the options of ``kvtop bench`` ask for; a local mirror of a store lasts as long.

    Raises:
        UsageError: an output that is none.
    """
    from kvtop.bench.store import Store, is_url

    output, local = str(args.output), not is_url(str(args.output))
    common: dict[str, Any] = {"jobs": args.jobs, "force": force, "ray": args.ray}
    common["ray_options"] = {"cpus": args.ray_cpus or 1.0, "gpus": args.ray_gpus or 0.0}
    with open_exporter(args) as exporter:
        common["make_session"] = session_maker(exporter)
        if args.ray is None and (local or output.startswith("file://")):
            yield Bench(Path(output.removeprefix("file://")), **common)
            return
        store = Store(f"file://{Path(output).resolve()}" if local else output)
        with tempfile.TemporaryDirectory(prefix="kvtop-bench-") as mirror:
            yield Bench(Path(mirror), store=store, **common)
