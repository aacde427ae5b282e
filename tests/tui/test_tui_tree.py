"""The radix tree: rows against the tree itself, folding, sorting, filtering, leads, lookups and regrets."""

from __future__ import annotations

import pytest
from tui_fakes import app_with, go, recorded, screen_text, settled

from kvtop.engine.api import Engine, EngineConfig, NullExecutor, SamplingParams
from kvtop.engine.events import Event, RunStarted
from kvtop.engine.recorder import Recorder
from kvtop.engine.types import RequestSpec
from kvtop.state.model import PoolState
from kvtop.state.prefix_tree import ABSENT, TOP
from kvtop.tui import block_view
from kvtop.tui.panels.prefixes import PrefixesPanel
from kvtop.tui.prefix_rows import SORTS, Openness, matching_rows, prefix_rows
from kvtop.tui.screens.tree import TreeScreen
from kvtop.tui.widgets.block_map import BlockMap
from kvtop.tui.widgets.line_table import LineTable

SYSTEM = list(range(32))  # two blocks of 16


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(block_view, "RESORT_S", 0.0)


def served(*prompts: tuple[str, list[int], str], num_blocks: int = 64) -> list[Event]:
    """A run that serves requests (id, prompt, tenant) one after the other."""
    recorder = Recorder()
    engine = Engine(
        EngineConfig(num_blocks=num_blocks, block_size=16, max_num_seqs=4, max_batched_tokens=256),
        NullExecutor(step_time_ns=10**9),
        recorder=recorder,
    )
    events: list[Event] = [RunStarted(run_id="r", manifest={}), engine.keyframe()]
    for name, prompt, tenant in prompts:
        spec = RequestSpec(prompt=prompt, params=SamplingParams(max_tokens=2), request_id=name, tenant=tenant)
        engine.submit_spec(spec)
        engine.run()
        events += recorder.drain()
    return events


def conversation(name: str, last: int, tenant: str = "") -> tuple[str, list[int], str]:
    return name, SYSTEM + [last] * 40, tenant


SHARED = served(
    conversation("a", 100, "acme"), conversation("b", 200, "beta"), conversation("c", 300, "beta"),
    ("d", [7] * 40, ""), ("e", [8] * 50, ""), ("f", [9] * 40, ""), ("g", [10] * 40, ""),
)  # fmt: skip


def panel_of(app) -> PrefixesPanel:
    screen = app.screen
    assert isinstance(screen, TreeScreen)
    return screen.query_one(PrefixesPanel)


def pool_of(app) -> PoolState:
    assert app.state.pool is not None
    return app.state.pool


def rows_of(app) -> list[str]:
    table = panel_of(app).table
    return ["".join(segment.text for segment in table.render_line(y)) for y in range(1, len(table.ids) + 1)]


async def test_a_row_says_what_a_prefix_holds_and_what_it_saved():
    app = app_with(SHARED)
    async with app.run_test(size=(140, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "3")
        first, *rest = rows_of(app)
        # Two blocks, found by b and c: 2 x 32 tokens saved. With a, b and c below: 2 blocks each, never found.
        assert first.split()[2:] == ["32", "64", "0", "2", first.split()[6], "3.1", "%", "128", "64", "a", "of", "acme"]
        assert "never found" in rest[-1]
        assert "4 never found" in rest[-1]
        assert len(rest) == 4  # a, b, c, and d to g together
        text = screen_text(app)
        assert "saved 64 tokens" in text
        num_published = sum(key is not None for key in pool_of(app).key)
        assert f"8 runs, {num_published} blocks" in text


async def test_right_and_left_open_and_close_and_climb():
    app = app_with(SHARED)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "3")
        table = panel_of(app).table
        whole = list(table.ids)
        await go(pilot, "left")
        assert len(table.ids) == len(whole) - 3
        await go(pilot, "right", "down", "left")
        assert table.selected == whole[0]
        await go(pilot, "end", "right")
        assert len(table.ids) == len(whole) + 4


async def test_the_filter_finds_tenants_publishers_and_keys():
    app = app_with(SHARED)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "3", "slash")
        await pilot.press(*"tenant:beta")
        await go(pilot, "enter")
        assert [row.split()[-3:] for row in rows_of(app)] == [["b", "of", "beta"], ["c", "of", "beta"]]
        panel = panel_of(app)
        key = panel.table.ids[0]
        rows = matching_rows(panel.view.tree, "saved", f"{int(key) & 0xFFFFFFFF:08x}")
        assert [row.id for row in rows] == [key]
        assert matching_rows(panel.view.tree, "saved", "nobody") == []


@pytest.mark.parametrize("sort", SORTS)
async def test_siblings_are_sorted_and_every_run_is_somewhere(sort):
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "3")
        tree = panel_of(app).view.tree
        everything = Openness({str(key): True for key in tree.block_of})
        everything.by_hand |= {f"dead:{key}": True for key in ("", *tree.block_of)}
        rows = prefix_rows(tree, sort, everything)
        runs = [row.run for row in rows if not row.dead]
        assert sorted(runs) == list(range(len(tree.runs)))
        weight = SORTS[sort](tree.runs)
        by_parent: dict[int, list[int]] = {}
        dead = {run for row in rows for run in row.dead}
        for run in runs:
            if run not in dead:
                by_parent.setdefault(int(tree.runs.parent[run]), []).append(int(weight[run]))
        assert all(weights == sorted(weights, reverse=True) for weights in by_parent.values())
        for row in rows:
            if not row.dead:
                level, run = 0, row.run
                while (run := int(tree.runs.parent[run])) != TOP:
                    level += 1
                assert row.level - (row.run in dead) == level


async def test_the_sums_are_those_of_the_pool_and_saved_tokens_those_that_were_found():
    """With what was evicted meanwhile: hits of the run so far are hits of blocks that are there, or were evicted."""
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "3")
        pool, tree = pool_of(app), panel_of(app).view.tree
        published = [b for b in range(pool.num_blocks) if pool.key[b] is not None]
        assert tree.num_published == len(published)
        assert int(tree.runs.saved.sum()) == sum(pool.uses[b] for b in published)
        gone = sum(
            decision[8]
            for event in recorded()
            for decision in getattr(event, "decisions", ())
            if decision[0] == "evict"
        )
        found = app.state.totals["hit_tokens"] + app.state.totals["restored_tokens"]
        assert (int(tree.runs.saved.sum()) + gone) * pool.block_size == found
        assert (tree.parent != ABSENT).sum() == len(published)


async def test_enter_leads_to_the_blocks_and_r_to_a_reader():
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "3", "r")
        owners = pool_of(app).owners
        assert app.screen.query_one(LineTable).selected in {name for names in owners for name in names}
        await go(pilot, "escape")
        panel = panel_of(app)
        assert panel.table.selected is not None
        head = panel.view.tree.block_of[int(panel.table.selected)]
        run = int(panel.view.tree.runs.run_of[head])
        blocks = set(panel.view.tree.runs.blocks(run).tolist())
        await go(pilot, "enter")
        block_map = app.screen.query_one(BlockMap)
        assert block_map.cursor == head
        assert block_map._lit == blocks


async def test_a_lookup_says_where_the_match_ended_and_who_else_ended_there():
    app = app_with(SHARED)
    async with app.run_test(size=(160, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "3")
        assert "matches ended with" in screen_text(app)
        await go(pilot, "i")
        await pilot.press(*"nobody")
        await go(pilot, "enter")
        assert "no lookup of a request 'nobody' is kept" in screen_text(app)
        await pilot.press(*["backspace"] * 6, "b")
        await go(pilot, "enter")
        text = screen_text(app)
        assert "b  never seen" in text
        assert "asked 72  found 32 (44.4 %)  computed 40" in text
        assert "1 other ended there, too (40 tokens): c" in text


async def test_what_was_evicted_and_wanted_again_is_a_regret_and_the_lookup_says_so():
    first, other = ("a", [1] * 100, ""), ("b", [2] * 110, "")
    app = app_with(served(first, other, ("a2", [1] * 100, ""), num_blocks=8))
    async with app.run_test(size=(160, 40)) as pilot:
        await settled(pilot)
        # Six whole blocks of a could have been found again. b needs seven of eight: it drives five of them out.
        cache = app.state.cache
        row = cache.lookup_of("a2")
        assert row is not None
        lost = 96 - row.found_tokens
        assert lost > 0
        assert cache.regret_tokens == lost
        app.choose("request", "a2")
        await go(pilot, "3")
        text = screen_text(app)
        assert "a2  evicted  at" in text
        assert f"computed again because of evictions {lost} tokens" in text
        assert f"{lost} tokens" in text.split("Regrets")[1]
        line = next(line for line in text.split("Regrets")[1].splitlines() if "a2" in line)
        assert " b, " in line


@pytest.mark.parametrize("size", [(60, 16), (200, 50)], ids=str)
async def test_it_draws_at_every_size_and_without_a_cache(size):
    for events in (recorded(), [RunStarted(run_id="r", manifest={"prefix_caching": False}), recorded()[1]], []):
        app = app_with(events)
        async with app.run_test(size=size) as pilot:
            await settled(pilot)
            await go(pilot, "3", "s", "down")
            assert "Prefixes" in screen_text(app)
