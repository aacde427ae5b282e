"""The log of decisions, its filter and leads, breakpoints, and whether the source is complete."""

from __future__ import annotations

from collections import Counter

import pytest
from tui_fakes import FakeSession, app_with, go, recorded, screen_lines, screen_text, settled

from kvtop.engine.events import ConfigChanged, Gap, Paused, RequestEvent, RunUntil, SetBreakpoints, StepEvent
from kvtop.state.event_log import EventLog, LogLine
from kvtop.state.model import RunState
from kvtop.state.reduce import reduce
from kvtop.tui.panels.event_log import Filter
from kvtop.tui.screens.ask import AskScreen
from kvtop.tui.widgets.block_map import BlockMap
from kvtop.tui.widgets.line_table import LineTable


def log_of(events) -> EventLog:
    state, log = RunState(), EventLog()
    for event in events:
        reduce(state, event)
        log.fold(state, event)
    return log


def test_the_log_has_a_line_for_everything_that_was_decided_and_none_for_tokens():
    log = log_of(recorded())
    kinds = Counter(line.kind for line in log.lines)
    decisions = Counter(d[0] for e in recorded() if isinstance(e, StepEvent) for d in e.decisions)
    assert kinds["ADMIT"] == decisions["admitted"]
    assert kinds["RESUME"] == decisions["resumed"]
    assert kinds["PREEMPT"] == decisions["preempted"]
    ended = [e for e in recorded() if isinstance(e, RequestEvent) and e.phase == "finished"]
    assert kinds["FINISH"] == len(ended)
    assert sum(int(line.text.split()[0]) for line in log.lines if line.kind == "EVICT") == decisions["evict"]


def test_a_preemption_says_who_for_whom_and_what_was_lost():
    step = next(e for e in recorded() if isinstance(e, StepEvent) and e.preemptions)
    decision = next(d for d in step.decisions if d[0] == "preempted")
    line = next(line for line in log_of(recorded()).lines if line.kind == "PREEMPT")
    assert line.step == step.step
    assert line.text == (
        f"{decision[1]} for {decision[3]} (no blocks): gives back {decision[5]:,} blocks, loses {decision[4]:,} tokens"
    )


@pytest.mark.parametrize(
    ("words", "fits"),
    [
        ("", True), ("conv-3", True), ("kind:evict", True), ("kind:admit", False), ("request:conv-3", True),
        ("request:conv", False), ("step>41", True), ("step>42", False), ("step<43 blocks", True), ("-blocks", False),
        ("-admit evict", True), ("step=42", True), ("nothing:here", False),
    ],
)  # fmt: skip
def test_a_filter_wants_all_its_words(words, fits):
    assert Filter(words)(LogLine(1, 42, 7, "EVICT", "conv-3", "2 blocks for conv-3")) == fits


async def test_a_filter_is_typed_and_enter_takes_every_screen_to_the_step_of_a_line():
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "8", "slash")
        assert isinstance(app.screen, AskScreen)
        await go(pilot, *"kind:preempt", "enter")
        table = app.screen.query_one(LineTable)
        steps = [e.step for e in recorded() if isinstance(e, StepEvent) and e.preemptions for _ in range(e.preemptions)]
        assert len(table.ids) == len(steps)
        await go(pilot, "home", "enter")
        assert app.timeline.view.step == steps[0]
        assert f"step {steps[0]}" in screen_lines(app)[0]
        await go(pilot, "4")
        assert f"step {steps[0]}" in screen_lines(app)[0]


async def test_lines_after_the_cursor_are_left_out():
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "8")
        app.timeline.seek(100)
        app.show_now()
        await settled(pilot)
        rows = [line.split() for line in screen_lines(app)[4:20] if line.split()[1:2] and line.split()[1].isdigit()]
        assert rows
        assert max(int(row[1]) for row in rows) <= 100


async def test_it_follows_the_newest_line_until_somebody_goes_up():
    app = app_with(recorded()[:-100])
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "8")
        table = app.screen.query_one(LineTable)
        assert table.selected == table.ids[-1]
        await settled(pilot, *recorded()[-100:-50])
        assert table.selected == table.ids[-1]
        assert "follows" in screen_text(app)
        await go(pilot, "up", "up")
        selected = table.selected
        await settled(pilot, *recorded()[-50:])
        assert table.selected == selected
        await go(pilot, "F")
        assert table.selected == table.ids[-1]


async def test_b_suggests_what_is_under_the_cursor_and_sends_what_was_typed():
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        session = app.session
        assert isinstance(session, FakeSession)
        await go(pilot, "2")
        app.screen.query_one(BlockMap).move_to(7)
        await go(pilot, "b")
        assert "block 7" in screen_text(app)
        await go(pilot, "enter")
        assert session.sent == [SetBreakpoints(["block 7"])]
        await go(pilot, "b", *["backspace"], *"fresh<", "enter")
        assert isinstance(app.screen, AskScreen)
        assert "means nothing" in screen_text(app)
        await go(pilot, "6", "4", "enter")
        assert session.sent[-1] == SetBreakpoints(["block 7", "fresh<64"])
        await go(pilot, "8")
        await settled(pilot, Paused(t_ns=app.state.t_ns, reason="fresh<64 (fresh is 3)"))
        text = screen_text(app)
        assert "stopped at fresh<64 (fresh is 3)" in text
        assert [line.split()[:2] for line in screen_lines(app) if line.startswith(" fresh<64")] == [["fresh<64", "1"]]
        await go(pilot, "tab", "delete")
        assert session.sent[-1] == SetBreakpoints(["fresh<64"])
        await go(pilot, "N")
        assert isinstance(session.sent[-1], RunUntil)


async def test_dropped_events_and_changes_are_told():
    app = app_with(recorded())
    async with app.run_test(size=(160, 40)) as pilot:
        await settled(pilot, ConfigChanged(t_ns=1, changes={"policy": "lpm"}), Gap(t_ns=2, dropped=7))
        await go(pilot, "8")
        text = screen_text(app)
        assert "policy = lpm" in text
        assert "7 events dropped" in text
        assert "dropped 7" in text
        assert "policy lpm" in screen_lines(app)[1]
