"""Why a request waited: every reason, for whom, how long, with the numbers of the decision."""

from __future__ import annotations

from why_engine import STEP, Scenario, of_kind, one, stretches, tokens

from kvtop.why.facts import StepTimes
from kvtop.why.waits import MAX_LINES, Refusal, Stretch, Wait, tell
from kvtop.why.waits import stretches as split


def no_room() -> Scenario:
    """Four blocks of 4: a holds three for 5 steps, b needs two, c is behind b."""
    scenario = Scenario(4)
    scenario.submit("a", tokens(9, 1), 5)
    scenario.submit("b", tokens(8, 2), 2)
    scenario.submit("c", tokens(3, 3), 1)
    scenario.finish()
    return scenario


def test_no_room_names_need_have_and_who_held_most() -> None:
    lines = no_room().why("b")
    assert stretches(lines) == [("no_blocks", "a", 0, 5, 5 * STEP)]
    (stretch,) = one(lines, "waited").numbers["stretches"]
    assert (stretch["need"], stretch["have"], stretch["held_by_other"]) == (2, 1, 3)
    assert one(lines, "waited").text == (
        "waited 50.0 ms (5 steps): no room: 2 blocks needed, 1 was available; a held most (3 blocks)"
    )
    assert one(lines, "admitted").t_ns == 5 * STEP


def test_being_behind_somebody_is_read_off_the_steps_and_says_why_the_head_waits() -> None:
    lines = no_room().why("c")
    assert stretches(lines) == [("head_of_line", "b", 0, 5, 5 * STEP)]
    (stretch,) = one(lines, "waited").numbers["stretches"]
    assert (stretch["head_reason"], stretch["head_other"], stretch["need"], stretch["have"]) == ("no_blocks", "a", 2, 1)


def test_who_is_admitted_at_once_did_not_wait() -> None:
    assert not of_kind(no_room().why("a"), "waited")


def test_no_seat_first_behind_another_and_then_at_the_head() -> None:
    scenario = Scenario(max_num_seqs=1)
    scenario.submit("a", tokens(4, 1), 3)
    scenario.submit("b", tokens(4, 2), 1)
    scenario.submit("c", tokens(4, 3), 1)
    scenario.finish()
    assert stretches(scenario.why("b")) == [("seats", None, 0, 3, 3 * STEP)]
    lines = scenario.why("c")
    assert stretches(lines) == [("head_of_line", "b", 0, 3, 3 * STEP), ("seats", None, 3, 1, STEP)]
    assert "all 1 were taken" in of_kind(lines, "waited")[1].text


def test_the_budget_was_spent() -> None:
    scenario = Scenario(max_batched_tokens=4)
    scenario.submit("a", tokens(8, 1), 1)
    scenario.submit("b", tokens(3, 2), 1)
    scenario.finish()
    lines = scenario.why("b")
    assert stretches(lines) == [("budget", None, 0, 2, 2 * STEP)]
    assert "budget of 4 was spent" in one(lines, "waited").text


def test_a_budget_smaller_than_the_seats_is_named_as_what_limits_them() -> None:
    scenario = Scenario(max_batched_tokens=1)
    scenario.submit("a", tokens(2, 1), 1)
    scenario.submit("b", tokens(2, 2), 1)
    scenario.finish()
    lines = scenario.why("b")
    assert stretches(lines) == [("budget", None, 0, 2, 2 * STEP)]
    assert "no token for one more running sequence" in one(lines, "waited").text


def test_no_hole_is_told_apart_from_no_room() -> None:
    scenario = Scenario(6, allocator="contiguous-oracle")
    for rid, length, m in (("a", 7, 2), ("b", 3, 6), ("c", 7, 2), ("d", 9, 4)):  # 2, 2, 2 and 3 blocks
        scenario.submit(rid, tokens(length, ord(rid)), m)
    scenario.finish()
    lines = scenario.why("d")
    assert stretches(lines) == [("no_blocks", "c", 0, 2, 2 * STEP), ("no_hole", "b", 2, 4, 4 * STEP)]
    assert "3 blocks needed in one piece, 4 were free; b held most (2 blocks)" in of_kind(lines, "waited")[1].text


def test_pinned_blocks_are_named() -> None:
    scenario = Scenario(4)
    scenario.submit("a", tokens(8, 1), 1)
    scenario.finish()
    for block in (0, 1):
        scenario.engine.pin(block)
    scenario.submit("b", tokens(12, 2), 1)
    scenario.steps(1)
    for block in (0, 1):
        scenario.engine.unpin(block)
    scenario.finish()
    (stretch,) = one(scenario.why("b"), "waited").numbers["stretches"]
    assert (stretch["reason"], stretch["need"], stretch["have"]) == ("pinned", 3, 2)


def test_a_request_that_still_waits_says_so() -> None:
    scenario = Scenario(4)
    scenario.submit("a", tokens(9, 1), 5)
    scenario.submit("b", tokens(8, 2), 2)
    scenario.steps(3)
    lines = scenario.why("b", status="running")
    assert stretches(lines) == [("no_blocks", "a", 0, 3, 3 * STEP)]
    assert one(lines, "now").text == "waiting now, after 0 tokens"


def test_steps_that_do_not_name_a_head_leave_the_reason_open() -> None:
    steps = [StepTimes(i, 10 * i, 10 * i + 10) for i in range(3)]
    (stretch,) = split(Wait("x", 0, 3, 0, 30), steps, {})
    assert (stretch.reason, stretch.num_steps, stretch.wait_ns) == ("", 3, 30)
    assert "the log does not say why" in tell([stretch], {})[0].text


def test_a_reason_holds_until_another_is_logged_and_comes_back_with_the_head() -> None:
    """x heads the queue in steps 0, 1 and 4; its only decision is of step 0. In 2 and 3 it is behind y."""
    heads = ("x", "x", "y", "y", "x")
    steps = [StepTimes(i, 10 * i, 10 * i + 10, head) for i, head in enumerate(heads)]
    refusals = {
        "x": [Refusal(0, "no_blocks", "r", 5, 2, 7)],
        "y": [Refusal(2, "seats", None, 9, 8, None)],
    }
    found = split(Wait("x", 0, 5, 3, 50), steps, refusals)
    assert [(s.reason, s.other, s.num_steps, s.wait_ns) for s in found] == [
        ("no_blocks", "r", 2, 17),
        ("head_of_line", "y", 2, 20),
        ("no_blocks", "r", 1, 10),
    ]


def test_neighbours_behind_several_heads_share_a_line_the_longest_first() -> None:
    heads = [("y", 2), ("z", 5), ("w", 1)]
    found = [Stretch("head_of_line", head, 0, count, 0, count * STEP) for head, count in heads]
    (told,) = tell(found, {})
    assert "waited 80.0 ms (8 steps) behind z (5 steps), y (2 steps) and w (1 step)" in told.text


def test_many_short_waits_are_told_by_reason() -> None:
    found = [
        Stretch(reason, None, i, 1, i, STEP, Refusal(i, reason, None, i, 0, None))
        for i, reason in enumerate(["no_blocks", "preempting"] * MAX_LINES)
    ]
    first, second = tell(found, {})
    assert first.text == (
        f"waited {MAX_LINES * 10}.0 ms ({MAX_LINES} steps), {MAX_LINES} times: "
        f"no room: {2 * MAX_LINES - 2} blocks needed, 0 were available (the last time)"
    )
    assert len(second.stretches) == MAX_LINES
