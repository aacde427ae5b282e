"""Branches of one request: what they share, what is copied, and each by its own name."""

from __future__ import annotations

from why_engine import STEP, Scenario, of_kind, one, stretches, tokens


def three_branches(**config: int) -> Scenario:
    """A prompt of 6 tokens in two blocks of 4: the branches part inside the second one."""
    scenario = Scenario(**config)
    scenario.submit("a", tokens(6, 1), 4, n=3)
    scenario.finish()
    return scenario


def test_branches_share_the_prompt_and_all_but_one_writer_copy_its_last_block() -> None:
    lines = three_branches().why("a")
    assert one(lines, "branched").numbers["branches"] == {"a#1": 2, "a#2": 2}
    copies = [(x.seq_id, x.step, x.numbers["shared_block"], x.numbers["position"]) for x in of_kind(lines, "copied")]
    assert copies == [("a", 1, 1, 4), ("a#1", 1, 1, 4)]
    assert len({x.numbers["block"] for x in of_kind(lines, "copied")}) == 2
    assert {x.seq_id: x.numbers["output_tokens"] for x in of_kind(lines, "ended")} == {"a": 4, "a#1": 4, "a#2": 4}


def test_branches_that_part_at_a_block_boundary_copy_nothing() -> None:
    scenario = Scenario()
    scenario.submit("a", tokens(8, 1), 3, n=2)
    scenario.finish()
    assert one(scenario.why("a"), "branched").numbers["branches"] == {"a#1": 2}
    assert not of_kind(scenario.why("a"), "copied")


def test_a_branch_by_its_own_name_begins_with_its_parent() -> None:
    lines = three_branches().why("a#1")
    assert {line.seq_id for line in lines} == {"a#1"}
    assert [line.kind for line in lines] == ["born", "copied", "decode", "ended"]
    assert lines[0].numbers == {"parent": "a", "output_tokens": 1}
    assert (lines[2].numbers["tokens"], lines[2].numbers["itl_mean_ns"]) == (3, STEP)


def test_a_branch_without_a_seat_waits_alone_and_computes_what_the_cache_lacks() -> None:
    """Two seats: a#2 waits in steps 1 to 3; a full block of the prompt is in the cache, its last two tokens are not."""
    lines = three_branches(max_num_seqs=2).why("a#2")
    assert stretches(lines) == [("seats", None, 1, 3, 3 * STEP)]
    back = one(lines, "resumed").numbers
    assert (back["away_ns"], back["restored_tokens"], back["recomputed_tokens"]) == (3 * STEP, 4, 2)
    assert (back["lost_ns"], back["preempted_step"]) == (3 * STEP, None)
    assert one(lines, "decode").numbers["tokens"] == 3


def test_a_fork_from_outside_keeps_the_output_so_far() -> None:
    scenario = Scenario()
    scenario.submit("a", tokens(6, 1), 6)
    scenario.steps(3)
    scenario.engine.fork("a", 2)
    scenario.finish()
    lines = scenario.why("a#1")
    assert one(lines, "born").numbers == {"parent": "a", "output_tokens": 3}
    assert one(lines, "decode").numbers["tokens"] == 3
    assert one(lines, "ended").numbers["output_tokens"] == 6
