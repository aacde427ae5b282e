"""Distributions of lengths and times against closed forms and plain counts, and what a wrong one is told."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.engine.errors import UnknownName, WorkloadError
from kvtop.workloads.formats.registry import read_trace
from kvtop.workloads.generators.base import Place
from kvtop.workloads.generators.distributions import DISTRIBUTIONS, distribution
from kvtop.workloads.generators.draws import Draws
from kvtop.workloads.generators.registry import generate

TRACE = str(Path(__file__).parents[2] / "workloads" / "data" / "azure-2023-conv-first1000.csv.gz")
TOKENS = Place("", "prompt", True, 1, 5_000_000)
REAL = Place("", "prompt", False, 0, 1e15)


def draw(value: Any, count: int = 20_000, place: Place = REAL, seed: int = 0) -> list[float]:
    one, draws = distribution({"x": value}, "x", place), Draws(f"{seed}")
    return [one(draws) for _ in range(count)]


def pareto_mean(a: float, low: float, high: float) -> float:
    """Of the law with density a low^a x^(-a-1) / (1 - (low/high)^a) between low and high."""
    return low**a / (1 - (low / high) ** a) * a / (a - 1) * (low ** (1 - a) - high ** (1 - a))


def zipf_mean(exponent: float, low: int, high: int) -> float:
    weights = {k: k**-exponent for k in range(low, high + 1)}
    return sum(k * w for k, w in weights.items()) / sum(weights.values())


MEANS: list[tuple[dict[str, Any], float]] = [
    ({"kind": "constant", "value": 7.5}, 7.5),
    ({"kind": "uniform", "low": 2.0, "high": 6.0}, 4.0),
    ({"kind": "normal", "mean": 100.0, "std": 10.0}, 100.0),
    ({"kind": "lognormal", "mean": 100.0, "std": 80.0}, 100.0),
    ({"kind": "exponential", "mean": 3.0}, 3.0),
    ({"kind": "geometric", "mean": 4.0}, 4.0),
    ({"kind": "geometric", "mean": 1.0}, 1.0),
    ({"kind": "pareto", "shape": 1.5, "low": 10, "high": 1000}, pareto_mean(1.5, 10, 1000)),
    ({"kind": "zipf", "exponent": 1.2, "low": 3, "high": 300}, zipf_mean(1.2, 3, 300)),
    ({"kind": "histogram", "values": [1, 10], "weights": [3, 1]}, 13 / 4),
]


@pytest.mark.parametrize(("table", "mean"), MEANS)
def test_the_mean_is_that_of_the_closed_form(table: dict[str, Any], mean: float):
    values = draw(table)
    found = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((v - found) ** 2 for v in values) / len(values))
    assert found == pytest.approx(mean, abs=4 * spread / math.sqrt(len(values)) + 1e-9)


@pytest.mark.parametrize(
    ("table", "std"),
    [
        ({"kind": "uniform", "low": 2.0, "high": 6.0}, 4 / math.sqrt(12)),
        ({"kind": "normal", "mean": 100.0, "std": 10.0}, 10.0),
        ({"kind": "lognormal", "mean": 100.0, "std": 50.0}, 50.0),
        ({"kind": "exponential", "mean": 3.0}, 3.0),
        ({"kind": "geometric", "mean": 4.0}, math.sqrt(12)),  # sqrt(1 - p) / p
    ],
)
def test_so_is_the_standard_deviation(table: dict[str, Any], std: float):
    values = draw(table)
    mean = math.fsum(values) / len(values)
    assert math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values)) == pytest.approx(std, rel=0.06)


def test_every_family_is_tested_here():
    assert {table["kind"] for table, _ in MEANS} | {"trace"} == set(DISTRIBUTIONS)


def test_a_bell_has_its_share_within_one_two_and_three_deviations():
    values = draw({"kind": "normal", "mean": 100.0, "std": 10.0})
    for k, share in ((1, 0.6827), (2, 0.9545), (3, 0.9973)):
        assert sum(abs(v - 100) <= 10 * k for v in values) / len(values) == pytest.approx(share, abs=0.01)


def test_the_median_of_a_lognormal_is_below_its_mean_as_it_must_be():
    values = sorted(draw({"kind": "lognormal", "mean": 100.0, "std": 100.0}))
    assert values[len(values) // 2] == pytest.approx(100 / math.sqrt(2), rel=0.04)  # mean / sqrt(1 + cv^2)


def test_a_geometric_number_ends_with_the_same_probability_every_time():
    counts = Counter(draw({"kind": "geometric", "mean": 4.0}))
    left = 20_000
    for k in range(1, 6):
        assert counts[k] / left == pytest.approx(0.25, abs=0.02)
        left -= counts[k]
    assert min(counts) == 1


def test_zipf_counts_fall_like_the_power():
    counts = Counter(draw({"kind": "zipf", "exponent": 1.0, "low": 1, "high": 1000}))
    total = sum(1 / k for k in range(1, 1001))
    for k in (1, 2, 3, 10):
        assert counts[k] / 20_000 == pytest.approx(1 / k / total, rel=0.15)


def test_a_recorded_trace_gives_its_own_lengths_as_often():
    rows = read_trace(TRACE).rows
    for column, recorded in (
        ("prompt", [row.prompt_tokens for row in rows]),
        ("output", [row.output_tokens for row in rows]),
    ):
        values = draw({"kind": "trace", "path": TRACE}, place=Place("", column, True, 1, 5_000_000))
        assert set(values) <= set(recorded)
        assert math.fsum(values) / len(values) == pytest.approx(sum(recorded) / len(recorded), rel=0.03)
    assert set(draw({"kind": "trace", "path": TRACE, "column": "output"}, 300)) <= {row.output_tokens for row in rows}


def test_lengths_of_a_trace_keep_prompt_and_output_together():
    rows = generate("synthetic", {"rate": 1, "num_requests": 500, "lengths": {"path": TRACE}}, 0).rows
    pairs = {(row.prompt_tokens, row.output_tokens) for row in read_trace(TRACE).rows}
    assert {(row.prompt_tokens, row.output_tokens) for row in rows} <= pairs
    assert len({row.prompt_tokens for row in rows}) > 200


@given(
    table=st.sampled_from(
        [table for table, _ in MEANS if "low" not in table and table["kind"] not in ("constant", "histogram")]
    ),
    low=st.integers(1, 50),
    width=st.integers(0, 100),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_limits_hold_and_whole_numbers_are_whole(table: dict[str, Any], low: int, width: int, seed: int):
    values = draw({**table, "low": low, "high": low + width}, 50, TOKENS, seed)
    assert all(type(v) is int and low <= v <= low + width for v in values)
    assert values == draw({**table, "low": low, "high": low + width}, 50, TOKENS, seed)


@given(low=st.integers(1, 1000), width=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_short_forms_stand_for_the_long_ones(low: int, width: int):
    assert draw([low, low + width], 20, TOKENS) == draw(
        {"kind": "uniform", "low": low, "high": low + width}, 20, TOKENS
    )
    assert draw(low, 3, TOKENS) == [low] * 3


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("9", r"x is '9', expected a number, \[low, high\] or a table with a kind"),
        (True, "x is True, expected a number"),
        ([3], r"x is \[3\], expected a number"),
        (0, "x is 0, expected integers from 1 to 5,000,000"),
        (2.5, "x is 2.5, expected integers"),
        ([9, 5], r"x is \[9, 5\], expected low <= high"),
        ({"mean": 3}, "x.kind is missing, expected one of constant, uniform"),
        ({"kind": "normal", "mean": 3}, "x.std is missing"),
        ({"kind": "normal", "mean": 0, "std": 1}, "x.mean is 0, expected a number above 0"),
        ({"kind": "normal", "mean": 3, "std": -1}, "x.std is -1"),
        ({"kind": "normal", "mean": 3, "std": 1, "low": 9, "high": 5}, r"x.low is 9, expected at most high \(5\)"),
        ({"kind": "geometric", "mean": 0.5}, "x.mean is 0.5, expected a number from 1"),
        ({"kind": "pareto", "shape": 1, "low": 0, "high": 9}, "x.low is 0"),
        ({"kind": "pareto", "shape": 1, "low": 10, "high": 9}, "x.high is 9, expected a number from 10"),
        ({"kind": "zipf", "exponent": 1, "high": 10**9}, "x.high is 1000000000"),
        ({"kind": "histogram", "values": [1], "weights": [1, 2]}, "x.weights has 2 numbers, values has 1"),
        ({"kind": "histogram", "values": [1], "weights": [0]}, r"x.weights is \[0\]"),
        ({"kind": "histogram", "values": [], "weights": []}, r"x.values is \[\], expected a list"),
        ({"kind": "trace", "path": TRACE, "column": "total"}, "x.column is 'total', expected prompt or output"),
        ({"kind": "trace", "path": "absent.jsonl"}, "absent.jsonl: no such file"),
    ],
)
def test_a_wrong_distribution_is_one_line_with_the_key(value: Any, words: str):
    with pytest.raises(WorkloadError, match=words) as caught:
        draw(value, 0, TOKENS)
    assert "\n" not in str(caught.value)


def test_a_draw_that_is_no_length_says_what_to_give():
    with pytest.raises(WorkloadError, match=r"x drew -?\d+.*, expected 1 to 5,000,000: give it a low and a high"):
        draw({"kind": "normal", "mean": 10, "std": 100}, 100, TOKENS)


def test_an_unknown_family_or_key_names_the_nearest():
    with pytest.raises(UnknownName, match=r"distribution in x.kind 'lognorm'; did you mean 'lognormal'"):
        draw({"kind": "lognorm", "mean": 1, "std": 1})
    with pytest.raises(UnknownName, match=r"key of distribution normal in x 'sd'; did you mean 'std'"):
        draw({"kind": "normal", "mean": 1, "sd": 1})
    with pytest.raises(UnknownName, match="trace format 'azur'; did you mean 'azure'"):
        draw({"kind": "trace", "path": TRACE, "format": "azur"})
