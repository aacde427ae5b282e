"""What screens say in the states that all are looked at in: words, headings and titles that cannot be misread."""

from __future__ import annotations

import re

import pytest
from tui_looks import SIZES, looks
from tui_states import STATES, State

from kvtop.analysis.slo import Goodput
from kvtop.state.numbers import MISS_WORDS
from kvtop.tui.panels.latency import LatencyPanel, _objectives
from kvtop.tui.panels.queue import _tokens
from kvtop.tui.screens import SCREENS
from kvtop.tui.widgets.header import model_in
from kvtop.tui.widgets.lines import Line

BY_NAME = {state.name: state for state in STATES}
SMALL, MIDDLE, LARGE = SIZES


def rows_of(state: str, size: tuple[int, int], screen: str, panel: str) -> list[str]:
    return looks(BY_NAME[state], size)[screen].panels[panel]


def written(line: Line) -> str:
    return "".join(text for text, _ in line)


@pytest.mark.parametrize(
    ("name", "room", "shown"),
    [
        ("SmolLM2-135M-Instruct", 21, "SmolLM2-135M-Instruct"),
        ("SmolLM2-135M-Instruct", 20, "SmolLM2-135M…"),
        ("SmolLM2-135M-Instruct", 12, "…135M"),
        ("SmolLM2-135M-Instruct", 4, ""),
        ("meta-llama/Llama-3.1-70B-Instruct", 22, "Llama-3.1-70B-Instruct"),
        ("meta-llama/Llama-3.1-70B-Instruct", 13, "Llama-70B…"),
        ("DeepSeek-R1-Distill-Qwen-7B", 20, "DeepSeek-R1-7B…"),
        ("Mixtral-8x7B-v0.1", 13, "Mixtral-8x7B…"),
        ("someones/model", 5, "model"),
        ("someones/model", 4, "mod…"),
    ],
)
def test_a_model_loses_words_before_its_size_and_never_a_part_of_it(name: str, room: int, shown: str) -> None:
    assert model_in(name, room) == shown


@pytest.mark.parametrize("size", SIZES)
def test_the_header_shows_the_whole_size_of_the_model_on_every_screen(size: tuple[int, int]) -> None:
    for entry in SCREENS:
        if entry.name != "Compare":  # it has a header of two runs, of the uneven one without a model
            assert "135M" in looks(BY_NAME["live"], size)[entry.name].picture.text[0], entry.name


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_every_panel_asks_its_question(state: State, size: tuple[int, int]) -> None:
    for screen in ("Overview", "Block map", "Radix tree", "Requests"):
        for name, rows in looks(state, size)[screen].panels.items():
            assert re.match(r"─ [\w ]+ — [^─]+\? ─", rows[0]), (screen, name, rows[0])


@pytest.mark.parametrize("size", SIZES)
def test_shared_blocks_are_of_the_used_ones_and_not_added_to_them(size: tuple[int, int]) -> None:
    assert re.search(r"used 505 .*of them \+ shared 43 ", rows_of("live", size, "Overview", "PoolPanel")[2])


def test_what_preemptions_cost_is_called_recomputed_however_narrow_the_panel() -> None:
    assert [_tokens(1_234, room)[0] for room in (12, 11, 8, 4)] == ["1,234 tokens", "1.2k tok", "1.2k tok", "1.2k"]
    assert "recomputed 431 tokens" in rows_of("thousands", SMALL, "Overview", "QueuePanel")[-1]
    heading = rows_of("live", LARGE, "Requests", "RequestsPanel")[1]
    assert "  recomputed  why" in heading
    assert "redo" not in heading


def test_what_the_head_was_refused_for_is_told_as_past_and_what_there_is_as_now() -> None:
    assert "conv-49 needs 9 blocks, there were 8" in rows_of("live", SMALL, "Overview", "QueuePanel")
    assert any(
        "needs 9 blocks, 7 there now; in ~" in row for row in rows_of("live", SMALL, "Requests", "RequestsPanel")
    )
    assert any("when conv-30 ends" in row for row in rows_of("live", LARGE, "Requests", "RequestsPanel"))


@pytest.mark.parametrize("size", [MIDDLE, LARGE])
def test_the_letters_of_the_steps_are_explained_where_there_is_room(size: tuple[int, int]) -> None:
    title = rows_of("live", size, "Overview", "StepLanePanel")[0]
    assert "d decodes  p prompts  b both  E evictions  X preemption" in title


def test_objectives_are_shown_whole_or_counted() -> None:
    assert "SLO   55.6 % of 500  ttft<2s,tpot<100ms" in rows_of("thousands", SMALL, "Overview", LatencyPanel.__name__)
    met = Goodput(["ttft<2s,tpot<100ms"], met=1, judged=2, requests_s=None, cutoff=0, no_objective=0)
    assert written(_objectives(met, 41)) == "SLO   met 50.0 % of 2  ttft<2s,tpot<100ms"
    assert written(_objectives(met, 33)) == "SLO   50.0 % of 2  ttft<2s +1"


def test_how_a_request_ended_stays_under_its_heading_where_it_had_no_gap() -> None:
    rows = rows_of("paused", SMALL, "Requests", "RequestsPanel")
    at = rows[1].index("why")
    ended = [row for row in rows[2:] if " done " in row]
    assert {row[at:] for row in ended} == {"length"}
    assert any(row[:at].rstrip().endswith(" -") for row in ended)


def test_the_life_of_a_request_goes_on_while_no_step_ends() -> None:
    rows = rows_of("stalled", MIDDLE, "Requests", "LifePanel")
    assert rows[1].endswith("18.3 s")
    assert "18.3 s" in rows[0]
    assert rows_of("live", MIDDLE, "Requests", "LifePanel")[1].endswith("6.28 s")


def test_what_a_stretch_was_stands_in_its_bar_before_it_is_cut() -> None:
    (decode,) = (row for row in rows_of("paused", MIDDLE, "Requests", "LifePanel") if row.startswith(" decode"))
    assert re.search(r"▪ 639 ms  66 tokens ▪", decode)


def test_the_scale_of_a_chart_is_called_its_top() -> None:
    rows = [row[:14].strip() for row in rows_of("paused", MIDDLE, "Requests", "LifePanel")]
    assert rows[rows.index("blocks") + 1] == "top 32"
    assert rows[rows.index("ITL") + 1].startswith("top 17.6 ms")


def test_why_a_match_ended_has_the_same_words_on_every_screen() -> None:
    rows = rows_of("thousands", SMALL, "Radix tree", "LookupPanel")
    heading = next(i for i, row in enumerate(rows) if row.startswith("matches ended with"))
    told = [row[:18].strip() for row in rows[heading + 1 : -1]]
    assert told == ["never seen", "last block", "being computed"]
    assert set(told) <= set(MISS_WORDS.values())
    missed = rows_of("thousands", MIDDLE, "Overview", "CachePanel")
    assert all(any(words in row for row in missed) for words in told)


def test_when_a_block_goes_is_told_even_of_a_cell_of_many_at_80_columns() -> None:
    rows = rows_of("thousands", SMALL, "Block map", "BlockPanel")
    assert rows[1] == "blocks 0-7  8 used (4 shared)  0 idle  0 fresh  filled 98.4 %"
    assert "evicted not while it is used" in rows
