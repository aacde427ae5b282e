"""When generated sessions begin: rates, spreads and profiles against closed forms, on an absolute schedule from 0."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.engine.errors import UnknownName, WorkloadError
from kvtop.workloads.formats.registry import read_trace
from kvtop.workloads.generators.arrivals import ARRIVALS
from kvtop.workloads.generators.draws import Draws
from kvtop.workloads.generators.portable import exp, log
from kvtop.workloads.generators.rates import Ramp, Steps
from kvtop.workloads.generators.registry import generate

S = 1_000_000_000
SHIPPED = Path(__file__).parents[2] / "workloads" / "data"


def arrivals(kind: str, count: int = 2001, seed: int = 0, **options: Any) -> list[int]:
    spec = {"arrivals": {"kind": kind, **options}, "num_requests": count, "user_prompt_tokens": 1, "output_tokens": 1}
    return [row.arrival_ns for row in generate("synthetic", spec, seed).rows]


def gaps(times: list[int]) -> list[int]:
    return [b - a for a, b in itertools.pairwise(times)]


def mean_and_cv(values: list[int]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / len(values)) / mean


OPEN: dict[str, dict[str, Any]] = {
    "poisson": {"rate": 3.0},
    "gamma": {"rate": 3.0, "burstiness": 0.3},
    "constant": {"every_s": 0.1},
    "ramp": {"start_rate": 0.0, "end_rate": 4.0, "ramp_s": 10},
    "on-off": {"on_rate": 5.0, "on_s": 2, "off_s": 3},
    "steps": {"rates": [1, 0, 8], "step_s": 4, "burstiness": math.inf},
}


@given(kind=st.sampled_from(sorted(OPEN)), count=st.integers(1, 60), seed=st.integers(0, 50))
@settings(max_examples=80, deadline=None)
def test_every_open_process_is_sorted_starts_at_0_and_has_the_asked_count(kind: str, count: int, seed: int):
    times = arrivals(kind, count, seed, **OPEN[kind])
    assert len(times) == count
    assert times[0] == 0
    assert times == sorted(times)
    assert times == arrivals(kind, count, seed, **OPEN[kind])
    assert arrivals(kind, count + 5, seed, **OPEN[kind])[:count] == times, "more of them change none"


def test_every_process_is_tested_here():
    assert {*OPEN, "closed", "trace"} == set(ARRIVALS)


@pytest.mark.parametrize("burstiness", [0.1, 0.25, 1.0, 4.0, 100.0])
def test_gamma_gaps_have_the_asked_rate_and_spread(burstiness: float):
    """A gamma of shape k has a coefficient of variation of 1 / sqrt(k)."""
    mean, cv = mean_and_cv(gaps(arrivals("gamma", 20_001, rate=4.0, burstiness=burstiness)))
    assert mean == pytest.approx(0.25 * S, rel=5 / math.sqrt(20_000 * burstiness))
    assert cv == pytest.approx(1 / math.sqrt(burstiness), rel=0.08)


@pytest.mark.parametrize("burstiness", [1e12, math.inf])
def test_gaps_of_endless_burstiness_are_constant_and_no_nan(burstiness: float):
    assert set(gaps(arrivals("gamma", rate=4.0, burstiness=burstiness))) == {S // 4}
    assert arrivals("gamma", rate=3.0, burstiness=burstiness) == [round(k / 3 * S) for k in range(2001)]


def test_a_burstiness_of_1_is_poisson():
    assert arrivals("gamma", rate=4.0) == arrivals("poisson", rate=4.0)


def test_thirty_six_thousand_arrivals_do_not_drift():
    """1,200 a minute for half an hour: the last one is where it belongs, not where rounding took it."""
    times = arrivals("constant", 36_000, rate=20.0)
    assert times[-1] == 35_999 * S // 20
    assert max(abs(t - k * S // 20) for k, t in enumerate(times)) == 0
    third = arrivals("constant", 36_000, rate=3.0)
    assert max(abs(3 * t - k * S) for k, t in enumerate(third)) <= 2, "each rounded once to a whole ns"


def test_the_last_of_ten_thousand_arrivals_is_the_sum_of_the_gaps():
    """The gaps, drawn again from the same numbers: their exact sum is the last arrival to a microsecond."""
    draws, rate = Draws("0:arrivals"), 200.0
    exact = math.fsum(draws.exponential() / rate for _ in range(9_999))
    times = arrivals("poisson", 10_000, rate=rate)
    assert times[-1] / S == pytest.approx(exact, abs=1e-5)
    assert sum(gaps(times)) == times[-1]
    assert 9_999 / (times[-1] / S) == pytest.approx(rate, rel=0.04)


def test_a_ramp_reaches_the_counts_of_its_integral():
    """Regular arrivals of a rate 2 -> 10 in 20 s: the k-th is where 2 t + 0.2 t^2 = k, then one every 0.1 s."""
    times = arrivals("ramp", 200, start_rate=2.0, end_rate=10.0, ramp_s=20.0, burstiness=math.inf)
    for k, t_ns in enumerate(times):
        t = t_ns / S
        expected = 2 * t + 0.2 * t * t if t <= 20 else 120 + (t - 20) * 10
        assert expected == pytest.approx(k, abs=1e-6)
    assert times[120] == 20 * S


def test_a_ramp_down_and_one_that_is_flat():
    assert Ramp(10.0, 2.0, 20.0).reached(120.0) == pytest.approx(20.0)
    assert Ramp(4.0, 4.0, 5.0).reached(10.0) == pytest.approx(2.5)
    assert Ramp(0.0, 1.0, 5.0).reached(0.0) == 0.0


@given(
    rates=st.lists(st.floats(0.1, 50), min_size=1, max_size=5),
    at=st.floats(0, 100),
    repeated=st.booleans(),
)
@settings(deadline=None)
def test_steps_invert_their_integral(rates: list[float], at: float, repeated: bool):
    steps = Steps(tuple(rates), (2.0,) * len(rates), repeated=repeated)
    expected, t = 0.0, 0.0
    for k in itertools.count():  # the integral up to ``at``, step by step
        rate = rates[k % len(rates)] if repeated else rates[min(k, len(rates) - 1)]
        length = min(2.0, at - t)
        expected, t = expected + rate * length, t + length
        if t >= at:
            break
    assert steps.reached(expected) == pytest.approx(at, abs=1e-6)


def test_nothing_arrives_while_it_is_off():
    times = arrivals("on-off", 400, on_rate=10.0, on_s=2.0, off_s=5.0)
    phases = [t % (7 * S) for t in times]
    assert max(phases) <= 2 * S
    assert 400 / (times[-1] / S) == pytest.approx(10 * 2 / 7, rel=0.2)


def test_arrivals_within_a_time():
    """Ten seconds at 40/s: the count is Poisson, and what is set up before the first arrival is no part of it."""
    counts = []
    for seed in range(60):
        stream = {"name": "a", "rate": 40.0, "duration_s": 10, "start_s": 5, "user_prompt_tokens": 1}
        rows = generate("mix", {"streams": [stream]}, seed).rows
        assert rows[0].arrival_ns == 0
        assert rows[-1].arrival_ns < 10 * S
        counts.append(len(rows))
    mean = sum(counts) / 60
    assert mean == pytest.approx(401, abs=4 * math.sqrt(400 / 60))
    assert sum((c - mean) ** 2 for c in counts) / 59 == pytest.approx(400, rel=0.6)


def test_recorded_arrivals_are_those_of_the_trace():
    path = str(SHIPPED / "azure-2023-conv-first1000.csv.gz")
    assert arrivals("trace", 1000, path=path) == [row.arrival_ns for row in read_trace(path).rows]
    with pytest.raises(WorkloadError, match="num_requests is 1,001, but the trace has 1,000 arrivals"):
        arrivals("trace", 1001, path=path)


def test_users_of_a_closed_loop_begin_evenly_within_the_ramp():
    rows = generate("synthetic", {"arrivals": {"kind": "closed", "users": 4, "ramp_s": 2}, "num_requests": 4}, 0).rows
    assert [row.arrival_ns / S for row in rows] == [0, 0.5, 1, 1.5]
    assert {row.think_ns for row in rows} == {None}


@given(x=st.floats(1e-300, 1e300))
@settings(deadline=None)
def test_the_portable_logarithm_is_the_logarithm(x: float):
    assert log(x) == pytest.approx(math.log(x), rel=1e-14, abs=1e-15)


@given(x=st.floats(-745, 709))
@settings(deadline=None)
def test_the_portable_exponential_is_the_exponential(x: float):
    assert exp(x) == pytest.approx(math.exp(x), rel=1e-14, abs=5e-324)


def test_limits_of_the_exponential():
    assert exp(-1e300) == 0.0
    with pytest.raises(OverflowError):
        exp(1e4)


@pytest.mark.parametrize(
    ("arrival", "words"),
    [
        (3, "arrivals is 3, expected a table with a kind"),
        ({}, "arrivals.kind is missing, expected one of poisson, gamma"),
        ({"kind": 3}, "arrivals.kind is 3, expected one of"),
        ({"kind": "poisson"}, "arrivals.rate is missing"),
        (
            {"kind": "gamma", "rate": 1, "burstiness": 0},
            "arrivals.burstiness is 0, expected a number from 0.001 to inf",
        ),
        ({"kind": "gamma", "rate": 1, "burstiness": math.nan}, "arrivals.burstiness is nan"),
        ({"kind": "constant"}, "arrivals.neither is given, expected every_s or rate"),
        ({"kind": "ramp", "start_rate": 1, "end_rate": 0, "ramp_s": 1}, "arrivals.end_rate is 0"),
        (
            {"kind": "ramp", "start_rate": 1, "end_rate": 1, "ramp_s": 0},
            "arrivals.ramp_s is 0, expected a number above 0",
        ),
        ({"kind": "steps", "rates": [1, 0], "step_s": 1}, "arrivals.rates is 0"),
        ({"kind": "steps", "rates": [], "step_s": 1}, r"arrivals.rates is \[\], expected a list"),
        ({"kind": "on-off", "on_rate": 0, "on_s": 1, "off_s": 1}, "arrivals.on_rate is 0"),
        ({"kind": "closed", "users": 0}, "arrivals.users is 0"),
        ({"kind": "closed", "users": 1, "think_s": -1}, "arrivals.think_s is -1"),
        ({"kind": "trace", "path": "absent.csv"}, "absent.csv: no such file"),
        ({"kind": "trace", "path": 4}, "arrivals.path is 4, expected a string"),
    ],
)
def test_a_wrong_process_is_one_line_with_the_key(arrival: Any, words: str):
    with pytest.raises(WorkloadError, match=words) as caught:
        generate("synthetic", {"arrivals": arrival}, 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "none is given, expected arrivals, rate or every_s"),
        ({"rate": 1, "every_s": 1}, "both rate and every_s are given"),
        ({"rate": 1, "num_requests": 3, "duration_s": 3}, "both num_requests and duration_s are given"),
        ({"rate": 1, "duration_s": 0}, "duration_s is 0"),
        (
            {"arrivals": {"kind": "closed", "users": 2}, "duration_s": 9},
            "duration_s is given, but a closed loop has num",
        ),
        ({"every_s": 1e-6, "duration_s": 2}, "more than 1,000,000 arrivals in 2 s"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], words: str):
    with pytest.raises(WorkloadError, match=words):
        generate("synthetic", {"user_prompt_tokens": 1, "output_tokens": 1, **options}, 0)


def test_an_unknown_process_or_key_names_the_nearest():
    with pytest.raises(UnknownName, match=r"unknown arrivals in arrivals.kind 'poison'; did you mean 'poisson'"):
        generate("synthetic", {"arrivals": {"kind": "poison", "rate": 1}}, 0)
    with pytest.raises(
        UnknownName, match=r"unknown key of arrivals gamma in arrivals 'burst'; did you mean 'burstiness'"
    ):
        generate("synthetic", {"arrivals": {"kind": "gamma", "rate": 1, "burst": 2}}, 0)
