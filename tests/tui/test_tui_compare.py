"""Compare: runs kept at one moment, where they part, and figures that equal those of the finished runs."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterable
from itertools import pairwise

import msgspec
import pytest
import uneven_run
from hypothesis import given, settings
from hypothesis import strategies as st
from tui_fakes import FakeSession, app_with, go, recorded, screen_text, settled
from tui_states import worked_out

from kvtop.analysis.compare import Options, compare_paths
from kvtop.analysis.side_by_side import SAME, UNCLEAR, Ended, Journal, conflicts, counts, latencies
from kvtop.analysis.side_by_side import settings as settings_of
from kvtop.cli.main import main
from kvtop.engine.events import Event, RunStarted, StepEvent
from kvtop.state.divergence import Partings, in_words
from kvtop.tui.compare_app import CompareApp
from kvtop.tui.feed import time_of
from kvtop.tui.lanes import Lanes

POLICIES = ("fcfs", "sjf", "lpm")


class Trickle(FakeSession):
    """Hands out events a few at a time."""

    def __init__(self, events: Iterable[Event], sizes: Iterable[int]) -> None:
        super().__init__(events)
        self.sizes = iter(sizes)

    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        count = next(self.sizes, 7)
        batch, self.events = self.events[:count], self.events[count:]
        return batch


def lanes_of(*policies: str, **options) -> Lanes:
    return Lanes([(policy, FakeSession(uneven_run.events(policy))) for policy in policies], **options)


def fold_all(lanes: Lanes) -> None:
    while any(lane.feed.end is None for lane in lanes.lanes):
        lanes.fold_pending(1.0)


def steps(policy: str) -> list[StepEvent]:
    return [event for event in uneven_run.events(policy) if isinstance(event, StepEvent)]


# In step -----------------------------------------------------------------------------------------------------


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10**6))
def test_no_run_gets_ahead_of_what_is_known_of_another(seed):
    rng = random.Random(seed)
    runs = [
        (policy, Trickle(uneven_run.events(policy)[:900], [rng.randint(0, 40) for _ in range(200)]))
        for policy in POLICIES
    ]
    lanes = Lanes(runs)
    done = [0.0] * len(runs)

    def watching(place: int, plain: Callable[[Event], None]) -> Callable[[Event], None]:
        def watch(event: Event) -> None:
            done[place] = max(done[place], time_of(event))
            assert all(done[place] <= other.feed.reach_ns for other in lanes.lanes)
            plain(event)

        return watch

    for place, lane in enumerate(lanes.lanes):
        lane.feed._watch = watching(place, lane._watch)
    for _ in range(400):
        lanes.fold_pending(0.05)
    # None of them tells its end: all have come as far as the one that has told least.
    least = min(lane.feed.reach_ns for lane in lanes.lanes)
    for policy, reached in zip(POLICIES, done, strict=True):
        made = [time_of(event) for event in uneven_run.events(policy)[:900]]
        assert reached == max(t_ns for t_ns in made if t_ns <= least)


def test_runs_that_have_ended_let_the_others_go_on():
    lanes = lanes_of(*POLICIES)
    fold_all(lanes)
    for lane in lanes.lanes:
        plain = uneven_run.folded(uneven_run.events(lane.label))
        assert (lane.timeline.live.step, lane.timeline.live.t_ns) == (plain.step, plain.t_ns)
        assert lane.timeline.live.totals == plain.totals


def test_the_pace_is_seconds_of_virtual_time_a_second(monkeypatch):
    now = [50.0]
    monkeypatch.setattr("kvtop.tui.lanes.time.monotonic", lambda: now[0])
    lanes = lanes_of("fcfs", "sjf", pace=2.0)
    lanes._ticked_s = now[0]
    monkeypatch.setattr(Lanes, "fold_pending", _fold_without_a_clock)
    for _ in range(8):
        now[0] += 0.25
        lanes.fold_pending()
    for lane in lanes.lanes:
        reached = lane.timeline.live.t_ns
        following = next(s.t_done_ns for s in steps(lane.label) if s.t_done_ns > reached)
        assert reached <= 4_000_000_000 < following
    lanes.is_held = True
    now[0] += 5
    lanes.fold_pending()
    assert all(lane.timeline.live.t_ns <= 4_000_000_000 for lane in lanes.lanes)


def _fold_without_a_clock(lanes: Lanes, budget_s: float = 0.0) -> None:
    """All that may be folded now, however long it takes."""
    lanes._advance()
    if not lanes.is_held:
        for lane in lanes.lanes:
            while lane.feed.lag or lane.session.events:  # type: ignore[attr-defined]
                before = lane.feed.num_events, lane.feed.lag
                lane.feed.fold_pending(math.inf, lanes._limit())
                if before == (lane.feed.num_events, lane.feed.lag):
                    break


def test_all_look_at_the_moment_that_one_looks_at():
    lanes = lanes_of(*POLICIES)
    fold_all(lanes)
    first = lanes.lanes[0].timeline
    first.seek(300)
    lanes.follow(first)
    for lane in lanes.lanes[1:]:
        view = lane.timeline.view
        following = next(s for s in steps(lane.label) if s.step > view.step)
        assert view.t_ns <= first.view.t_ns < following.t_done_ns
    first.go_live()
    lanes.follow(first)
    assert all(lane.timeline.at_live for lane in lanes.lanes)


# Where they part ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["sjf", "lpm"])
def test_they_part_in_the_first_step_whose_decisions_differ(other):
    lanes = lanes_of("fcfs", other)
    fold_all(lanes)
    found = lanes.partings[0].found
    a, b = next((a, b) for a, b in zip(steps("fcfs"), steps(other), strict=False) if a.decisions != b.decisions)
    assert found is not None
    assert (found.step, found.t_ns) == (a.step, a.t_start_ns) == (b.step, b.t_start_ns)
    assert found.first in [tuple(d) for d in a.decisions]
    assert found.first not in [tuple(d) for d in b.decisions] or found.other not in [tuple(d) for d in a.decisions]
    first, second = found.told()
    assert first != second
    assert first.startswith(("admits", "computes", "leaves"))


def test_a_run_never_parts_from_itself_however_its_events_come():
    rng = random.Random(5)
    partings = Partings()
    ahead = {0: list(uneven_run.events()), 1: list(uneven_run.events())}
    while ahead[0] or ahead[1]:
        which = rng.choice([k for k in (0, 1) if ahead[k]])
        partings.fold(which, ahead[which].pop(0))
    assert partings.found is None
    assert partings.num_same == len(steps("fcfs"))


def test_every_kind_of_decision_has_words():
    for event in (*recorded(), *uneven_run.events()):
        for decision in event.decisions if isinstance(event, StepEvent) else ():
            words = in_words(tuple(decision))
            assert words
            assert "None" not in words


# Figures -----------------------------------------------------------------------------------------------------


def journal_of(policy: str) -> Journal:
    journal = Journal()
    for event in uneven_run.events(policy):
        journal.fold(event)
    return journal


def test_at_the_end_the_figures_are_those_of_kvtop_compare(tmp_path):
    """The tables on disk, read and compared by the command, against the events folded on the screen."""
    paths = [uneven_run.on_disk(tmp_path / policy, uneven_run.events(policy)) for policy in ("fcfs", "sjf")]
    (comparison,) = compare_paths(paths, Options())
    told = {found.key: found for found in comparison.statistics[1].change_only}
    rows = latencies(*(journal_of(policy).until(10**18) for policy in ("fcfs", "sjf")))
    assert [row.label for row in rows] == [found.label for found in told.values()]
    for row, found in zip(rows, told.values(), strict=True):
        assert (row.n, row.interval) == (found.n, found.interval)
    values = {f"{key}_p{q}_ns" for key, q in (("ttft", 50), ("tpot", 50), ("e2e", 50))}
    measured = json.loads(json.dumps(comparison.as_json()))["columns"]
    for key in values:
        row = next(row for row, found in zip(rows, told.values(), strict=True) if found.key == key)
        assert [row.first, row.other] == pytest.approx([column["values"][key] for column in measured])
    counted = {row.label: row for row in counts(*(uneven_run.folded(uneven_run.events(p)) for p in ("fcfs", "sjf")))}
    for label, key in (("preemptions", "preemptions"), ("evictions", "evictions"), ("prefix hit rate", "hit_rate")):
        assert [counted[label].first, counted[label].other] == [column["values"][key] for column in measured]


def test_a_run_against_itself_differs_in_nothing():
    journal, state = journal_of("fcfs"), uneven_run.folded(uneven_run.events("fcfs"))
    ended = journal.until(10**18)
    rows = [*latencies(ended, ended), *counts(state, state)]
    assert {row.verdict for row in rows} <= {SAME, "too few"}
    for row in rows:
        assert not row.change
        if row.interval is not None:
            assert (row.interval.low, row.interval.high) == (0, 0)
    assert settings_of(state.manifest, state.manifest) == []
    assert conflicts(state.manifest, state.manifest) == []


def test_an_interval_that_holds_zero_shows_no_difference_which_is_not_that_there_is_none():
    rows = latencies(*(journal_of(policy).until(10**18) for policy in ("fcfs", "sjf")))
    held = [row for row in rows if row.interval is not None and row.interval.low <= 0 <= row.interval.high]
    assert held
    assert {row.verdict for row in held} == {UNCLEAR}


def test_at_a_moment_only_requests_that_had_ended_in_both_count():
    moment = 5_000_000_000
    ended = [journal_of(policy).until(moment) for policy in ("fcfs", "sjf")]
    both = set.intersection(*({r.request_id for r in own.requests} for own in ended))
    plain = [{e.request_id for e in uneven_run.ended(p) if (e.t_done_ns or 0) <= moment} for p in ("fcfs", "sjf")]
    assert both == plain[0] & plain[1]
    assert {row.n for row in latencies(*ended) if row.label.startswith("E2E")} == {len(both)}
    assert latencies(Ended([]), ended[1])[0].verdict == "too few"


def test_verdicts_say_better_worse_costs_and_what_cannot_be_compared():
    first = uneven_run.folded(uneven_run.events("fcfs"))
    manifest = {**first.manifest, "num_blocks": 240, "policy": "sjf"}
    found = {row.label: row.verdict for row in settings_of(first.manifest, manifest)}
    assert found == {"policy": "", "pool blocks": "costs"}
    assert settings_of(manifest, first.manifest)[-1].verdict == "saves"
    other = {**manifest, "workload_hash": "bbbb", "clock": "real", "model": "x"}
    assert len(conflicts(first.manifest, other)) == 3
    rows = {row.label: row for row in counts(first, uneven_run.folded(uneven_run.events("sjf")))}
    for row in rows.values():
        if row.first == row.other:
            assert row.verdict == SAME
        else:
            more_is_better = row.label in ("requests ended", "prefix hit rate", "output tokens/s")
            assert row.verdict == ("better" if (row.other > row.first) == more_is_better else "worse")


# On the screen -----------------------------------------------------------------------------------------------


def compare_app(*policies: str, **options) -> CompareApp:
    return CompareApp(lanes_of(*policies), hz=50.0, **options)


async def drawn(pilot) -> None:
    """Wait until all runs are folded and the intervals worked out."""
    app = pilot.app
    while any(lane.feed.end is None for lane in app.lanes.lanes):
        app.tick()
        await pilot.pause()
        assert app._exception is None, app._exception
    await worked_out(pilot)


async def test_two_runs_side_by_side_and_enter_goes_where_they_part():
    app = compare_app("fcfs", "sjf")
    async with app.run_test(size=(120, 40)) as pilot:
        await drawn(pilot)
        text = screen_text(app)
        assert "A fcfs complete" in text
        assert "B sjf complete" in text
        assert "not comparable" not in text
        assert "TTFT p50" in text
        found = app.lanes.partings[0].found
        assert found is not None
        assert found.told()[0] in text
        await pilot.press("enter")
        await drawn(pilot)
        assert [lane.timeline.view.step for lane in app.lanes.lanes] == [found.step, found.step]
        assert "FROZEN" in screen_text(app)
        await pilot.press("escape")
        await drawn(pilot)
        assert all(lane.timeline.at_live for lane in app.lanes.lanes)


async def test_of_three_the_second_column_changes_and_other_screens_show_the_one_chosen():
    app = compare_app(*POLICIES)
    async with app.run_test(size=(120, 40)) as pilot:
        await drawn(pilot)
        assert "B - A" in screen_text(app)
        await pilot.press("v")
        await drawn(pilot)
        assert "C - A" in screen_text(app)
        await pilot.press("b", "1")
        deadline_s = time.monotonic() + 60
        while "policy sjf" not in screen_text(app):
            assert time.monotonic() < deadline_s, screen_text(app)
            await pilot.pause(0.01)


async def test_what_cannot_be_compared_is_said_first():
    made = list(uneven_run.events("sjf"))
    start = made[0]
    assert isinstance(start, RunStarted)
    made[0] = msgspec.structs.replace(start, manifest={**start.manifest, "workload_hash": "bbbb"})
    lanes = Lanes([("fcfs", FakeSession(uneven_run.events("fcfs"))), ("sjf", FakeSession(made))])
    app = CompareApp(lanes, hz=50.0)
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        lines = [line for line in screen_text(app).splitlines() if "not comparable" in line or "TTFT p50" in line]
        assert "not comparable: workload hash is aaaa and bbbb" in lines[0]
        assert "TTFT p50" in lines[1]


async def test_of_a_single_run_the_screen_says_how_to_compare():
    app = app_with(recorded())
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await go(pilot, "6")
        text = screen_text(app)
        assert "kvtop compare -w shared-prompts -p fcfs -p lpm --executor sim --tui" in text
        assert "kvtop compare RUN RUN --tui" in text
        assert "On one clock" not in text


# The command -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-w apc -p fcfs -p sjf", "executor torch runs in real time"),
        ("-w apc -p fcfs --executor null --num-blocks 300", "1 run, expected two to 8"),
        ("-w apc -p fcfs -p sjf --executor null --num-blocks 300 --json", "leave out --json"),
        ("-w apc -p fcfs -p sjf --executor null --num-blocks 300 -o out", "leave out --output"),
        ("nowhere elsewhere", "does not exist"),
        ("nowhere elsewhere --pace 3", "--pace is of runs made with -w"),
    ],
)
def test_what_cannot_be_shown_is_one_line_and_exit_2(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *words.split(), "--tui"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1


def test_steps_are_in_order_of_time():
    """What lockstep rests on."""
    for policy in POLICIES:
        assert all(a.t_done_ns <= b.t_done_ns for a, b in pairwise(steps(policy)))
