"""The memory calculator: hand-worked bytes, what fits against a plain count, and the engine's own numbers."""

from __future__ import annotations

import pytest
from tui_fakes import app_with, go, screen_text, settled

from kvtop.engine.errors import KvtopError
from kvtop.engine.events import RunStarted
from kvtop.memory_plan import BATCHES, FIELDS, LENGTHS, Plan, answer, check, fits, plan_of, turned, typed
from kvtop.tui.screens.ask import AskScreen

SMOL = {
    "model": "SmolLM2-135M-Instruct", "dtype": "float32", "kv_dtype": "auto", "block_size_tokens": 16,
    "num_blocks": 1000, "kv_bytes_per_block": 2 * 30 * 3 * 64 * 4 * 16,
}  # fmt: skip


def test_bytes_and_blocks_of_a_known_model_by_hand():
    found = answer(Plan(model="llama-3.1-8b", gpu="h100-80gb", seq_len=4096))
    assert found.shape.bytes_per_token == 2 * 32 * 8 * 128 * 2
    budget = 81_559 * 2**20 * 9 // 10 - 2 * 8_030_261_248
    assert found.room.num_blocks == budget // (131_072 * 16)
    assert found.room.max_requests_paged == found.room.num_blocks // 256


@pytest.mark.parametrize("hit", [0.0, 0.3, 0.9])
def test_what_fits_is_what_can_be_laid_out_block_by_block(hit):
    plan = Plan(hit=hit, gpu="l4-24gb")
    found = answer(plan)
    for length in LENGTHS:
        for batch in BATCHES:
            alone = sum(len(range(0, length, plan.block_size)) for _ in range(batch))
            common = int(length * hit) // plan.block_size
            together = common + batch * (len(range(0, length, plan.block_size)) - common)
            room = found.room.num_blocks
            expected = "yes" if alone <= room else "shared" if together <= room else "no"
            assert fits(plan, found, length, batch) == expected


def test_turning_goes_round_and_typing_takes_what_means_something():
    plan = Plan()
    for field, choices in FIELDS.items():
        turns = plan
        for _ in choices:
            turns = turned(turns, field, 1)
        assert getattr(turned(turned(plan, field, 1), field, -1), field) == getattr(plan, field)
        assert getattr(turns, field) == getattr(plan, field)
    assert typed(plan, "seq_len", "12_345").seq_len == 12_345
    for field, text in (("seq_len", "x"), ("seq_len", "0"), ("gpu", "h1000"), ("utilisation", "1.5"), ("tp", "3")):
        with pytest.raises(KvtopError):
            typed(plan, field, text)


def test_the_engines_blocks_are_checked_by_byte():
    assert check(SMOL).agrees is True
    assert check({**SMOL, "kv_bytes_per_block": 5}).agrees is False
    assert check({**SMOL, "kv_dtype": "int8", "kv_bytes_per_block": 2 * 30 * 3 * (64 + 4) * 16}).agrees is True
    assert check({**SMOL, "dtype": "bf16", "kv_bytes_per_block": 2 * 30 * 3 * 64 * 2 * 16}).agrees is True
    assert check({**SMOL, "kv_bytes_per_block": None}).agrees is None
    assert "not known" in check({**SMOL, "model": "somebody's own"}).why_not
    assert plan_of(SMOL, Plan()).model == "smollm2-135m"


async def test_the_screen_turns_types_and_loads_from_the_engine():
    app = app_with([RunStarted(run_id="r", manifest=SMOL)])
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "7")
        assert "737,280 B a block  agrees" in screen_text(app)
        await go(pilot, "l")
        assert "46,080 B" in screen_text(app)
        await go(pilot, "down", "right")
        assert "bf16" in screen_text(app) or "fp16" in screen_text(app)
        await go(pilot, "down", "down", "enter")
        assert isinstance(app.screen, AskScreen)
        await go(pilot, *"9x", "enter")
        assert "expected a number" in screen_text(app)
        await go(pilot, "backspace", "9", "9", "enter")
        assert "999" in screen_text(app)
        assert "of 999 tokens" in screen_text(app)
