"""Latency: every number against a recount from the events or the tables of the same run."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import uneven_run
from hypothesis import given
from hypothesis import strategies as st
from tui_fakes import app_with, go, screen_text, settled
from tui_pictures import shot

from kvtop.analysis.slo import goodput, parse_slo
from kvtop.engine.events import Event, RequestEvent, RunStarted, StepEvent
from kvtop.state.latency import METRICS, histogram, objectives_met, points_of, spread_of
from kvtop.state.numbers import NUMBERS
from kvtop.state.request_rows import ended_rows
from kvtop.state.samples import LATENCY_WINDOW_NS
from kvtop.state.slow import analyse, parts_of, value_of
from kvtop.state.step_clock import CAPACITY, StepClock
from kvtop.tui.screens.latency import LatencyScreen
from kvtop.tui.widgets.line_table import LineTable


def known(value: float | None) -> float:
    assert value is not None
    return value


def steps(made: tuple[Event, ...]) -> list[StepEvent]:
    return [event for event in made if isinstance(event, StepEvent)]


# Distributions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "column"), [("ttft", "ttft_ns"), ("queue", "queue_first_ns"), ("tpot", "tpot_ns"), ("e2e", "e2e_ns")]
)
def test_percentiles_are_numpy_s_over_the_table_of_the_run(uneven, tables, key, column):
    assert uneven.t_ns < LATENCY_WINDOW_NS  # all of the run is in the window
    values = tables[column].drop_nulls().to_numpy()
    spread = spread_of(points_of(uneven, key))
    assert spread.n == len(values)
    for q in (50, 90, 95, 99):
        assert getattr(spread, f"p{q}") == pytest.approx(np.percentile(values, q))
    assert spread.peak == values.max()
    for part in ("p50", "p95", "p99"):
        assert NUMBERS[f"latency.{key}_{part}_ns"].read(uneven) == pytest.approx(getattr(spread, part))
    assert NUMBERS[f"latency.{key}_n"].read(uneven) == len(values)


def plain_gaps(made: tuple[Event, ...]) -> list[tuple[int, str, int, bool]]:
    """(step, sequence, gap, whether it was preempted in between) of every gap, token by token."""
    last: dict[str, int] = {}
    hurt: set[str] = set()
    out = []
    for event in steps(made):
        hurt |= {d[1] for d in event.decisions if d[0] == "preempted"}
        for seq_id, count in event.emitted:
            assert count == 1
            if seq_id in last:
                out.append((event.step, seq_id, event.t_done_ns - last[seq_id], seq_id in hurt))
            last[seq_id] = event.t_done_ns
            hurt.discard(seq_id)
    return out


def test_gaps_and_their_causes_equal_a_count_token_by_token(uneven):
    gaps, by_step = plain_gaps(uneven_run.events()), {e.step: e for e in steps(uneven_run.events())}
    found = analyse(uneven, "itl")
    assert found.spread.n == len(gaps)
    assert found.spread.p99 == pytest.approx(np.percentile([gap for _, _, gap, _ in gaps], 99))
    limit = np.percentile([gap for _, _, gap, _ in gaps], 95)
    causes = {"preempted": 0, "beside": 0, "decode": 0}
    for step, _, gap, hurt in gaps:
        if gap >= limit:
            causes["preempted" if hurt else "beside" if by_step[step].prefill_tokens else "decode"] += 1
    anatomy = found.anatomy
    assert anatomy is not None
    assert anatomy.counts == {cause: count for cause, count in causes.items() if count}
    assert causes["preempted"]
    assert causes["beside"]
    slow = [gap for _, _, gap, _ in gaps if gap >= limit]
    assert anatomy.mean_ns == pytest.approx(np.mean(slow))
    assert sum(anatomy.parts.values()) == pytest.approx(anatomy.mean_ns)


def test_gaps_by_batch_equal_a_count_token_by_token(uneven):
    gaps, by_step = plain_gaps(uneven_run.events()), {e.step: e for e in steps(uneven_run.events())}
    found = {row.label: row.spread for row in analyse(uneven, "itl").by_size}
    for label, low, high in (("1", 1, 1), ("2-3", 2, 3), ("4-7", 4, 7), ("8-15", 8, 15)):
        own = [gap for step, _, gap, _ in gaps if low <= max(1, by_step[step].decode_tokens) <= high]
        assert (found[label].n, found[label].p50) == (len(own), pytest.approx(np.median(own)))
    prefill = [gap for step, _, gap, _ in gaps if by_step[step].prefill_tokens]
    assert found["prefill in the step"].n == len(prefill)
    assert found["no prefill in the step"].n == len(gaps) - len(prefill)
    assert known(found["prefill in the step"].p50) > known(found["no prefill in the step"].p50)


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(1, 5)), min_size=1, max_size=60), st.integers(1, 20))
def test_a_histogram_counts_every_value_once_between_its_edges(values, most):
    bins = histogram([(0, value, count) for value, count in values], most)
    assert 1 <= len(bins) <= most
    every = [value for value, count in values for _ in range(count)]
    for one in bins:
        first = one is bins[0]
        assert one.count == sum((first or one.low_ns < v) and v <= one.high_ns for v in every)
        assert one.below == pytest.approx(sum(v <= one.high_ns for v in every) / len(every))
    assert sum(one.count for one in bins) == len(every)
    assert all(a.high_ns == b.low_ns for a, b in pairwise(bins))


def test_a_histogram_uses_the_room_it_has_where_few_values_are_low():
    slow = [200, 500, 1_000, 2_000, 5_000]
    values = [(0, 15, 1), *((0, edge - 1, 20) for edge in slow)]  # 1-2-5 from 20 to 5,000 would be eight bins
    assert [(one.high_ns, one.count) for one in histogram(values, 6)] == [(100, 1), *((edge, 20) for edge in slow)]
    values[0] = (0, 15, 50)  # a third of all: where they lie is told
    assert [one.high_ns for one in histogram(values, 6)] == [100, 1_000, 10_000]


# Where the time went -----------------------------------------------------------------------------------------


def test_the_parts_of_every_request_add_up_to_what_is_measured(uneven):
    clock, seen = StepClock(uneven), set()
    for row in ended_rows(uneven):
        for key in ("ttft", "queue", "e2e"):
            parts = parts_of(uneven, clock, row, key)
            assert parts is not None
            assert sum(parts.values()) == value_of(row, key), (row.name, key)
            seen |= set(parts)
        tpot = parts_of(uneven, clock, row, "tpot")
        event = row.event
        assert sum((tpot or {}).values()) == known(event.t_last_token_ns) - known(event.t_first_token_ns)
        parts = parts_of(uneven, clock, row, "e2e") or {}
        assert parts.get("preempted", 0) == event.preempted_ns
        assert parts.get("late", 0) == event.t_submit_ns - event.t_sched_ns
    assert {"late", "capacity", "budget", "prefill", "preempted", "beside", "decode"} <= seen


def test_the_queue_is_split_by_what_the_head_was_refused_for_step_by_step(uneven):
    """Walked along the steps: whoever waits when a step was planned waits for its reason until the next is."""
    made = steps(uneven_run.events())
    clock = StepClock(uneven)
    for row in ended_rows(uneven):
        event, plain = row.event, {}
        for one, following in pairwise(made):
            if one.t_start_ns < event.t_submit_ns or one.t_start_ns >= known(event.t_first_sched_ns):
                continue
            reason = one.waiting_reason
            part = "capacity" if reason in CAPACITY else reason if reason in ("seats", "budget") else "unsaid"
            plain[part] = plain.get(part, 0) + following.t_start_ns - one.t_start_ns
        assert parts_of(uneven, clock, row, "queue") == plain, row.name


def test_decoding_beside_prefill_is_the_time_of_those_steps(uneven):
    made, clock = steps(uneven_run.events()), StepClock(uneven)
    for row in ended_rows(uneven):
        event = row.event
        if event.num_preemptions or event.t_first_token_ns == event.t_last_token_ns:
            continue
        first, last = known(event.t_first_token_ns), known(event.t_last_token_ns)
        inside = [s for s in made if first < s.t_done_ns <= last]
        before = {s.step: made[i - 1].t_done_ns for i, s in enumerate(made)}
        beside = sum(s.t_done_ns - before[s.step] for s in inside if s.prefill_tokens)
        assert (parts_of(uneven, clock, row, "tpot") or {}).get("beside", 0) == beside, row.name


def test_what_began_before_the_steps_that_are_kept_is_counted_apart():
    state = uneven_run.folded(uneven_run.events())
    history = state.history
    for column in (getattr(history, name) for name in history.__dataclass_fields__):
        del column[:-100]
    found = analyse(state, "e2e")
    assert found.anatomy is not None
    assert found.anatomy.untold > 0
    assert analyse(state, "itl").untold_gaps > 0


def test_outliers_are_the_slowest_in_order(uneven, tables):
    for key, column in (("ttft", "ttft_ns"), ("e2e", "e2e_ns")):
        found = analyse(uneven, key).outliers
        slowest = tables.sort([column, "request_id"], descending=[True, False])["request_id"].to_list()
        assert [one.name for one in found] == slowest[: len(found)]
    gaps = sorted((gap for _, _, gap, _ in plain_gaps(uneven_run.events())), reverse=True)
    assert analyse(uneven, "itl").outliers[0].value_ns == gaps[0]


def test_objectives_are_judged_as_for_a_finished_run(tables):
    texts = ["ttft<60ms,tpot<9ms"]
    made = uneven_run.events()
    first = made[0]
    assert isinstance(first, RunStarted)
    state = uneven_run.folded([RunStarted(run_id="r", manifest={**first.manifest, "slo": texts}), *made[1:]])
    met = objectives_met(state)
    assert met is not None
    plain = goodput(tables.to_dicts(), parse_slo(texts), None)
    assert (met.met, met.judged, met.missed) == (plain.met, plain.judged, plain.missed)
    assert 0 < met.met < met.judged
    assert objectives_met(uneven_run.folded(made)) is None


def test_at_an_earlier_moment_only_what_had_happened_counts():
    made = uneven_run.events()
    cut = made[: len(made) // 2]
    state = uneven_run.folded(cut)
    ends = [e for e in cut if isinstance(e, RequestEvent) and e.phase == "finished"]
    assert spread_of(points_of(state, "e2e")).n == len(ends)
    firsts = {d[1] for e in steps(cut) for d in e.decisions if d[0] == "first_token"}
    assert spread_of(points_of(state, "ttft")).n == len(firsts)
    assert analyse(state, "ttft").outliers


# On the screen -----------------------------------------------------------------------------------------------


async def test_v_goes_through_the_metrics_and_each_says_its_n():
    app = app_with(uneven_run.events())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "5")
        screen = app.screen
        assert isinstance(screen, LatencyScreen)
        for key, metric in METRICS.items():
            assert screen.metric == key
            text = screen_text(app)
            assert f"─ {metric.title} — " in text
            assert "p50 " in text
            await go(pilot, "v")
        assert screen.metric == "ttft"
        await go(pilot, "V")
        assert screen.metric == "e2e"


async def test_enter_on_an_outlier_leads_to_the_request_and_of_a_gap_to_its_step():
    app = app_with(uneven_run.events())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "5")
        app.screen.query_one(LineTable).focus()
        slowest = analyse(app.state, "ttft").outliers[0]
        await go(pilot, "enter")
        await settled(pilot)
        assert app.selected["request"] == slowest.name
        assert "4 Requests" in screen_text(app)
        await go(pilot, "5", "v")
        app.screen.query_one(LineTable).focus()
        worst = analyse(app.state, "itl").outliers[0]
        await go(pilot, "home", "enter")
        assert app.timeline.view.step == worst.lead[1]
        assert not app.timeline.at_live


async def test_screen_of_gaps(check_picture, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)

    async def before(pilot):
        await settled(pilot)
        await go(pilot, "5", "v")

    check_picture(await shot(app_with(uneven_run.events()), (120, 40), before), "more/latency-of-gaps")
