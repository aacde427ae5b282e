"""Which rates are tried and what is claimed of them, against servers that are plain functions of the rate."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.bench.rate_search import WIDEST, Bracket, next_rate, rounded


def search(
    passes: Callable[[float], bool], start: float, tolerance: float = 0.05, limit: int = 200
) -> dict[float, bool]:
    """Every rate tried, in order."""
    tried: dict[float, bool] = {}
    while (rate := next_rate(tried, start, tolerance)) is not None:
        assert rate not in tried, "a rate is tried once"
        assert len(tried) < limit, "the search does not end"
        tried[rate] = passes(rate)
    return tried


@given(st.floats(0.2, 100), st.floats(0.2, 100), st.sampled_from((0.3, 0.05, 0.01, 0.001)))
def test_the_edge_of_a_monotone_server_is_bracketed(edge: float, start: float, tolerance: float) -> None:
    bracket = Bracket.of(search(lambda rate: rate <= edge, start, tolerance))
    assert bracket.low is not None
    assert bracket.high is not None
    assert bracket.low <= edge < bracket.high
    assert bracket.high <= bracket.low * (1 + tolerance)
    assert bracket.above == ()


def test_doubling_then_the_geometric_middle_then_the_checks() -> None:
    tried = list(search(lambda rate: rate < 10, 1.0, 0.2))
    assert tried[:5] == [1, 2, 4, 8, 16]
    assert tried[5:7] == [11.31, 9.512]  # sqrt(8 * 16), sqrt(8 * 11.31): now 11.31 / 9.512 is within 20 %
    assert tried[7:] == [22.62]  # 2 * 11.31; the other checks are within 20 % of 4, 8, 9.512, 11.31 or 16


def test_a_failure_below_moves_the_answer_down_and_what_passes_above_is_told() -> None:
    """A server that fails in a band below its edge: the plain bisection would never look there."""
    tried = search(lambda rate: rate < 100 and not 60 < rate < 80, 1.0, 0.02)
    bracket = Bracket.of(tried)
    assert bracket.low is not None
    assert bracket.low <= 60
    assert bracket.high is not None
    assert 60 < bracket.high <= bracket.low * 1.02
    assert bracket.above
    assert all(80 <= rate < 100 for rate in bracket.above)


def test_a_pass_far_above_the_edge_is_found_and_told() -> None:
    bracket = Bracket.of(search(lambda rate: rate < 10 or 13 < rate < 14.5, 1.0, 0.05))
    assert bracket.low is not None
    assert bracket.low < 10
    assert bracket.above
    assert all(13 < rate < 14.5 for rate in bracket.above)


@given(st.sets(st.integers(0, 60)), st.floats(20, 200), st.sampled_from((0.2, 0.05)))
def test_it_ends_and_never_claims_more_than_was_tried(bad: set[int], start: float, tolerance: float) -> None:
    """Whatever the server does: up to low every rate tried passed, high failed and is the lowest that did."""
    tried = search(lambda rate: int(rate * 3) % 61 not in bad and rate < 1e4, start, tolerance, limit=2000)
    bracket = Bracket.of(tried)
    failed = [rate for rate, passed in tried.items() if not passed]
    assert bracket.high is not None
    assert bracket.high == min(failed)
    if bracket.low is not None:
        assert all(passed for rate, passed in tried.items() if rate <= bracket.low)
        assert bracket.high > bracket.low
    assert set(bracket.above) == {rate for rate, passed in tried.items() if passed and rate > min(failed)}


def test_a_server_that_never_or_always_fails_ends_the_search() -> None:
    always = search(lambda rate: True, 1.0)
    assert Bracket.of(always) == Bracket(max(always), None)
    assert WIDEST <= max(always) <= 2 * WIDEST
    never = search(lambda rate: False, 1.0)
    assert Bracket.of(never) == Bracket(None, min(never))
    assert abs(len(never) - len(always)) <= 1, "as far up as down"


@pytest.mark.parametrize(("rate", "expected"), [(1.23456, 1.235), (123456.0, 123500.0), (0.000123456, 0.0001235)])
def test_rates_have_four_digits(rate: float, expected: float) -> None:
    assert rounded(rate) == expected
