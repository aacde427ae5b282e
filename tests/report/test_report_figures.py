"""The numbers behind the plots, held to runs that can be worked out by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_runs import MS, NUM_BLOCKS, finished, material, rows_of, small_run, step, write_run

from kvtop.plots.panels import PLOTTED
from kvtop.report import charts, vega
from kvtop.report.blocks import lifetimes
from kvtop.report.build import make_report
from kvtop.report.cache import hit_curves
from kvtop.report.differences import by_request, changes
from kvtop.report.latency import cdf, itl_over_time
from kvtop.report.pool import evictions, occupancy, sequences
from kvtop.report.steps import breakdown, split


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return small_run(tmp_path / "run")


def test_a_cdf_steps_at_every_request(run: Path) -> None:
    found = cdf(material(run), PLOTTED["ttft"])
    assert rows_of(found) == [[0, 20 * MS, 0], [0, 20 * MS, 0.5], [0, 25 * MS, 1]]
    assert "n = 2 requests" in found.caption


def test_one_value_only_is_told_and_not_drawn(tmp_path: Path) -> None:
    ends = [finished(name, index, 0, 10, 30, 3) for index, name in enumerate("abc")]
    found = cdf(material(write_run(tmp_path / "run", [step(0, 0, 30, ["a"]), *ends])), PLOTTED["ttft"])
    assert found.spec is None
    assert found.caption == "All of them are 10.0 ms: n = 3 requests."


def test_gaps_between_tokens_are_placed_where_they_end(run: Path) -> None:
    rows = rows_of(itl_over_time(material(run)))
    gaps = [row[2] for row in rows]
    assert gaps == [10 * MS, 10 * MS, 20 * MS]  # a at 30 ms, b at 40 and 60 ms
    ends = [30, 40, 60]
    assert all(abs(row[1] * 1e3 - end) <= 60 / 240 for row, end in zip(rows, ends, strict=True) if row[1] is not None)


def test_the_states_of_all_blocks_add_up_to_the_pool(run: Path) -> None:
    rows = rows_of(occupancy(material(run)))
    assert [sum(cell or 0 for cell in row[2:6]) for row in rows] == [NUM_BLOCKS] * 4
    assert [row[6] for row in rows] == [0.5] * 4  # 8 of 16 slots filled


def test_what_was_thinned_is_said(tmp_path: Path) -> None:
    steps = [step(i, 10 * i, 10 * i + 10, ["a"], num_waiting=int(i == 2_345)) for i in range(3_000)]
    found = sequences(material(write_run(tmp_path / "run", steps)))
    rows = rows_of(found)
    assert "Thinned" in found.caption
    assert len(rows) < 1_000
    assert max(row[3] or 0 for row in rows) == 1


def test_evictions_and_preemptions_are_summed_and_never_lost(run: Path) -> None:
    rows = rows_of(evictions(material(run)))
    assert [(row[1], row[4]) for row in rows] == [(0, 1), (1, 1)]
    assert all(row[2] * 1e3 <= 60 <= row[3] * 1e3 + 1e-9 for row in rows if row[2] is not None and row[3] is not None)


def test_no_eviction_is_no_plot(tmp_path: Path) -> None:
    found = evictions(material(write_run(tmp_path / "run", [step(0, 0, 10, ["a"])])))
    assert found.spec is None
    assert found.caption == "There were none."


def test_lifetimes_of_blocks_by_hand(run: Path) -> None:
    (shown,) = material(run).first_runs
    found = lifetimes(shown)
    # each of these decisions has the time its step was planned
    assert sorted(found.held) == [10 * MS, 20 * MS]  # block 1: 11 to 21 ms; block 0: 11 to 31 ms, by a and b
    assert found.kept == [40 * MS]  # block 0: 11 to 51 ms
    assert (found.num_held_at_end, found.num_cached_at_end) == (1, 0)


def test_parts_of_the_time_add_up_to_all_of_it(run: Path) -> None:
    (shown,) = material(run).first_runs
    columns = ("t_start_ns", "t_planned_ns", "t_done_ns", "device_ns", "num_running", "num_waiting")
    parts = split(shown.steps(*columns))
    assert parts == {
        "device": 20 * MS, "schedule": 4 * MS, "rest": 16 * MS, "between": 0, "empty": 10 * MS,
    }  # fmt: skip
    assert sum(parts.values()) == 50 * MS
    spec = breakdown(material(run)).spec
    assert spec is not None
    assert np.isclose(sum(row["share"] for row in spec["data"]["values"]), 1)


def test_the_device_has_no_more_time_than_its_step() -> None:
    one = {name: np.array([value]) for name, value in (("t_start_ns", 0), ("t_planned_ns", 4), ("t_done_ns", 10))}
    zero = np.array([0])
    parts = split({**one, "device_ns": np.array([99]), "num_running": zero, "num_waiting": zero})
    assert (parts["device"], parts["rest"]) == (6, 0)


def test_differences_are_of_the_same_request(tmp_path: Path) -> None:
    both = material(small_run(tmp_path / "a"), small_run(tmp_path / "b", slower_ms=7, policy="sjf"))
    found = by_request(both, "ttft")
    assert found.spec is not None
    values = found.spec["layer"][1]["data"]["values"].split("\n")[1:]
    assert [line.split(",")[1:] for line in values] == [["0", "0"], ["0", "0.5"], ["7000000", "1"]]
    assert "slower: sjf 50.0 %" in found.caption


def test_equal_runs_have_no_difference_to_draw(tmp_path: Path) -> None:
    both = material(small_run(tmp_path / "a"), small_run(tmp_path / "b", policy="sjf"))
    assert by_request(both, "ttft").spec is None
    assert changes(both).spec is None


def test_curves_need_the_very_workload_that_was_served(tmp_path: Path) -> None:
    known: dict[str, Any] = {"workload": "poisson-shared-prefix", "vocab_size": 100, "limit": 20, "length_scale": 1.0}
    other = hit_curves(material(small_run(tmp_path / "a", **known)))
    assert other.spec is None
    assert "hash differs" in other.caption
    known["workload"] = "nothing-of-that-name"
    assert "--trace FILE" in hit_curves(material(small_run(tmp_path / "b", **known))).caption


def test_curves_are_drawn_from_the_workload_that_was_served(tmp_path: Path) -> None:
    from kvtop.workloads.load import load_workload
    from kvtop.workloads.spec import WorkloadSpec

    spec = WorkloadSpec(name="poisson-shared-prefix", limit=20)
    served = load_workload(spec, vocab_size=100, max_model_len=8_001)
    known: dict[str, Any] = {
        "workload": spec.name,
        "vocab_size": 100,
        "limit": 20,
        "length_scale": 1.0,
        "num_blocks": 500,
    }
    found = hit_curves(material(small_run(tmp_path / "run", workload_hash=served.hash, **known)))
    assert found.spec is not None, found.caption
    assert "500 blocks" in found.caption


def test_every_plot_of_a_run_can_be_drawn(tmp_path: Path) -> None:
    runs = [small_run(tmp_path / "a"), small_run(tmp_path / "b", slower_ms=7, policy="sjf")]
    for name, figure in make_report(runs).named():
        assert figure.spec is not None
        drawn = vega.svg(charts.finished(figure.spec), "key")
        assert "NaN" not in drawn, name
        assert figure.caption.endswith("."), name


def test_a_drawing_is_rounded_in_its_places_and_not_in_its_words() -> None:
    words: vega.Spec = {
        "data": {"values": [{"x": 1 / 3, "text": "1.23456"}, {"x": 2 / 3, "text": "clip7"}]},
        "mark": "text",
        "encoding": {"x": {"field": "x", "type": "quantitative"}, "text": {"field": "text"}},
    }
    drawn = vega.svg(charts.finished(words), "key")
    assert ">1.23456<" in drawn
    assert ">clip7<" in drawn
    places = re.findall(r'\b(?:d|transform)="([^"]*)"', drawn)
    assert places
    assert not any(re.search(r"\.\d{3}", place) for place in places)
