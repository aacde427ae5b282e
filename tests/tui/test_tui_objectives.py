"""The share of requests that met their objectives, on Overview: judged as `kvtop compare --slo` judges the tables."""

from __future__ import annotations

import re

import pytest
import uneven_run
from tui_fakes import app_with, screen_lines, settled

from kvtop.engine.events import Event, RunStarted
from kvtop.state.latency import LATENCY_WINDOW_NS
from kvtop.state.numbers import read_all

SLO = "ttft<50ms,tpot<9ms"


def events(*slo: str) -> list[Event]:
    first, *rest = uneven_run.events()
    assert isinstance(first, RunStarted)
    return [RunStarted(run_id=first.run_id, manifest={**first.manifest, "slo": list(slo)}), *rest]


def by_hand(tables) -> tuple[int, int]:
    """(met, judged) of the requests that ended in the last minute: the rule in plain words over the run's table."""
    rows = tables.to_dicts()
    end = max(row["t_done_ns"] for row in rows)
    ended = [row for row in rows if row["t_done_ns"] >= end - LATENCY_WINDOW_NS and row["status"] != "cutoff"]
    met = [
        row
        for row in ended
        if row["status"] == "ok" and row["ttft_ns"] < 50e6 and (row["tpot_ns"] is None or row["tpot_ns"] < 9e6)
    ]
    return len(met), len(ended)


def test_the_numbers_are_those_of_the_table(tables):
    met, judged = by_hand(tables)
    assert 0 < met < judged
    numbers = read_all(uneven_run.folded(events(SLO)))
    assert numbers["latency.slo_judged"] == judged
    assert numbers["latency.slo_attainment"] == met / judged
    without = read_all(uneven_run.folded(events()))
    assert (without["latency.slo_attainment"], without["latency.slo_judged"]) == (None, None)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)])
async def test_overview_says_it_at_every_size(tables, size):
    met, judged = by_hand(tables)
    app = app_with(events(SLO))
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        (line,) = [line for line in screen_lines(app) if "SLO" in line]
        share = rf"{100 * met / judged:.1f} % of {judged}"
        assert re.search(rf"SLO   (met )?{share}  ttft<50ms", line)  # "met" goes first where there is no room
        for name in ("TTFT", "ITL", "queue"):  # nothing of more weight has made room for it
            assert any(f"{name:<6}" in line for line in screen_lines(app))


async def test_without_objectives_it_says_how_to_give_some():
    app = app_with(events())
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        assert sum("no objectives set (--slo ttft<2s)" in line for line in screen_lines(app)) == 1
