"""The grammar of objectives: units, changes against a baseline, margins, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.analysis.objectives import Objective, measure_units, parse
from kvtop.engine.errors import KvtopError

UNITS = {"ttft_p99": "ns", "tpot_p99": "ns", "hit_rate": "ratio", "preemptions": "count", "requests_s": "/s"}


def one(text: str, *, changes: bool = False) -> Objective:
    (objective,) = parse(text, UNITS, option="--goal", changes=changes)
    return objective


@pytest.mark.parametrize(
    ("text", "metric", "op", "value", "change"),
    [
        ("ttft_p99<2s", "ttft_p99", "<", 2e9, "absolute"),
        (" ttft_p99_ns <= 1.5 ms ", "ttft_p99", "<=", 1.5e6, "absolute"),
        ("tpot_p99<50us", "tpot_p99", "<", 5e4, "absolute"),
        ("tpot_p99<.5min", "tpot_p99", "<", 3e10, "absolute"),
        ("hit_rate>=50%", "hit_rate", ">=", 0.5, "absolute"),
        ("hit_rate>0.1", "hit_rate", ">", 0.1, "absolute"),
        ("preemptions<=0", "preemptions", "<=", 0.0, "absolute"),
        ("requests_s>1_000", "requests_s", ">", 1000.0, "absolute"),
        ("ttft_p99>+5%", "ttft_p99", ">", 0.05, "relative"),
        ("requests_s<-2.5%", "requests_s", "<", -0.025, "relative"),
        ("ttft_p99>+20ms", "ttft_p99", ">", 2e7, "difference"),
        ("preemptions>+1e1", "preemptions", ">", 10.0, "difference"),
    ],
)
def test_a_condition_reads_in_the_units_of_its_metric(
    text: str, metric: str, op: str, value: float, change: str
) -> None:
    found = one(text, changes=True)
    assert (found.metric, found.op, found.value, found.change) == (metric, op, value, change)
    assert str(found) == "".join(text.split())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is no condition"),
        ("ttft_p99<2s,", "'' is no condition"),
        ("ttft_p99=2s", "expected METRIC OP VALUE"),
        ("ttft_p99<", "expected METRIC OP VALUE"),
        ("ttft_p99<nan", "is no condition"),
        ("ttft_p99<2", "expected a unit"),
        ("ttft_p99<2%", "expected a unit"),
        ("ttft_p99<2sec", "expected a unit"),
        ("preemptions<5%", "takes no '%', expected a bare number"),
        ("hit_rate>5ms", "takes no 'ms', expected a bare number or %"),
        ("tftt_p99<2s", "unknown metric in --goal 'tftt_p99'; did you mean 'ttft_p99'?"),
        ("ttft_p99>+5%", "no baseline"),
        ("ttft_p99<2s,ttft_p99<=3s", "ttft_p99 is bounded twice: ttft_p99<2s and ttft_p99<=3s"),
    ],
)
def test_what_cannot_be_meant_is_one_line(text: str, says: str) -> None:
    with pytest.raises(KvtopError) as caught:
        parse(text, UNITS, option="--goal")
    assert says in str(caught.value)
    assert "--goal" in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_metric_may_be_bounded_from_both_sides() -> None:
    assert [str(o) for o in parse("hit_rate>10%, hit_rate<90%", UNITS, option="x")] == ["hit_rate>10%", "hit_rate<90%"]


def test_margins_are_fractions_of_the_bound() -> None:
    assert one("ttft_p99<2s").margin(1.5e9) == pytest.approx(0.25)
    assert one("ttft_p99<2s").margin(3e9) == pytest.approx(-0.5)
    assert one("hit_rate>=50%").margin(0.75) == pytest.approx(0.5)
    assert one("preemptions<=0").margin(3) == -3
    assert one("ttft_p99<2s").margin(None) is None


def test_a_change_needs_a_baseline_with_a_size() -> None:
    slower = one("ttft_p99>+5%", changes=True)
    assert slower.holds(106.0, 100.0) is True
    assert slower.holds(105.0, 100.0) is False
    assert slower.holds(5.0, 0.0) is None
    assert slower.holds(0.0, 0.0) is False
    assert slower.holds(5.0) is None
    assert slower.holds(None, 100.0) is None
    assert one("preemptions>+2", changes=True).holds(3, 0) is True


@given(st.sampled_from(("<", "<=", ">", ">=")), st.integers(0, 5), st.integers(0, 5))
def test_an_operator_means_what_python_means(op: str, bound: int, found: int) -> None:
    objective = one(f"preemptions{op}{bound}")
    assert objective.holds(found) is eval(f"{found} {op} {bound}")
    margin = objective.margin(found)
    assert margin is not None
    assert (margin >= 0) or not objective.holds(found)


def test_every_measure_of_a_comparison_can_be_an_objective() -> None:
    units = measure_units()
    assert units["ttft_p99"] == "ns"
    assert set(units.values()) <= {"ns", "/s", "ratio", "count"}
    for metric, unit in units.items():
        parse(f"{metric}<{'1s' if unit == 'ns' else '1'}", units, option="x")
