"""``kvtop bench --find-rate``: the rounds of runs, and the tables of what was tried."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from kvtop.cli.bench import make_specs, print_json
from kvtop.cli.bench_runs import EXIT_INTERRUPTED, Bench, open_bench
from kvtop.cli.result_options import comparison_options
from kvtop.cli.terminal import interruptible
from kvtop.cli.text import format_ns, percent, significant, table

if TYPE_CHECKING:
    from kvtop.analysis.compare import Options
    from kvtop.analysis.objectives import Objective
    from kvtop.bench import Outcome
    from kvtop.bench.find_rate import Candidate, Judgement, Search, Trial
    from kvtop.run.spec import RunSpec

FILE_NAME = "find-rate"
MIN_TOLERANCE = 0.001


def run_search(args: argparse.Namespace) -> int:
    """Search, print the tables. 1 when no rate meets the objectives or a run failed, 130 when interrupted."""
    from kvtop.analysis.objectives import measure_units, parse
    from kvtop.bench.find_rate import Search, candidates
    from kvtop.engine.errors import UsageError

    objectives = parse(args.find_rate, measure_units(), option="--find-rate")
    tolerance = 0.05 if args.rate_tolerance is None else args.rate_tolerance
    if not MIN_TOLERANCE <= tolerance <= 1:
        raise UsageError(f"--rate-tolerance is {tolerance:g}, expected {MIN_TOLERANCE:g} to 1")
    search = Search(tuple(objectives), tolerance, args.max_rates or 40)
    specs = make_specs(args, replicated=False)
    _check(args, specs)
    found = candidates(specs, args.replicates)
    with open_bench(args, force=args.force) as bench, redirect_stdout(sys.stderr if args.json else sys.stdout):
        bench.quiet = True
        code = _Rounds(search, found, bench, args.resume, comparison_options(args)).run()
        print(render(search, found, finished=code != EXIT_INTERRUPTED))
    if args.json:
        from kvtop.bench.find_rate import as_json

        print_json(as_json(search, found, finished=code != EXIT_INTERRUPTED))
    return code


def _check(args: argparse.Namespace, specs: Sequence[RunSpec]) -> None:
    from kvtop.bench import is_virtual
    from kvtop.cli.plotting import plot_options
    from kvtop.engine.errors import UsageError

    if args.max_seconds is not None:
        raise UsageError("--max-seconds: a run that is cut off hides its backlog, and --find-rate would not see it")
    if asked := plot_options(args):
        raise UsageError(f"{asked}: --find-rate compares no runs, there is nothing to draw")
    real = next((spec for spec in specs if not is_virtual(spec)), None)
    if real is not None and not args.rate_in_real_time:
        raise UsageError(
            f"--find-rate: executor {real.executor} runs in real time: every rate takes as long as the workload, "
            "and passes by chance (--executor sim or null; --rate-in-real-time measures all the same)"
        )


class _Rounds:
    """Runs one rate of every candidate at a time, until none has a next one. Keeps a file of what is known."""

    def __init__(self, search: Search, found: list[Candidate], bench: Bench, resume: bool, judging: Options) -> None:
        self.search, self.found, self.bench, self.resume, self.judging = search, found, bench, resume, judging
        self.name = f"{FILE_NAME}-{_identity(search, found, judging)}.json"

    def run(self) -> int:
        """The exit code; what is known is on disk, whenever it ends."""
        code = 0
        try:
            with interruptible():
                while wanted := self._wanted():
                    code = self._round(wanted) or code
                    if code == EXIT_INTERRUPTED:
                        break
                    self._save(finished=False)
        except KeyboardInterrupt:  # between two rounds
            code = EXIT_INTERRUPTED
        self._save(finished=code != EXIT_INTERRUPTED)
        return code if code or all(candidate.bracket.low for candidate in self.found) else 1

    def _wanted(self) -> list[tuple[Candidate, float]]:
        return [(each, rate) for each in self.found if (rate := self.search.next_rate(each)) is not None]

    def _round(self, wanted: list[tuple[Candidate, float]]) -> int:
        from kvtop.results.rundir import run_dir_name

        specs = {(each.label, rate): each.at(rate) for each, rate in wanted}
        names = {run_dir_name(spec): _name(label, rate, spec) for (label, rate), of in specs.items() for spec in of}
        everything = [spec for of in specs.values() for spec in of]
        result = self.bench.run(everything, resume=self.resume, names=names)
        if result.exit_code == EXIT_INTERRUPTED:
            return EXIT_INTERRUPTED
        ended = {outcome.run_dir.name: outcome for outcome in result.outcomes if outcome.run_dir is not None}
        for candidate, rate in wanted:
            self._judge(candidate, rate, [ended[run_dir_name(spec)] for spec in specs[candidate.label, rate]])
        return result.exit_code

    def _judge(self, candidate: Candidate, rate: float, outcomes: list[Outcome]) -> None:
        from kvtop.analysis.summary import load_run

        failed = next((outcome for outcome in outcomes if outcome.status not in ("complete", "kept")), None)
        if failed is not None:
            candidate.error = f"a run at {rate:g}/s failed: {failed.error}"
            return
        dirs = [outcome.run_dir for outcome in outcomes if outcome.run_dir is not None]
        where = [self.bench.where(run_dir) for run_dir in dirs]
        judging = {"slo": self.judging.slo, "selection": self.judging.selection}
        runs = [load_run(run_dir, **judging) for run_dir in dirs]
        candidate.trials[rate] = self.search.judge(rate, runs, where)

    def _save(self, *, finished: bool) -> None:
        from kvtop.bench.find_rate import as_json

        text = json.dumps(as_json(self.search, self.found, finished=finished), indent=2, allow_nan=False)
        self.bench.write(self.name, (text + "\n").encode())


def _name(label: str, rate: float, spec: RunSpec) -> str:
    return f"{label} at {rate:g}/s{f' r{spec.replicate}' if spec.replicate else ''}"


def _identity(search: Search, found: Sequence[Candidate], judging: Options) -> str:
    """Of the question: another one in the same directory has a file of its own."""
    from kvtop.results.identity import point_identity
    from kvtop.results.manifest import content_hash

    points = [point_identity(spec) for candidate in found for spec in candidate.specs]
    asked = [[str(each) for each in search.objectives], search.tolerance, search.max_rates, str(judging.selection)]
    return content_hash([asked, points], 8)


def render(search: Search, found: Sequence[Candidate], *, finished: bool = True) -> str:
    """The answers, then every rate that was tried, for each candidate."""
    objectives = ", ".join(map(str, search.objectives))
    first = found[0].specs[0]
    clock = "simulated time" if _virtual(first) else "real time"
    many = "" if len(found[0].specs) == 1 else f", in each of {len(found[0].specs)} replicates"
    head = f"highest rate with {objectives}{many} (executor {first.executor}, {clock})"
    header = ["", "requests/s", "fails at", "tightest at that rate", "rates tried", "runs"]
    answers = table([_answer(search, candidate) for candidate in found], header=header)
    notes = [note for candidate in found for note in _notes(search, candidate)]
    if not finished:
        notes.insert(0, "interrupted: the search is not finished (--resume goes on from here)")
    tried = [f"{candidate.label}\n{_tried(search, candidate)}" for candidate in found if candidate.trials]
    return "\n\n".join([f"{head}\n{answers}", *(["\n".join(notes)] if notes else []), *tried])


def _virtual(spec: RunSpec) -> bool:
    from kvtop.bench import is_virtual

    return is_virtual(spec)


def _answer(search: Search, candidate: Candidate) -> list[str]:
    bracket = candidate.bracket
    tightest = "-" if bracket.low is None else _judged(candidate.trials[bracket.low].tightest)
    runs = sum(len(trial.runs) for trial in candidate.trials.values())
    return [
        candidate.label,
        _rate(bracket.low) if bracket.low is not None or not candidate.trials else "none",
        "-" if bracket.high is None else _rate(bracket.high),
        tightest,
        str(len(candidate.trials)),
        str(runs),
    ]


def _notes(search: Search, candidate: Candidate) -> list[str]:
    """What a reader of the answer must know."""
    bracket, notes = candidate.bracket, []
    if candidate.error:
        notes.append(f"{candidate.label}: {candidate.error}")
    if bracket.above:
        rates = ", ".join(map(_rate, bracket.above))
        notes.append(f"{candidate.label}: not monotone: {rates} passed although {_rate(bracket.high)} failed")
    if bracket.low is not None and bracket.high is None:
        notes.append(f"{candidate.label}: no rate that was tried failed; the highest rate may be higher")
    if bracket.low is None and candidate.trials:
        notes.append(f"{candidate.label}: no rate that was tried passed")
    if bracket.low is not None and (trial := candidate.trials[bracket.low]).num_unserved:
        notes.append(
            f"{candidate.label}: {trial.num_unserved} of {trial.num_requests} requests were not served at "
            f"{_rate(bracket.low)}: latencies are those of the others"
        )
    if bracket.low is not None and bracket.high is not None and not bracket.is_narrow(search.tolerance):
        wide = f"{_rate(bracket.low)} to {_rate(bracket.high)}"
        notes.append(
            f"{candidate.label}: the bracket {wide} is wider than the tolerance of {percent(search.tolerance)}"
        )
    return notes


def _tried(search: Search, candidate: Candidate) -> str:
    rows = [_trial_row(trial) for _, trial in sorted(candidate.trials.items())]
    return table(rows, header=["requests/s", "", *map(str, search.objectives), "served/s", "ok"])


def _trial_row(trial: Trial) -> list[str]:
    return [
        _rate(trial.rate),
        "pass" if trial.passed else "FAIL",
        *map(_judged, trial.judgements),
        significant(trial.served_per_s),
        f"{trial.num_ok} / {trial.num_requests}",
    ]


def _judged(judgement: Judgement) -> str:
    """``1.93 s (+3.5 %)``: the value and the room left."""
    objective = judgement.objective
    room = f"{100 * judgement.margin:+.1f} %" if objective.value else f"{judgement.margin:+g}"
    return f"{_value(objective, judgement.value)} ({room})"


def _value(objective: Objective, value: float) -> str:
    from kvtop.analysis.objectives import measure_units

    unit = measure_units()[objective.metric]
    return {"ns": format_ns, "ratio": percent}.get(unit, significant)(value)


def _rate(rate: float | None) -> str:
    return significant(rate, 4)
