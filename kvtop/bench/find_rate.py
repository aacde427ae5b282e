"""The highest arrival rate at which objectives hold, for each candidate (policy, allocator, settings) of a workload.

A rate is tried by scaling the gaps between the arrivals of each replicate so that its own rate, (requests - 1) / (last
arrival - first), is exactly that; the requests stay the same. It passes when every objective holds in every replicate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvtop.analysis.objectives import Objective
from kvtop.analysis.summary import RunSummary
from kvtop.bench.points import is_virtual, point_labels, replicates
from kvtop.bench.rate_search import Bracket, next_rate
from kvtop.engine.errors import UsageError
from kvtop.run.spec import RunSpec
from kvtop.workloads.load import load_workload
from kvtop.workloads.words import counted

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Judgement:
    """One objective at one rate: ``value`` and ``margin`` are of the replicate with the least room."""

    objective: Objective
    value: float
    margin: float
    holds: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """One rate, tried with every replicate."""

    rate: float
    judgements: tuple[Judgement, ...]
    served_per_s: float | None  # completed requests per second over the run, the lowest of the replicates
    num_ok: int
    num_requests: int
    runs: tuple[str, ...]  # where they are kept

    @property
    def passed(self) -> bool:
        return all(judgement.holds for judgement in self.judgements)

    @property
    def num_unserved(self) -> int:
        """Rejected, failed, aborted or without a token: no latency counts them."""
        return self.num_requests - self.num_ok

    @property
    def tightest(self) -> Judgement:
        """The objective with the least room."""
        return min(self.judgements, key=lambda judgement: judgement.margin)


@dataclass(slots=True)
class Candidate:
    """What a rate is searched for: the replicates of one point, and the rates tried with them."""

    label: str
    specs: list[RunSpec]
    rates: list[float]  # of each replicate as it is, requests per second
    trials: dict[float, Trial] = field(default_factory=dict)
    error: str = ""  # a run that failed: the search of this candidate ends

    @property
    def tried(self) -> dict[float, bool]:
        return {rate: trial.passed for rate, trial in self.trials.items()}

    @property
    def bracket(self) -> Bracket:
        return Bracket.of(self.tried)

    def at(self, rate: float) -> list[RunSpec]:
        """The replicates with their gaps scaled to ``rate``."""
        return [_scaled(spec, own / rate) for spec, own in zip(self.specs, self.rates, strict=True)]


@dataclass(frozen=True, slots=True)
class Search:
    """What is asked for. ``tolerance``: of the rate; ``max_rates`` are tried for each candidate at most."""

    objectives: tuple[Objective, ...]
    tolerance: float = 0.05
    max_rates: int = 40

    def next_rate(self, candidate: Candidate) -> float | None:
        """None when this candidate's search is over."""
        if candidate.error or len(candidate.trials) >= self.max_rates:
            return None
        return next_rate(candidate.tried, candidate.rates[0], self.tolerance)

    def judge(self, rate: float, runs: Sequence[RunSummary], where: Sequence[str]) -> Trial:
        """What the replicates at ``rate`` say.

        Raises:
            UsageError: an objective that a run did not measure: no rate can be said to meet it.
        """
        served = [run.requests_s for run in runs if run.requests_s is not None]
        return Trial(
            rate,
            tuple(self._worst(objective, runs) for objective in self.objectives),
            min(served, default=None),
            sum(run.num_ok for run in runs),
            sum(run.num_requests for run in runs),
            tuple(where),
        )

    def _worst(self, objective: Objective, runs: Sequence[RunSummary]) -> Judgement:
        from kvtop.analysis.measures import MEASURES

        read = next(m.read for m in MEASURES if m.key.removesuffix("_ns") == objective.metric)
        found: list[tuple[float, float, bool]] = []
        for run in runs:
            value = read(run)
            margin, holds = objective.margin(value), objective.holds(value)
            if value is None or margin is None or holds is None:
                raise UsageError(
                    f"--find-rate: {objective}: {run.path} has no {objective.metric}, so it cannot be judged"
                )
            found.append((margin, value, holds))
        margin, value, _ = min(found)
        return Judgement(objective, value, margin, all(holds for _, _, holds in found))


def candidates(specs: Sequence[RunSpec], num_replicates: int) -> list[Candidate]:
    """One for each point; ``specs`` without their replicates.

    Raises:
        UsageError: a workload whose arrivals have no rate to vary.
    """
    labels = point_labels(specs)
    made: dict[str, Candidate] = {}
    for spec, label in zip(specs, labels, strict=True):
        copies = replicates(spec, num_replicates)
        made.setdefault(label, Candidate(label, copies, [offered_rate(copy) for copy in copies]))
    return list(made.values())


def offered_rate(spec: RunSpec) -> float:
    """Requests per second of a workload as it is scaled: (requests - 1) / (last arrival - first).

    Raises:
        UsageError: fewer than two requests, all at once, or arrivals that wait for answers.
    """
    workload = load_workload(spec.workload, vocab_size=1 << 15)
    what = f"--find-rate: workload {workload.name}"
    if workload.num_chained:
        raise UsageError(f"{what}: {workload.num_chained} requests are sent when others end (replay them open)")
    if workload.num_requests < 2 or not workload.span_ns:
        raise UsageError(
            f"{what}: {counted(workload.num_requests, 'request')} within {workload.span_ns} ns: no rate to vary"
        )
    return (workload.num_requests - 1) * NS / workload.span_ns


def _scaled(spec: RunSpec, factor: float) -> RunSpec:
    scale = float(f"{spec.workload.time_scale * factor:.12g}")
    return msgspec.structs.replace(spec, workload=msgspec.structs.replace(spec.workload, time_scale=scale))


def as_json(search: Search, found: Sequence[Candidate], *, finished: bool) -> dict[str, Any]:
    """Everything that was tried, and what follows from it. Margins are fractions of the bound; values in its unit."""
    return {
        "objectives": [str(objective) for objective in search.objectives],
        "tolerance": search.tolerance,
        "max_rates": search.max_rates,
        "finished": finished,
        "candidates": [_candidate_json(search, candidate) for candidate in found],
    }


def _candidate_json(search: Search, candidate: Candidate) -> dict[str, Any]:
    bracket, first = candidate.bracket, candidate.specs[0]
    return {
        "label": candidate.label,
        "policy": first.engine.get("policy", "fcfs"),
        "allocator": first.engine.get("allocator", "paged"),
        "workload": first.workload.name,
        "executor": first.executor,
        "clock": "virtual" if is_virtual(first) else "real",
        "replicates": len(candidate.specs),
        "rate_per_s": bracket.low,
        "fails_at_per_s": bracket.high,
        "narrow": bracket.is_narrow(search.tolerance),
        "passes_above_a_failure_per_s": list(bracket.above),
        "num_rates": len(candidate.trials),
        "num_runs": sum(len(trial.runs) for trial in candidate.trials.values()),
        "error": candidate.error or None,
        "tried": [_trial_json(trial) for _, trial in sorted(candidate.trials.items())],
    }


def _trial_json(trial: Trial) -> Mapping[str, Any]:
    return {
        "rate_per_s": trial.rate,
        "passed": trial.passed,
        "served_per_s": trial.served_per_s,
        "num_ok": trial.num_ok,
        "num_requests": trial.num_requests,
        "objectives": [
            {"objective": str(each.objective), "value": each.value, "margin": each.margin, "holds": each.holds}
            for each in trial.judgements
        ],
        "runs": list(trial.runs),
    }
