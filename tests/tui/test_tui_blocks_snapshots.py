"""Block map and radix tree as pictures: with a request chosen, frozen, and of a pool of 100,000 blocks."""

from __future__ import annotations

from functools import cache

import pytest
from tui_fakes import app_with, go, recorded, settled
from tui_pictures import shot

from kvtop.engine.events import BlockRow, Event, Keyframe, Paused, RunStarted, SequenceRow
from kvtop.tui import block_view
from kvtop.tui.panels.block_history import BlockHistoryPanel
from kvtop.tui.widgets.block_map import BlockMap


@pytest.fixture(autouse=True)
def _the_same_every_time(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(block_view, "RESORT_S", 0.0)


NUM_BLOCKS, SEQUENCES = 100_000, 3_000


@cache
def large() -> tuple[Event, ...]:
    """3,000 requests of 4 tenants' prompts in a pool of 100,000 blocks; a fifth of it is idle, a tenth fresh.

    Blocks of a prompt follow each other under one of 40 system prompts of 8 blocks, half of them in use.
    """
    blocks, sequences, block = [], [], 0
    systems: list[list[int]] = []
    for system in range(40):
        chain = list(range(block, block + 8))
        block += 8
        systems.append(chain)
        readers = SEQUENCES // 20 if system < 20 else 0
        for depth, b in enumerate(chain):
            state = "used" if readers else "idle"
            parent = 0 if not depth else 1_000_000 + b - 1
            blocks.append(BlockRow(b, state, readers, 16, 1_000_000 + b, parent, 1, 900, readers + 5, 0))
    for number in range(SEQUENCES):
        system = systems[number % 20]
        own = list(range(block, block + 22))
        block += 22
        for depth, b in enumerate(own[:-1]):
            parent = 1_000_000 + (own[depth - 1] if depth else system[-1])
            blocks.append(BlockRow(b, "used", 1, 16, 1_000_000 + b, parent, 900, 900, 0, 0))
        blocks.append(BlockRow(own[-1], "used", 1, 5, None, None, 0, 0, 0, 0))
        name = f"req-{number}"
        sequences.append(
            SequenceRow(name, name, "running", 440, 470, 469, 500, 128, 0, [*system, *own], "", "", 0, 0, None, None)
        )
    while block < NUM_BLOCKS * 9 // 10:
        system = systems[20 + block % 20]
        for depth in range(20):
            parent = 1_000_000 + (block - 1 if depth else system[-1])
            blocks.append(
                BlockRow(block, "idle", 0, 16, 1_000_000 + block, parent, 500, 500 + depth, depth % 3 // 2, 0)
            )
            block += 1
    totals = {"query_tokens": 1_320_000, "hit_tokens": 384_000}
    key = Keyframe(
        step=1_000, t_ns=60 * 10**9, num_blocks=NUM_BLOCKS, block_size=16, blocks=blocks, sequences=sequences,
        totals=totals,
    )  # fmt: skip
    manifest = {"model": "Qwen2.5-7B", "policy": "fcfs", "executor": "torch", "clock": "real", "device": "cuda"}
    return RunStarted(run_id="large", manifest=manifest), key, Paused(t_ns=60 * 10**9)


@pytest.mark.parametrize("key", ["2", "3"], ids={"2": "blocks", "3": "tree"}.get)
async def test_with_a_request_chosen(check_picture, key):
    async def before(pilot):
        await settled(pilot)
        pilot.app.choose("request", "conv-26")
        await go(pilot, key, "down")

    name = {"2": "blocks", "3": "tree"}[key]
    check_picture(await shot(app_with(recorded()), (120, 40), before), f"more/{name}-with-a-request-chosen")


@pytest.mark.parametrize(
    ("name", "keys"), [("owner", ("2", "o", "g")), ("one-a-cell", ("2", "d", "o", "o")), ("tree", ("3",))]
)
async def test_large(check_picture, name, keys):
    async def before(pilot):
        await settled(pilot)
        await go(pilot, *keys)
        await settled(pilot)  # a page is as long as the map that is shown by then
        await go(pilot, "pagedown")

    check_picture(await shot(app_with(large()), (200, 50), before), f"more/large-{name}")


async def test_frozen_with_a_block_followed(check_picture):
    async def before(pilot):
        await settled(pilot, Paused(t_ns=15_438_000_000))
        await go(pilot, "2", "g", "g", "g")
        pilot.app.screen.query_one(BlockMap).move_to(33)
        await settled(pilot)
        while not pilot.app.screen.query_one(BlockHistoryPanel).history.is_whole:
            await pilot.pause(0.05)
        pilot.app.screen.query_one(BlockHistoryPanel).follows = True
        await go(pilot, "comma", "comma", "comma")

    check_picture(await shot(app_with(recorded()), (120, 40), before), "more/frozen-with-a-block-followed")


async def test_ascii(check_picture):
    async def before(pilot):
        await settled(pilot)
        await go(pilot, "2", "right")

    check_picture(await shot(app_with(recorded(), ascii=True), (80, 24), before), "more/blocks-ascii")


async def test_no_colour(check_picture, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")

    async def before(pilot):
        await settled(pilot)
        await go(pilot, "2", "g", "right")

    check_picture(await shot(app_with(recorded()), (80, 24), before), "more/blocks-no-colour")
