"""Student's t against published tables and worked examples, Holm, and the block bootstrap against plain models."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.analysis.inference import (
    BlockBootstrap,
    block_length,
    bootstrap_interval,
    holm,
    t_interval,
    t_quantile,
    t_within,
)
from kvtop.analysis.stats import percentile

TABLE = {  # two-sided confidence -> degrees of freedom -> critical value, as printed in tables of Student's t
    0.90: {1: 6.314, 2: 2.920, 5: 2.015, 10: 1.812, 30: 1.697},
    0.95: {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 9: 2.262, 19: 2.093, 120: 1.980},
    0.99: {1: 63.657, 2: 9.925, 3: 5.841, 4: 4.604, 9: 3.250, 24: 2.797},
    0.999: {2: 31.599, 4: 8.610, 9: 4.781},
}


@pytest.mark.parametrize(
    ("confidence", "dof", "value"), [(c, dof, value) for c, row in TABLE.items() for dof, value in row.items()]
)
def test_critical_values_are_those_of_the_tables(confidence: float, dof: int, value: float) -> None:
    assert t_quantile(confidence, dof) == pytest.approx(value, abs=6e-4)


@given(st.floats(0, 50), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_the_distribution_is_the_integral_of_its_density(t: float, dof: int) -> None:
    x = np.linspace(0.0, t, 20_001)
    norm = math.exp(math.lgamma((dof + 1) / 2) - math.lgamma(dof / 2)) / math.sqrt(dof * math.pi)
    expected = 2 * float(np.trapezoid(norm * (1 + x * x / dof) ** (-(dof + 1) / 2), x))
    assert t_within(t, dof) == pytest.approx(expected, abs=1e-5)


def test_the_ends_of_the_distribution() -> None:
    assert t_within(0.0, 4) == 0.0
    assert t_within(math.inf, 4) == 1.0
    assert t_within(1.0, 1) == pytest.approx(0.5), "Cauchy: half lies between -1 and 1"


def test_students_own_example() -> None:
    """Extra hours of sleep of ten patients (Student, 1908): t = 4.0621 on 9 degrees, p = 0.002833."""
    found = t_interval([1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4])
    assert found is not None
    assert found.p is not None
    assert found.estimate == pytest.approx(1.58)
    assert (found.low, found.high) == pytest.approx((0.7001142, 2.4598858), abs=1e-6)
    assert found.p == pytest.approx(0.002833, abs=1e-6)
    assert found.n == 10


def test_no_difference_at_all_is_a_point_with_p_one() -> None:
    found = t_interval([0.0] * 5)
    assert found is not None
    assert (found.estimate, found.low, found.high, found.p) == (0.0, 0.0, 0.0, 1.0)


def test_differences_without_spread_have_no_p() -> None:
    found = t_interval([2.0] * 5)
    assert found is not None
    assert (found.low, found.high, found.p) == (2.0, 2.0, None)


def test_one_difference_has_no_interval() -> None:
    assert t_interval([1.0]) is None
    assert t_interval([]) is None


def test_holm_steps_down_and_never_falls() -> None:
    """0.005 * 4, 0.01 * 3, then 0.03 * 2; 0.04 * 1 is lifted to what came before."""
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert found == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert list(found) == ["a", "b", "c", "d"]
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_its_definition_rejects(values: list[float]) -> None:
    """Against the definition: from the smallest on, as long as p * (how many are left) stays at or below alpha."""
    alpha = 0.05
    adjusted = holm({str(i): p for i, p in enumerate(values)})
    rejected = set()
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        if values[index] * (len(values) - rank) > alpha:
            break
        rejected.add(str(index))
    assert {name for name, p in adjusted.items() if p <= alpha} == rejected


@pytest.mark.parametrize(("n", "length"), [(1, 1), (2, 2), (8, 2), (9, 3), (27, 3), (1000, 10), (1001, 11)])
def test_blocks_have_the_length_of_the_cube_root(n: int, length: int) -> None:
    assert block_length(n) == length


@given(st.integers(1, 60), st.integers(0, 5))
@settings(max_examples=50, deadline=None)
def test_a_resample_is_made_of_whole_runs_of_neighbours(n: int, seed: int) -> None:
    """Against the same starts drawn again and the blocks laid out one by one."""
    bootstrap = BlockBootstrap(n, 1, seed)
    counts = bootstrap._counts(np.random.Generator(np.random.PCG64(seed)))
    num_blocks = -(-n // bootstrap.length)
    starts = np.random.Generator(np.random.PCG64(seed)).integers(0, n, num_blocks)
    drawn = [(start + k) % n for start in starts for k in range(bootstrap.length)][:n]
    assert counts.tolist() == [drawn.count(index) for index in range(n)]
    assert counts.sum() == n


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=40), st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_resampled_percentiles_are_those_of_the_values_written_out(values: list[int], seed: int) -> None:
    bootstrap = BlockBootstrap(len(values), 3, seed)
    (found,) = bootstrap.percentiles([values], [50, 99])
    random = np.random.Generator(np.random.PCG64(seed))
    for resample in range(3):
        counts = bootstrap._counts(random)
        drawn = sorted(float(v) for v, count in zip(values, counts, strict=True) for _ in range(count))
        for place, q in enumerate((50, 99)):
            expected = percentile(drawn, q)
            assert expected is not None
            assert found[place][resample] == pytest.approx(expected, rel=1e-12, abs=1e-6)


def test_the_same_values_give_the_same_intervals_and_pairs_differ_by_nothing() -> None:
    values = [((i * 7919) % 1009) / 7 for i in range(300)]
    once, again = (BlockBootstrap(300, 100).percentiles([values, values], [50]) for _ in range(2))
    assert once == again
    assert once[0] == once[1]


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """The median of an exponential law is ln 2; of 120 independent samples about 95 % of the intervals hold it."""
    random = np.random.Generator(np.random.PCG64(5))
    hits = 0
    for _ in range(120):
        values = random.exponential(size=100).tolist()
        ((medians,),) = BlockBootstrap(100, 150).percentiles([values], [50])
        interval = bootstrap_interval(0.0, medians, 100)
        hits += interval.low <= math.log(2) <= interval.high
    assert 0.85 * 120 <= hits <= 120


def test_blocks_widen_the_interval_where_neighbours_are_alike() -> None:
    """A slow wave over the requests: single draws take it for noise that averages out, blocks keep it together."""
    random = np.random.Generator(np.random.PCG64(1))
    wave = (100 + 50 * np.sin(np.arange(400) / 20) + random.normal(size=400)).tolist()
    blocks, single = BlockBootstrap(400, 200), BlockBootstrap(400, 200)
    single.length = 1
    widths = []
    for bootstrap in (blocks, single):
        ((medians,),) = bootstrap.percentiles([wave], [50])
        interval = bootstrap_interval(0.0, medians, 400)
        widths.append(interval.high - interval.low)
    assert widths[0] > 1.5 * widths[1]
