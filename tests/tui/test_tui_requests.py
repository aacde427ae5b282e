"""The table of requests: what it shows equals the tables of the same run; filter, order, selection, the strip."""

from __future__ import annotations

import contextlib
from itertools import pairwise
from types import SimpleNamespace

import pytest
import uneven_run
from hypothesis import given
from hypothesis import strategies as st
from textual.widgets import Input
from tui_fakes import app_with, go, recorded, screen_lines, screen_text, settled
from tui_pictures import shot

from kvtop.engine.errors import UnknownName, UsageError
from kvtop.engine.events import Keyframe, Notice, RunStarted, SequenceRow, StepEvent
from kvtop.state.filters import KEYS, parse_filter
from kvtop.state.model import RunState
from kvtop.state.reduce import reduce
from kvtop.state.request_rows import EndedRow, LiveRow, Row, ended_rows, live_rows
from kvtop.state.unblock import available_blocks, unblocks
from kvtop.state.windows import QUIET_NS
from kvtop.tui.panels import requests as requests_panel
from kvtop.tui.panels.requests import RequestsPanel
from kvtop.tui.request_columns import COLUMNS, sorted_rows
from kvtop.tui.widgets.line_table import LineTable
from kvtop.why.live import facts_now
from kvtop.why.strip import strip_of

# Numbers -----------------------------------------------------------------------------------------------------


def test_ended_rows_equal_the_table_of_the_run(uneven, tables):
    told = {row["request_id"]: row for row in tables.to_dicts()}
    rows = list(ended_rows(uneven))
    assert {row.name for row in rows} == set(told)
    pairs = {
        "prompt": "prompt_tokens", "output": "output_tokens", "cached": "hit_tokens", "queue_ns": "queue_first_ns",
        "prefill_ns": "prefill_ns", "ttft_ns": "ttft_ns", "itl_ns": "itl_max_ns", "tpot_ns": "tpot_ns",
        "age_ns": "e2e_ns", "preemptions": "num_preemptions", "redo": "recomputed_tokens", "why": "miss_reason",
        "tenant": "tenant",
    }  # fmt: skip
    for row in rows:
        for mine, column in pairs.items():
            assert getattr(row, mine) == told[row.name][column], (row.name, mine)


def test_live_rows_become_what_their_ends_say():
    """In the last step of each request its row said of queue, TTFT, hits and redone tokens what its end says."""
    state, last = RunState(), {}
    for event in uneven_run.events():
        if isinstance(event, StepEvent):
            for row in live_rows(state):
                if row.is_running:
                    last[row.name] = (row.queue_ns, row.cached, row.preemptions, row.redo, row.ttft_ns)
        reduce(state, event)
    assert len(last) > 60
    ends = {event.request_id: EndedRow(state, event) for event in uneven_run.ended()}
    for name, (queue, cached, preemptions, redo, ttft) in last.items():
        end = ends[name]
        assert (queue, cached, preemptions) == (end.queue_ns, end.cached, end.preemptions), name
        assert redo <= end.redo
        assert ttft in (None, end.ttft_ns)
    assert sum(end.redo for end in ends.values()) > 0


def test_blocks_shared_and_tail_are_those_of_the_engine_s_tables():
    state = uneven_run.folded(recorded())
    pool = state.pool
    assert pool is not None
    tables = {seq_id: seq.table for seq_id, seq in state.sequences.items()}
    holders: dict[int, int] = {}
    for table in tables.values():
        for block in table:
            holders[block] = holders.get(block, 0) + 1
    seen = 0
    for row in live_rows(state):
        table = tables[row.name]
        assert row.blocks == (len(table) or None)
        if table:
            seen += 1
            assert row.shared == sum(holders[block] > 1 for block in table)
            assert row.tail == len(table) * pool.block_size - row.seq.num_computed
    assert seen > 10


def test_what_is_there_is_what_the_engine_counted_when_it_refused():
    state, told = RunState(), []
    for event in (*recorded(), *uneven_run.events()):
        if isinstance(event, RunStarted):
            state = RunState()
        reduce(state, event)
        if isinstance(event, StepEvent) and not event.finished:
            refused = [d for d in event.decisions if d[0] == "skipped" and d[2] == "no_blocks"]
            told += [(event.step, d[5], available_blocks(state)) for d in refused]
    assert len(told) >= 5
    for step, counted, mine in told:
        assert counted == mine, step


def test_while_no_step_ends_nothing_is_estimated():
    state = RunState()
    for event in recorded():
        reduce(state, event)
    head = state.sequences[state.head_of_line]
    assert unblocks(state, head) is not None
    state.t_ns += QUIET_NS
    assert state.status == "running"
    assert [row.eta_ns for row in live_rows(state)] == [None] * len(state.sequences)
    assert unblocks(state, head) is None


def test_an_estimate_of_when_it_is_admitted_comes_true_where_everybody_runs_to_the_limit():
    """Steps of one length, answers as long as asked for: then nothing but later arrivals can prove it wrong."""
    state, foretold, met = RunState(), {}, []
    for event in recorded():
        reduce(state, event)
        if not isinstance(event, StepEvent):
            continue
        for decision in event.decisions:
            if decision[0] in ("admitted", "resumed") and decision[1] in foretold:
                at_ns, ns = foretold.pop(decision[1])
                met.append((event.t_start_ns - at_ns, ns))
        head = state.sequences.get(state.head_of_line)
        if head is not None and head.seq_id not in foretold and (ahead := unblocks(state, head)) is not None:
            foretold[head.seq_id] = (state.t_ns, ahead.ns)
    assert len(met) >= 2
    assert all(took == expected for took, expected in met)


def test_the_strip_covers_a_life_without_gap_or_overlap_and_says_what_was_lost(uneven):
    preempted = 0
    for row in ended_rows(uneven):
        log = uneven.logs.find(row.name, ended=True)
        assert log is not None
        strip, event = strip_of(facts_now(uneven, log, row.name)), row.event
        assert (strip.start_ns, strip.end_ns) == (event.t_sched_ns, event.t_done_ns)
        edges = [(p.start_ns, p.end_ns) for p in strip.phases if p.kind != "preempted"]
        assert all(a[1] == b[0] for a, b in pairwise(edges)), row.name
        assert sum(p.ns for p in strip.phases) == row.age_ns
        kinds = [p.kind for p in strip.phases]
        assert kinds.count("preempted") == event.num_preemptions
        away = sum(p.ns for i, p in enumerate(strip.phases) if p.kind == "queue" and "preempted" in kinds[:i])
        assert away == event.preempted_ns
        assert strip.lost_ns >= away
        assert max((gap for _, gap in strip.gaps), default=None) == event.itl_max_ns
        preempted += event.num_preemptions
    assert preempted > 0


# Filter ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("tenant:acme", lambda r: r.tenant == "acme"),
        ("tenant:acme,zed", lambda r: r.tenant in ("acme", "zed")),
        ("!tenant:acme", lambda r: r.tenant != "acme"),
        ("tenant:*e*", lambda r: "e" in r.tenant),
        ("r1", lambda r: "r1" in r.name),
        ("!r1", lambda r: "r1" not in r.name),
        ("queue>100ms", lambda r: r.queue_ns is not None and r.queue_ns > 100_000_000),
        ("queue>0.1", lambda r: r.queue_ns is not None and r.queue_ns > 100_000_000),
        ("ttft<=30ms", lambda r: r.ttft_ns is not None and r.ttft_ns <= 30_000_000),
        ("hit<10", lambda r: r.hit is not None and r.hit < 0.1),
        ("hit>=50%", lambda r: r.hit is not None and r.hit >= 0.5),
        ("prompt>0.3k", lambda r: r.prompt > 300),
        ("preemptions>0 tenant:acme", lambda r: r.preemptions > 0 and r.tenant == "acme"),
        ("output=1", lambda r: r.output == 1),
        ("state:done why:never", lambda r: r.status == "done" and r.why.startswith("never")),
        ("", lambda r: True),
    ],
)  # fmt: skip
def test_a_filter_keeps_what_it_says(uneven, text, holds):
    rows = list(ended_rows(uneven))
    kept = parse_filter(text).keep(rows)
    assert kept == [row for row in rows if holds(row)]
    assert kept or "preemptions" in text


def test_states_of_live_ones():
    state = uneven_run.folded(recorded())
    rows: list[Row] = [*live_rows(state), *ended_rows(state)]
    for text, states in {
        "state:running": ("prefill", "decode"),
        "state:waiting": ("waiting",),
        "state:pre": ("prefill", "preempted"),
        "state:waiting,preempted": ("waiting", "preempted"),
        "!state:done": ("prefill", "decode", "waiting", "preempted"),
    }.items():
        found = {row.id for row in parse_filter(text).keep(rows)}
        assert found == {row.id for row in rows if row.status in states}, text
        assert found
    waiting = parse_filter("wait<100s").keep(rows)
    assert waiting == [row for row in rows if isinstance(row, LiveRow) and not row.is_running]


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("tennant:acme", UnknownName, "did you mean 'tenant'?"),
        ("state:runing", UnknownName, "did you mean 'running'?"),
        ("wait>soon", UsageError, "expected a number behind wait>"),
        ("wait>3h", UsageError, "wait takes no 'h', expected seconds, or a unit (ns, us, ms, s, min)"),
        ("hit<10ms", UsageError, "hit takes no 'ms', expected a percentage"),
        ("tenant>1", UsageError, "tenant is a word, expected tenant:word"),
        ("!wait>1s", UsageError, "! goes with words"),
        ("tenant:", UsageError, "expected a word behind tenant:"),
        (">5", UsageError, "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_named_with_what_would_be_right(text, error, said):
    with pytest.raises(error) as caught:
        parse_filter(f"r1 {text} prompt>1")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=30))
def test_no_text_makes_a_filter_fail_in_another_way(text):
    with contextlib.suppress(UsageError):
        assert parse_filter(text).text == " ".join(text.split())


def test_every_key_reads_every_row(uneven):
    state = uneven_run.folded(recorded())
    for row in (*live_rows(state), *ended_rows(state), *ended_rows(uneven)):
        for key in KEYS.values():
            getattr(row, key.read)
        assert len(COLUMNS) == len({column.key for column in COLUMNS})


# Order -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", [c for c in COLUMNS if c.order is not None], ids=lambda c: c.key)
def test_an_order_is_by_value_with_the_unknown_last(uneven, column):
    rows = [*live_rows(uneven_run.folded(recorded())), *ended_rows(uneven)]
    for reverse in (False, True):
        ordered = sorted_rows(list(rows), column.key, reverse)
        values = [column.order(row) for row in ordered]
        known = [value for value in values if value is not None]
        assert None not in values[: len(known)]
        assert known == sorted(known, reverse=column.rising == reverse)
        assert len(ordered) == len(rows)


# On the screen -----------------------------------------------------------------------------------------------


def many(count: int, t_ns: int = 2_000_000_000) -> Keyframe:
    rows = [
        SequenceRow(
            f"q{i:05}", f"q{i:05}", "waiting", 40 + i % 97, 41 + i % 97, 0, 100, 0, 0, [], "", "", i, i, None, None
        )
        for i in range(count)
    ]
    return Keyframe(step=7, t_ns=t_ns, num_blocks=64, block_size=16, blocks=[], sequences=rows, totals={})


async def test_of_thousands_only_what_is_seen_is_made(monkeypatch):
    made: list[str] = []
    original = requests_panel.cells_of
    monkeypatch.setattr(requests_panel, "cells_of", lambda row, *how: (made.append(row.id), original(row, *how))[1])
    app = app_with([RunStarted(run_id="r", manifest={}), many(5000)])
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "4", "s", "s", "end")
        table = app.screen.query_one(LineTable)
        assert len(table.ids) == 5000
        made.clear()
        await settled(pilot, Notice(t_ns=0, text="x"))
        assert 0 < len(set(made)) <= table.num_visible


async def test_the_selection_stays_with_its_request_while_rows_change_places(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(requests_panel, "time", SimpleNamespace(monotonic=lambda: now[0]))
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "4", "s", "s")
        panel = app.screen.query_one(RequestsPanel)
        assert panel.sort
        before = list(panel.table.ids)
        panel.table.select(before[5])
        held = [seq for seq in app.state.sequences.values() if seq.seq_id == before[-1].lstrip("\0")]
        assert not held  # the last row has ended
        victim = app.state.sequences[before[0]]
        victim.num_prompt, victim.t_sched_ns = -1, app.state.t_ns
        await settled(pilot, Notice(t_ns=0, text="x"))
        assert panel.table.ids == before  # too soon after the last time
        now[0] += requests_panel.RESORT_S
        await settled(pilot, Notice(t_ns=0, text="y"))
        assert panel.table.ids != before
        assert panel.table.selected == before[5]
        assert app.selected["request"] == requests_panel.request_of(before[5])[0]


async def test_a_request_that_ends_hands_the_selection_to_its_successor():
    app = app_with([RunStarted(run_id="r", manifest={}), many(9)])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await go(pilot, "4", "down", "down")
        assert app.selected["request"] == "q00002"
        rows = [row for row in many(9).sequences if row.seq_id != "q00002"]
        await settled(
            pilot, Keyframe(step=8, t_ns=3, num_blocks=64, block_size=16, blocks=[], sequences=rows, totals={})
        )
        assert app.screen.query_one(LineTable).selected == "q00003"


async def test_typing_a_filter_shows_fewer_and_a_wrong_one_says_why():
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "4", "slash")
        box = app.screen.query_one(Input)
        assert box.has_focus
        box.value = "state:waiting,preempted"
        await settled(pilot)
        panel = app.screen.query_one(RequestsPanel)
        waiting = [i for i, seq in app.state.sequences.items() if seq.state != "running"]
        assert panel.table.ids == waiting
        assert f"{len(waiting)} of" in screen_text(app)
        box.value = "stat:waiting"
        await settled(pilot)
        assert "did you mean 'state'?" in screen_text(app)
        assert panel.table.ids == waiting  # the filter stays as it was
        await go(pilot, "escape")
        assert not box.display
        assert panel.table.has_focus
        await go(pilot, "escape")
        assert len(panel.table.ids) > len(waiting)


async def test_a_click_on_a_title_orders_by_it_and_again_the_other_way_round():
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "4")
        panel = app.screen.query_one(RequestsPanel)
        header = next(i for i, line in enumerate(screen_lines(app)) if "prompt" in line and "state" in line)
        place = screen_lines(app)[header].index("prompt")
        await pilot.click(offset=(place, header))
        await settled(pilot)
        assert panel.sort == "prompt"
        prompts = [
            LiveRow(app.state, app.state.sequences[i]).prompt for i in panel.table.ids if i in app.state.sequences
        ]
        assert prompts == sorted(prompts, reverse=True)
        assert "prompt▼" in screen_lines(app)[header]
        await pilot.click(offset=(place, header))
        await settled(pilot)
        assert "prompt▲" in screen_lines(app)[header]


async def test_enter_draws_the_life_and_takes_it_away_again():
    app = app_with(recorded())
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await go(pilot, "4")
        waiting = next(i for i, seq in app.state.sequences.items() if seq.state == "preempted")
        app.screen.query_one(LineTable).select(waiting)
        assert "Life of a request" not in screen_text(app)
        await go(pilot, "enter")
        text = screen_text(app)
        assert "Life of a request" in text
        assert "preempted" in text
        assert "prefill" in text
        await go(pilot, "enter")
        assert "Life of a request" not in screen_text(app)


async def test_a_lead_to_a_request_that_the_filter_hides_takes_the_filter_away():
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "4")
        panel = app.screen.query_one(RequestsPanel)
        panel.set_filter("state:done")
        await settled(pilot)
        running = next(i for i, seq in app.state.sequences.items() if seq.state == "running")
        await go(pilot, "1")
        app.select("request", running)
        await settled(pilot)
        assert panel.table.selected == running


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_screen_of_a_preempted_one(check_picture, size, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)

    async def before(pilot):
        await settled(pilot)
        waiting = [i for i, seq in pilot.app.state.sequences.items() if seq.state == "preempted"]
        await go(pilot, "4")
        pilot.app.screen.query_one(LineTable).select(waiting[0])
        if size[1] < 32:
            await go(pilot, "enter")
        await settled(pilot)

    check_picture(await shot(app_with(recorded()), size, before), f"more/requests-preempted-{size[0]}x{size[1]}")


async def test_an_order_held_back_is_made_up_for_when_the_run_says_nothing_more(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(requests_panel, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(requests_panel, "RESORT_S", 0.05)
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "4", "s", "s")
        panel = app.screen.query_one(RequestsPanel)
        before = list(panel.table.ids)
        victim = app.state.sequences[before[0]]
        victim.num_prompt, victim.t_sched_ns = -1, app.state.t_ns
        panel.redraw()
        assert panel.table.ids == before
        assert panel._is_due
        now[0] += 1.0
        while panel._is_due:
            await pilot.pause(0.01)
        assert panel.table.ids != before


@pytest.mark.parametrize("width", [60, 64, 68, 72, 76, 80])
async def test_a_column_is_there_whole_or_not_at_all(width):
    app = app_with(recorded())
    async with app.run_test(size=(width, 24)) as pilot:
        await settled(pilot)
        await go(pilot, "4")
        lines = screen_lines(app)
        header = next(line for line in lines if " request " in line)
        titles = {column.column.title for column in COLUMNS} | {"w…", "…"}  # the last column takes what is left
        assert set(header.split()) <= titles, header
