"""Which part of a run is steady, and in which part a request falls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_runs import STEP_NS, events_of, make_engine, record, specs

from kvtop.engine.api import RequestSpec, SamplingParams
from kvtop.results.manifest import read_manifest, write_manifest
from kvtop.results.tables import write_tables
from kvtop.results.window import BusyWindow, phases


@given(st.lists(st.integers(0, 9), max_size=60))
def test_the_window_goes_from_the_first_to_the_last_half_full_step(running: list[int]) -> None:
    """Against the definition over the whole list."""
    busy = BusyWindow()
    for step, count in enumerate(running):
        busy.add(10 * step, 10 * step + 10, count)
    full = [step for step, count in enumerate(running) if count and 2 * count >= max(running)]
    assert busy.window() == ((10 * full[0], 10 * full[-1] + 10) if full else None)


def test_no_window_without_a_step_or_without_time() -> None:
    assert BusyWindow().window() is None
    busy = BusyWindow()
    busy.add(5, 5, 3)
    assert busy.window() is None


def row(first: int | None, done: int | None = None, sched: int = 0, index: int = 0) -> dict[str, Any]:
    return {"t_first_token_ns": first, "t_done_ns": done, "t_sched_ns": sched, "req_index": index}


@pytest.mark.parametrize(
    ("times", "phase"),
    [
        (row(100, 500), "warmup"),
        (row(101, 500), "steady"),
        (row(200, 500), "steady"),
        (row(201, 500), "drain"),
        (row(None, 50), "warmup"),
        (row(None, 150), "steady"),
        (row(None, None), "drain"),
    ],
    ids=["by the step before", "within", "at its end", "after", "rejected early", "failed within", "cut off waiting"],
)
def test_a_request_belongs_where_its_first_token_fell(times: dict[str, Any], phase: str) -> None:
    assert phases([times], (100, 200)) == [phase]


def test_without_a_window_there_is_no_phase() -> None:
    assert phases([row(5, 6)], None) == [None]


def test_declared_warm_up_is_the_first_by_intended_arrival() -> None:
    rows = [row(150, sched=30, index=0), row(150, sched=10, index=1), row(150, sched=10, index=2), row(150, sched=20)]
    assert phases(rows, (100, 200), 2) == ["steady", "warmup", "warmup", "steady"]
    assert phases(rows, (100, 200), 99) == ["warmup"] * 4


def test_filling_and_tail_of_a_burst_are_told_apart(tmp_path: Path) -> None:
    """Four seats, one admission a step, prompts and answers of 1 and 30 tokens: half the peak runs from step 2 on."""
    requests = [RequestSpec([i], SamplingParams(max_tokens=30), request_id=f"q{i}") for i in range(4)]
    late = RequestSpec([9], SamplingParams(max_tokens=60), request_id="late")
    write_tables(record(tmp_path / "run", events_of(make_engine(num_blocks=200), [*requests, late])))
    table = pl.read_parquet(tmp_path / "run/requests.parquet")
    found = dict(table.select("request_id", "phase").iter_rows())
    assert found == {"q0": "warmup", "q1": "steady", "q2": "steady", "q3": "steady", "late": "steady"}
    manifest = read_manifest(tmp_path / "run")
    assert manifest["window_start_ns"] == STEP_NS
    assert table["t_first_token_ns"].to_list()[0] == STEP_NS


def test_requests_declared_as_warm_up_are_kept_with_their_flag(tmp_path: Path) -> None:
    run_dir = record(tmp_path / "run", events_of(make_engine(), specs(12)))
    before = write_tables(run_dir)
    write_manifest(run_dir, before | {"warmup_requests": 3})
    write_tables(run_dir)
    table = pl.read_parquet(run_dir / "requests.parquet").sort("t_sched_ns")
    assert table.height == 12
    assert table["phase"].to_list()[:3] == ["warmup"] * 3
    assert table["ttft_ns"].null_count() == 0
