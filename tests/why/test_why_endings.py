"""How a life ends: every reason, also before it began and after the log."""

from __future__ import annotations

from dataclasses import replace

import pytest
from why_engine import STEP, Scenario, of_kind, one, tokens

from kvtop.engine.api import SamplingParams
from kvtop.engine.errors import QueueFull, RequestTooLong
from kvtop.why import explain, facts_of


def test_all_tokens_it_asked_for() -> None:
    scenario = Scenario()
    scenario.submit("a", tokens(4, 1), 3)
    scenario.finish()
    end = one(scenario.why("a"), "ended")
    assert (end.numbers["reason"], end.numbers["output_tokens"], end.numbers["e2e_ns"]) == ("length", 3, 3 * STEP)
    assert end.text == "ended with all 3 tokens it asked for, E2E 30.0 ms"


def test_the_longest_length_the_engine_serves() -> None:
    scenario = Scenario(max_model_len=8)
    scenario.submit("a", tokens(5, 1), 10)
    scenario.finish()
    end = one(scenario.why("a"), "ended")
    assert end.text.startswith("ended after 3 tokens: prompt and output reached the longest length, 8")


def test_a_stop_token() -> None:
    scenario = Scenario()
    scenario.engine.submit(tokens(4, 1), SamplingParams(max_tokens=9, stop_token_ids=(1001,)), request_id="a")
    scenario.finish()
    assert one(scenario.why("a"), "ended").text.startswith("ended after 2 tokens: a stop token")


def test_alone_and_still_no_room() -> None:
    scenario = Scenario(3, max_model_len=None)
    scenario.submit("a", tokens(5, 1), 50)
    scenario.finish()
    end = one(scenario.why("a"), "ended")
    assert (end.numbers["reason"], end.numbers["output_tokens"]) == ("capacity", 8)
    assert "for want of capacity" in end.text


def test_rejected_says_both_numbers_and_nothing_else_happened() -> None:
    scenario = Scenario(3, max_model_len=None)
    with pytest.raises(RequestTooLong):
        scenario.submit("big", tokens(20, 1))
    scenario.finish()
    (line,) = scenario.why("big")
    assert (line.kind, line.numbers["prompt_tokens"]) == ("rejected", 20)
    assert line.text == "rejected at submission: 20 prompt tokens, at most 12 are served"


def test_rejected_by_a_full_queue_gives_the_engines_own_line() -> None:
    scenario = Scenario(max_queue=1)
    scenario.submit("a", tokens(4, 1))
    with pytest.raises(QueueFull):
        scenario.submit("b", tokens(4, 2))
    scenario.finish()
    assert "max_queue is reached" in one(scenario.why("b"), "rejected").text


def test_an_id_that_was_rejected_and_came_again_tells_its_last_life() -> None:
    scenario = Scenario(max_queue=1)
    scenario.submit("a", tokens(4, 1))
    with pytest.raises(QueueFull):
        scenario.submit("b", tokens(4, 2))
    scenario.steps(1)
    scenario.submit("b", tokens(4, 2), 2)
    scenario.finish()
    lines = scenario.why("b")
    assert not of_kind(lines, "rejected")
    assert one(lines, "ended").numbers["output_tokens"] == 2


def test_aborted_while_running_and_while_waiting() -> None:
    scenario = Scenario(3)
    scenario.submit("runs", tokens(9, 1), 9)
    scenario.submit("waits", tokens(9, 2), 9)
    scenario.steps(2)
    for rid in ("waits", "runs"):
        scenario.engine.abort(rid)
    scenario.finish()
    runs, waits = one(scenario.why("runs"), "ended"), one(scenario.why("waits"), "ended")
    assert (runs.numbers["output_tokens"], runs.numbers["state"], runs.numbers["e2e_ns"]) == (2, "running", 2 * STEP)
    assert (waits.numbers["output_tokens"], waits.numbers["state"], waits.numbers["e2e_ns"]) == (0, "waiting", 2 * STEP)
    assert waits.text.startswith("aborted from outside after 0 tokens while it waited")
    assert one(scenario.why("waits"), "waited").numbers["stretches"][0]["wait_ns"] == 2 * STEP


def test_cut_off_by_the_end_of_the_run_or_still_going_on() -> None:
    scenario = Scenario()
    scenario.submit("a", tokens(4, 1), 9)
    scenario.steps(3)
    assert one(scenario.why("a", status="running"), "now").text == "running now, after 3 tokens"
    cut = one(scenario.why("a", status="interrupted"), "cut_off")
    assert cut.text == "cut off by the end of the run while running, after 3 tokens"
    assert cut.t_ns == 3 * STEP


def test_a_log_that_begins_in_the_middle_tells_the_rest() -> None:
    """What a live screen has: the newest decisions only. Nothing that is told then differs from the whole story."""
    scenario = Scenario(4)
    scenario.submit("a", tokens(7, 1), 6)
    scenario.submit("b", tokens(7, 2), 4)
    scenario.finish()
    whole = scenario.why("b")
    facts = facts_of(scenario.events, "b", scenario.run)
    assert facts is not None
    own = [index for index, row in enumerate(facts.decisions) if row["request_id"] == "b"]
    end = next(index for index in own if facts.decisions[index]["kind"] == "finished")
    for cut in range(own[0] + 1, end + 1):
        rest = facts.decisions[cut:]
        lines = explain(replace(facts, decisions=rest))
        assert one(lines, "log_begins").step is not None
        assert one(lines, "ended").text.split(", of which")[0] == one(whole, "ended").text.split(", of which")[0]
        for kind in ("first_token", "preempted"):
            assert [line.text for line in of_kind(lines, kind)] in ([], [line.text for line in of_kind(whole, kind)])
        emitted = sum(line.numbers["tokens"] for line in of_kind(lines, "decode")) + len(of_kind(lines, "first_token"))
        assert emitted == sum(row["kind"] == "chunk" and row["request_id"] == "b" for row in rest)
    assert explain(replace(facts, decisions=[row for row in facts.decisions if row["request_id"] != "b"])) == []
