"""Beam search over scores alone, worked by hand. (Over models: ``tests/executors/test_beams_equal_generate.py``.)"""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvtop.engine.beam import BeamState, Pick
from kvtop.engine.types import SamplingParams

END = 9


def search(max_output: int = 5, *, stops: tuple[int, ...] = (END,), **params: Any) -> BeamState:
    values: dict[str, Any] = {"num_beams": 2, "n": 2, **params}
    return BeamState(SamplingParams(**values), frozenset(stops), max_output)


def found(state: BeamState) -> list[tuple[tuple[int, ...], float]]:
    return [(h.output, h.score) for h in state.finished]


def test_the_best_of_all_beams_go_on_and_their_scores_add_up() -> None:
    state = search()
    assert state.num_top == 4
    assert state.choose([[(1, -1.0), (2, -2.0), (3, -3.0), (4, -4.0)]], [[]]) == [Pick(0, 1, -1.0), Pick(0, 2, -2.0)]
    candidates = [[(5, -0.5), (6, -0.75), (7, -4.0), (8, -5.0)], [(5, -0.25), (6, -3.0), (7, -3.5), (8, -4.0)]]
    # 1,5: -1.5; 1,6: -1.75; 2,5: -2.25: both children of the first beam are better than the best of the second.
    assert state.choose(candidates, [[1], [2]]) == [Pick(0, 5, -1.5), Pick(0, 6, -1.75)]
    assert state.scores == [-1.5, -1.75]
    assert state.finished == []


def test_at_equal_scores_the_better_beam_goes_first_and_then_its_better_candidate() -> None:
    state = search()
    state.choose([[(1, -1.0), (2, -1.0), (3, -1.0), (4, -1.0)]], [[]])
    same = [(5, -1.0), (6, -1.0), (7, -1.0), (8, -1.0)]
    assert state.choose([same, same], [[1], [2]]) == [Pick(0, 5, -2.0), Pick(0, 6, -2.0)]


def test_an_end_token_among_the_best_candidates_finishes_and_a_worse_one_is_lost() -> None:
    state = search(length_penalty=2.0)
    # Of the four best, the end token is the second: it finishes, and beams 1 and 2 go on.
    assert [p.token for p in state.choose([[(1, -1.0), (END, -2.0), (2, -3.0), (3, -4.0)]], [[]])] == [1, 2]
    assert found(state) == [((END,), -2.0)]
    state = search()
    # The third best: not among the two that may finish, and no beam either.
    assert [p.token for p in state.choose([[(1, -1.0), (2, -2.0), (END, -3.0), (3, -4.0)]], [[]])] == [1, 2]
    assert state.finished == []


@pytest.mark.parametrize(("penalty", "score"), [(0.0, -3.0), (1.0, -1.5), (2.0, -0.75), (-1.0, -6.0)])
def test_a_finished_answer_is_divided_by_a_power_of_its_length(penalty: float, score: float) -> None:
    state = search(length_penalty=penalty)
    state.choose([[(1, -1.0), (2, -1.5), (3, -3.0), (4, -4.0)]], [[]])
    state.choose(
        [[(END, -2.0), (5, -9.0), (6, -9.5), (7, -9.75)], [(5, -3.0), (6, -3.5), (7, -4.0), (8, -5.0)]], [[1], [2]]
    )
    assert found(state) == [((1, END), score)]


def test_no_more_than_so_many_answers_are_kept_and_the_older_of_two_equals_stays() -> None:
    state = search(early_stopping="never", length_penalty=0.0)
    state.choose([[(END, -1.0), (1, -1.25), (2, -1.5), (3, -4.0)]], [[]])
    beams = [[(END, -2.75), (4, -3.0), (5, -3.5), (6, -4.0)], [(END, -2.5), (4, -6.0), (5, -7.0), (6, -8.0)]]
    state.choose(beams, [[1], [2]])
    assert [h.output for h in state.finished] == [(END,), (1, END)]  # 2,END has -4.0 as well, and came second


@pytest.mark.parametrize(
    ("early", "penalty", "goes_on"),
    [
        (True, 1.0, False),  # two answers are there: enough
        (False, 1.0, False),  # the best beam's -6.5 / 2 now is no better than the worst answer's -2.5
        ("never", 1.0, True),  # at length 5 it could still be -6.5 / 5
        ("never", 0.0, False),  # without a penalty length gains nothing
        ("never", -1.0, False),
    ],
)
def test_when_enough_answers_have_finished(early: Any, penalty: float, goes_on: bool) -> None:
    state = search(early_stopping=early, length_penalty=penalty)
    state.choose([[(END, -1.0), (1, -2.0), (2, -2.5), (3, -4.0)]], [[]])
    picks = state.choose(
        [[(END, -3.0), (5, -4.5), (6, -5.0), (7, -6.0)], [(5, -4.75), (6, -5.0), (7, -6.0), (8, -7.0)]], [[1], [2]]
    )
    assert [h.output for h in state.finished] == [(END,), (1, END)]
    assert bool(picks) is goes_on


def test_without_enough_answers_the_search_goes_on_whatever_early_stopping_says() -> None:
    state = search(early_stopping=True)
    assert state.choose([[(END, -0.001), (1, -8.0), (2, -9.0), (3, -9.5)]], [[]])


def test_at_the_greatest_length_the_best_candidates_are_the_answers() -> None:
    state = search(2, length_penalty=1.0)
    state.choose([[(1, -1.0), (2, -2.0), (3, -3.0), (4, -4.0)]], [[]])
    picks = state.choose(
        [[(5, -1.0), (END, -2.5), (6, -3.0), (7, -4.0)], [(5, -0.5), (6, -3.0), (7, -3.5), (8, -4.0)]], [[1], [2]]
    )
    assert picks == []
    assert [(h.output, h.score, h.stopped) for h in state.finished] == [((1, 5), -1.0, False), ((2, 5), -1.25, False)]


def test_below_min_tokens_an_end_token_is_a_token_like_any_other() -> None:
    state = search(min_tokens=2)
    assert [p.token for p in state.choose([[(END, -1.0), (1, -2.0), (2, -3.0), (3, -4.0)]], [[]])] == [END, 1]
    assert state.finished == []


def test_candidates_are_enough_for_beams_that_could_all_stop() -> None:
    assert search(stops=()).num_top == 4
    assert search(stops=(1,)).num_top == 4
    assert search(stops=(1, 2, 3)).num_top == 8
    state = search(stops=(1, 2, 3), early_stopping="never")
    best = [(1, -1.0), (2, -1.5), (3, -2.0), (4, -3.0), (5, -4.0), (6, -5.0), (7, -6.0), (8, -7.0)]
    assert [p.token for p in state.choose([best], [[]])] == [4, 5]
    assert [h.output for h in state.finished] == [(1,), (2,)]


def test_a_search_that_is_cut_off_returns_what_it_has() -> None:
    state = search(length_penalty=1.0)
    state.choose([[(END, -4.0), (1, -5.0), (2, -6.0), (3, -9.0)]], [[]])
    assert state.choose(
        [[(5, -1.0), (6, -9.0), (7, -9.0), (8, -9.0)], [(5, -2.0), (6, -9.0), (7, -9.0), (8, -9.0)]], [[1], [2]]
    )
    state.cut_off([[1, 5], [2, 5]])
    assert found(state) == [((1, 5), -3.0), ((END,), -4.0)]
    fresh = search()
    fresh.cut_off([[]])
    assert fresh.finished == []
    assert math.isclose(fresh.scores[0], 0.0)
