"""Pasting a prompt on the Radix tree screen: what it says, what it asks of the session, and that the prompt is gone."""

from __future__ import annotations

import pytest
from textual import events
from tui_fakes import FakeSession, app_with, go, screen_text, settled

from kvtop.engine.api import Engine, EngineConfig, NullExecutor, SamplingParams
from kvtop.engine.errors import UsageError
from kvtop.engine.events import Event, FindPrompt, PromptKeys, RunEnded, RunStarted
from kvtop.engine.keys import prompt_keys
from kvtop.engine.recorder import Recorder
from kvtop.engine.types import RequestSpec
from kvtop.tui import block_view
from kvtop.tui.panels.prompt import token_ids
from kvtop.tui.screens.ask import PasteScreen

SIZE = (160, 40)
CANARY = "the launch code\nis zebra 4711"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(block_view, "RESORT_S", 0.0)


def served(*prompts: list[int], num_blocks: int = 32) -> list[Event]:
    recorder = Recorder()
    config = EngineConfig(num_blocks=num_blocks, block_size=4, max_num_seqs=1, max_batched_tokens=64)
    engine = Engine(config, NullExecutor(), recorder=recorder)
    found: list[Event] = [RunStarted(run_id="r", manifest={}), engine.keyframe()]
    for number, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=1)
        engine.submit_spec(RequestSpec(prompt=prompt, params=params, request_id=f"r{number}"))
        engine.run()
    return [*found, *recorder.drain()]


def sent_by(app) -> list:
    assert isinstance(app.session, FakeSession)
    return app.session.sent


async def paste(pilot, text: str) -> None:
    await go(pilot, "3")
    await pilot.press("I")
    assert isinstance(pilot.app.screen, PasteScreen)
    pilot.app.post_message(events.Paste(text))
    await pilot.pause()
    await go(pilot, "enter")


async def test_pasted_token_ids_are_looked_up_at_once():
    app = app_with(served([*range(12)], [*range(8), 50, 51, 52, 53]))
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await paste(pilot, str([*range(8), *range(70, 79)]))
        text = screen_text(app)
        assert "pasted prompt 17 tokens: 4 whole blocks of 4 + 1" in text
        assert "cached now 2 of 4 blocks  a request would find 8 tokens (47.1 %)" in text
        assert "diverges at block 2, token 8: 2 other blocks go on there" in text
        assert "blocks 2 to 3 not cached, nor among the evictions kept" in text
        assert sent_by(app) == []


async def test_evicted_blocks_say_when():
    app = app_with(served([*range(12)], [*range(300, 319)], num_blocks=5))
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await paste(pilot, str([*range(12)]))
        assert "blocks 0 to 2 evicted at step 1, 0 ago, for r1" in screen_text(app)


async def test_text_goes_to_the_tokenizer_of_the_session_line_breaks_and_all_and_stays_nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = app_with(served([*range(12)]))
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await paste(pilot, CANARY)
        assert sent_by(app) == [FindPrompt(text=CANARY)]
        assert "asking the tokenizer" in screen_text(app)
        keys = [[key] for key in prompt_keys([*range(9)], 4)]
        steps = app.timeline.live.step
        await settled(pilot, PromptKeys(t_ns=0, num_tokens=9, keys=keys))
        assert "cached now 2 of 2 blocks" in screen_text(app)
        assert app.timeline.live.step == steps
        for text in (screen_text(app), repr(app.feed.prompt), repr(app.timeline.live), app.export_screenshot()):
            assert "zebra" not in text
        assert list(tmp_path.iterdir()) == []


async def test_a_problem_is_told_and_choosing_a_request_shows_that_again():
    app = app_with(served([*range(12)]))
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await paste(pilot, "text")
        await settled(pilot, PromptKeys(t_ns=0, problem="not reported: give --kv-events"))
        assert "pasted prompt: not reported: give --kv-events" in screen_text(app)
        await pilot.press("i", "r", "0")
        await go(pilot, "enter")
        assert "r0  never seen" in screen_text(app)


async def test_what_can_be_no_prompt_is_refused_and_escape_leaves():
    app = app_with(served([*range(12)]))
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await paste(pilot, "[1, -2]")
        assert "token ids: found -2, expected integers from 0" in screen_text(app)
        await go(pilot, "escape")
        await paste(pilot, "")
        assert "the prompt is empty" in screen_text(app)
        await go(pilot, "escape")
        assert "matches ended with" in screen_text(app)
        assert app.feed.prompt is None


async def test_after_the_run_there_is_no_tokenizer_but_ids_go_on():
    app = app_with([*served([*range(12)]), RunEnded(t_ns=9, status="complete")])
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await paste(pilot, "text")
        assert "the tokenizer has ended with the run:" in screen_text(app)
        await paste(pilot, str([*range(12)]))
        assert "every whole block is cached; the last token is always" in screen_text(app)
        assert sent_by(app) == []


async def test_hostile_text_is_shown_nowhere_and_breaks_nothing():
    app = app_with(served([*range(12)]))
    async with app.run_test(size=(60, 16)) as pilot:
        await settled(pilot)
        await paste(pilot, "[red]\x1b[31m\ud800 \u202e" + "x" * 20_000)
        assert len(sent_by(app)) == 1
        sent_by(app)[0].text.encode()  # no lone surrogate is left
        await settled(pilot, PromptKeys(t_ns=0, problem="x" * 500))


def test_a_list_of_numbers_is_token_ids_and_everything_else_is_text():
    assert token_ids(" [1, 2,\n3] ") == [1, 2, 3]
    for text in ("1 2 3", "[1, 2", "[]", '["a"]', "[system] hello", "{}", "[[1]]"):
        assert token_ids(text) is None
    for text in ("[1.5]", "[-1]", f"[{1 << 63}]"):
        with pytest.raises(UsageError, match="expected integers from 0"):
            token_ids(text)
