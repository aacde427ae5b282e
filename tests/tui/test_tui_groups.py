"""Requests put together with ``g``: every row once, counted as they are, closed and opened, and never in the way."""

from __future__ import annotations

from collections import Counter

import pytest
import uneven_run
from tui_fakes import app_with, go, screen_lines, settled

from kvtop.engine.events import Event, Notice
from kvtop.state.request_rows import LiveRow, ended_rows, live_rows
from kvtop.tui.export import table_csv
from kvtop.tui.panels.requests import RequestsPanel
from kvtop.tui.request_groups import GROUP, GROUPS, grouped


def part() -> list[Event]:
    """The run until some wait, some run and some have ended."""
    events = uneven_run.events()
    return list(events[: len(events) // 2])


@pytest.mark.parametrize("by", list(GROUPS))
def test_every_row_is_in_one_group_and_the_title_counts_them(by):
    state = uneven_run.folded(part())
    rows = [*live_rows(state), *ended_rows(state)]
    groups = grouped(rows, by)
    assert sorted(row.id for group in groups for row in group.rows) == sorted(row.id for row in rows)
    assert [group.value for group in groups] == sorted({group.value for group in groups}, key=lambda v: (not v, v))
    for group in groups:
        text = "".join(part for part, _ in group.title(True))
        states = Counter("ended" if row.id.startswith("\0") else row.is_running for row in group.rows)
        for key, word in ((True, "running"), (False, "waiting"), ("ended", "ended")):
            assert (f"{states[key]} {word}" in text) == bool(states[key])
        held = sum(len(row.seq.table) for row in group.rows if isinstance(row, LiveRow))
        assert (f"holds {held} block" in text) == bool(held)
        order = [row.id for row in rows if row in group.rows]
        assert [row.id for row in group.rows] == order


def test_groups_by_tenant_are_the_tenants_of_the_run():
    state = uneven_run.folded(part())
    tenants = {seq.tenant for seq in state.sequences.values()} | {row.tenant for row in ended_rows(state)}
    assert len(tenants) > 1
    groups = grouped([*live_rows(state), *ended_rows(state)], "tenant")
    assert {group.value for group in groups} == tenants


async def test_g_goes_through_the_groups_and_enter_closes_one():
    app = app_with(part())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "4", "g")
        panel = app.screen.query_one(RequestsPanel)
        heads = [row_id for row_id in panel.table.ids if row_id.startswith(GROUP)]
        assert len(heads) > 1
        num_rows = len(panel.table.ids)
        shown = "\n".join(screen_lines(app))
        assert "group tenant" in shown
        assert "▼ tenant" in shown
        told = app.selected.get("request")
        await go(pilot, "home")
        assert panel.table.selected == heads[0]
        assert panel.selected_request() is None
        assert app.selected.get("request") == told  # a group is no request
        await go(pilot, "w")  # and has no life to tell
        assert app.screen.query(RequestsPanel)
        await go(pilot, "enter")
        inside = len(panel._groups[heads[0]].rows)
        assert len(panel.table.ids) == num_rows - inside
        assert panel.table.ids[:2] == heads[:2]
        csv = table_csv(app.screen).splitlines()
        assert len(csv) == 1 + num_rows - inside - len(heads)
        hidden = panel._groups[heads[0]].rows[0].name
        app.select("request", hidden)
        await settled(pilot)
        await settled(pilot)
        assert panel.selected_request() == (hidden, hidden not in app.state.sequences)
        assert len(panel.table.ids) == num_rows  # a lead opens the group
        for name in ("reason", "prefix", ""):
            await go(pilot, "g")
            assert panel.group == name
        assert not any(row_id.startswith(GROUP) for row_id in panel.table.ids)


async def test_groups_are_drawn_with_ascii_where_nothing_else_is():
    app = app_with(part(), ascii=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await go(pilot, "4", "g", "home", "enter")
        text = "\n".join(screen_lines(app))
        assert text.isascii()
        assert "> tenant acme" in text
        assert "v tenant beta" in text


async def test_an_order_and_a_filter_hold_inside_the_groups():
    app = app_with(part())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "4", "g")
        panel = app.screen.query_one(RequestsPanel)
        panel.set_filter("prompt>60")
        panel.sort = "prompt"
        panel._changed()
        await settled(pilot, Notice(t_ns=0, text="x"))
        assert panel._groups
        for group in panel._groups.values():
            prompts = [row.prompt for row in group.rows]
            assert prompts == sorted(prompts, reverse=True)
            assert min(prompts) > 60
