"""Metric arithmetic on small runs with one right answer."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from made_runs import MS, S, arrived, finished, make_run, simple_run, steps, steps_of

from kvtop.analysis.summary import load_run
from kvtop.engine.errors import KvtopError, UsageError


def test_tpot_is_null_below_two_tokens_and_never_zero(tmp_path: Path) -> None:
    times = {"one": [100 * MS], "three": [100 * MS, 200 * MS, 300 * MS]}
    ends = [
        finished("none", 0, tokens=[], reason="stop", t_done_ns=50 * MS),
        finished("one", 1, tokens=times["one"]),
        finished("three", 2, tokens=times["three"]),
    ]
    run = load_run(make_run(tmp_path / "run", [*steps_of(times), *ends]))
    assert run.statuses == {"empty": 1, "ok": 2}
    assert (run.tpot.n, run.tpot.mean) == (1, 100 * MS)
    assert run.ttft.n == 2


def test_one_token_answers_do_not_drag_tpot_down(tmp_path: Path) -> None:
    times = {"a": [10 * MS], "b": [10 * MS * k for k in range(1, 6)]}
    ends = [finished(name, i, tokens=tokens) for i, (name, tokens) in enumerate(times.items())]
    run = load_run(make_run(tmp_path / "run", [*steps_of(times), *ends]))
    assert (run.tpot.n, run.tpot.mean) == (1, 10 * MS)


def test_itl_pools_gaps_while_tpot_weighs_requests_equally(tmp_path: Path) -> None:
    times = {"a": [0, S], "b": [10 * MS * k for k in range(101)]}
    ends = [finished(name, i, tokens=tokens) for i, (name, tokens) in enumerate(times.items())]
    run = load_run(make_run(tmp_path / "run", [*steps_of(times), *ends]))
    assert run.tpot.mean == pytest.approx(0.505 * S)
    assert run.itl.n == 101
    assert run.itl.mean == pytest.approx(2 / 101 * S)


def test_a_step_of_several_tokens_makes_as_many_gaps(tmp_path: Path) -> None:
    made = steps({0: [("a", 1)], 40 * MS: [("a", 4)], 80 * MS: [("a", 4)]})
    end = finished("a", 0, tokens=[0] + [40 * MS] * 4 + [80 * MS] * 4)
    run = load_run(make_run(tmp_path / "run", [*made, end]))
    assert (run.itl.n, run.itl.p50, run.itl.max) == (8, 10 * MS, 10 * MS)
    assert run.itl.mean == run.tpot.mean == 10 * MS


def test_a_request_that_was_cut_off_shares_its_gaps_too(tmp_path: Path) -> None:
    """Nobody tells its largest gap: the table takes it from the steps. Three gaps of 13.3 ms are the largest here."""
    made = steps({0: [("a", 1)], 10 * MS: [("a", 1)], 50 * MS: [("a", 3)]})
    run_dir = make_run(tmp_path / "run", [arrived("a", 0), *made])
    (row,) = pl.read_parquet(run_dir / "requests.parquet").to_dicts()
    assert (row["status"], row["output_tokens"], row["itl_max_ns"]) == ("cutoff", 5, 40 * MS // 3)


def test_a_request_that_was_cut_off_has_nothing_of_an_earlier_one_of_its_name(tmp_path: Path) -> None:
    before = [arrived("a", 0), *steps({0: [("a", 1)], 40 * MS: [("a", 1)]}), finished("a", 0, tokens=[0, 40 * MS])]
    run_dir = make_run(tmp_path / "run", [*before, arrived("a", 50 * MS), *steps({60 * MS: [("a", 1)]})])
    rows = pl.read_parquet(run_dir / "requests.parquet").to_dicts()
    found = sorted((row["status"], row["output_tokens"], row["t_first_token_ns"]) for row in rows)
    assert found == [("cutoff", 1, 60 * MS), ("ok", 2, 0)]


def test_tpot_divides_by_produced_tokens_not_by_requested_ones(tmp_path: Path) -> None:
    tokens = [100 * MS * k for k in range(1, 12)]
    run = load_run(make_run(tmp_path / "run", [*steps_of({"a": tokens}), finished("a", 0, tokens=tokens, asked=100)]))
    assert run.tpot.mean == 100 * MS
    assert run.output_tokens == 11


def test_branches_have_gaps_of_their_own(tmp_path: Path) -> None:
    made = steps({10: [("a", 1), ("a#1", 1)], 30: [("a", 1)], 70: [("a#1", 1)]})
    run = load_run(make_run(tmp_path / "run", [*made, finished("a", 0, tokens=[10, 30, 70], n=2)]))
    assert (run.itl.n, run.itl.mean, run.itl.max) == (2, 40, 60)


def test_a_name_with_a_number_sign_is_not_taken_for_a_branch(tmp_path: Path) -> None:
    times = {"a": [10], "a#1": [10, 30]}
    ends = [finished("a", 0, tokens=[10], reason="failed"), finished("a#1", 1, tokens=[10, 30])]
    run = load_run(make_run(tmp_path / "run", [*steps_of(times), *ends]))
    assert (run.itl.n, run.itl.mean) == (1, 20)


def test_all_requests_failed_gives_nulls_and_valid_json(tmp_path: Path) -> None:
    ends = [finished(f"r{i}", i, tokens=[], reason="failed", hit=None) for i in range(3)]
    run = load_run(make_run(tmp_path / "run", ends))
    assert (run.num_ok, run.statuses) == (0, {"failed": 3})
    assert run.ttft.n == run.e2e.n == run.itl.n == 0
    assert run.ttft.p50 is None
    assert run.output_tokens_s is None
    assert run.hit_rate is None
    text = json.dumps(run.as_json(), allow_nan=False)
    assert json.loads(text)["ttft"] == {"n": 0, "mean": None, "p50": None, "p95": None, "p99": None, "max": None}


def test_failed_requests_do_not_enter_latencies(tmp_path: Path) -> None:
    ends = [finished(f"r{i}", i, tokens=[100 * MS, 110 * MS]) for i in range(9)]
    ends.append(finished("bad", 9, tokens=[30 * S, 60 * S], reason="failed"))
    times = {f"r{i}": [100 * MS, 110 * MS] for i in range(9)} | {"bad": [30 * S, 60 * S]}
    run = load_run(make_run(tmp_path / "run", [*steps_of(times), *ends]))
    assert (run.ttft.n, run.ttft.mean) == (9, 100 * MS)
    assert (run.itl.n, run.itl.max) == (9, 10 * MS)
    assert (run.num_ok, run.num_requests) == (9, 10)


def test_requests_cut_off_are_counted_beside_the_rest(tmp_path: Path) -> None:
    times = {f"r{i}": [100 * MS, 200 * MS] for i in range(10)}
    starts = [arrived(f"r{i}", i) for i in range(10)]
    ends = [finished(f"r{i}", i, tokens=times[f"r{i}"]) for i in range(7)]
    run = load_run(make_run(tmp_path / "run", [*starts, *steps_of(times), *ends], status="interrupted"))
    assert run.statuses == {"cutoff": 3, "ok": 7}
    assert run.e2e.n == run.tpot.n == 7
    assert run.ttft.n == run.itl.n == 10, "what they had emitted was measured"
    assert run.status == "interrupted"


def test_requests_without_times_leave_nulls_and_the_others_count(tmp_path: Path) -> None:
    """A failed request that never got a time, beside one that was done the moment it came."""
    at_once = finished("now", 0, at=S, tokens=[S])
    never = finished("never", 1, at=S, tokens=[], reason="failed", hit=None)
    alone = load_run(make_run(tmp_path / "alone", [never]))
    assert (alone.duration_ns, alone.requests_s, alone.output_tokens_s, alone.e2e.n) == (None, None, None, 0)
    both = load_run(make_run(tmp_path / "both", [at_once, never]))
    assert (both.e2e.n, both.e2e.max, both.duration_ns) == (1, 0, 0)
    assert both.requests_s is None, "no time passed: there is no rate"


def test_duration_starts_at_the_first_scheduled_arrival(tmp_path: Path) -> None:
    times = {"a": [5 * S + 100 * MS, 6 * S]}
    run = load_run(
        make_run(tmp_path / "run", [*steps_of(times), finished("a", 0, at=5 * S, tokens=times["a"], prompt=18)])
    )
    assert run.duration_ns == S
    assert run.output_tokens_s == 2
    assert run.total_tokens_s == 20
    assert run.requests_s == 1
    assert run.steady_requests_s is None


def test_steady_rate_leaves_the_filling_of_the_pipeline_out(tmp_path: Path) -> None:
    times = {f"r{i}": [(20 + i) * S] for i in range(50)}
    ends = [finished(name, i, tokens=tokens) for i, (name, tokens) in enumerate(times.items())]
    run = load_run(make_run(tmp_path / "run", [*steps_of(times), *ends]))
    assert run.requests_s == pytest.approx(50 / 69)
    assert run.steady_requests_s == pytest.approx(1.0)


def test_one_long_answer_does_not_hide_the_busy_rate(tmp_path: Path) -> None:
    times = {f"r{i}": [MS * k for k in range(1, 101)] for i in range(31)}
    times["long"] = [MS * k for k in range(1, 2001)]
    ends = [finished(name, i, tokens=tokens) for i, (name, tokens) in enumerate(times.items())]
    run = load_run(make_run(tmp_path / "run", [*steps_of(times), *ends]))
    assert run.output_tokens_s == pytest.approx(5100 / 2)
    assert run.steady_output_tokens_s == pytest.approx(32_000)


def test_hit_rate_counts_each_prompt_once(tmp_path: Path) -> None:
    ends = [
        finished("a", 0, tokens=[10, 20], prompt=9, hit=0),
        finished("b", 1, tokens=[10, 20], prompt=9, hit=8, num_preemptions=3),
        finished("never", 2, tokens=[], prompt=1000, hit=None, reason="aborted"),
    ]
    run = load_run(make_run(tmp_path / "run", [*steps_of({"a": [10, 20], "b": [10, 20]}), *ends]))
    assert run.hit_rate == pytest.approx(8 / 18)


def test_hits_of_the_host_tier_stand_beside_those_of_the_device(tmp_path: Path) -> None:
    ends = [
        finished("a", 0, tokens=[10, 20], prompt=9, hit=0),
        finished("b", 1, tokens=[10, 20], prompt=9, hit=4, host_hit_tokens=3),
    ]
    steps = steps_of({"a": [10, 20], "b": [10, 20]})
    run = load_run(make_run(tmp_path / "run", [*steps, *ends], host_cache_blocks=8))
    assert (run.hit_rate, run.host_hit_rate) == (pytest.approx(4 / 18), pytest.approx(3 / 18))
    without = load_run(make_run(tmp_path / "without", [*steps, finished("a", 0, tokens=[10, 20], hit=0)]))
    assert without.host_hit_rate is None


def test_hit_rate_is_null_with_caching_off_and_without_prompts(tmp_path: Path) -> None:
    end = finished("a", 0, tokens=[10, 20], hit=0)
    off = load_run(make_run(tmp_path / "off", [*steps_of({"a": [10, 20]}), end], prefix_caching=False))
    empty = load_run(make_run(tmp_path / "empty", []))
    assert off.hit_rate is None
    assert empty.hit_rate is None
    assert empty.peak_occupancy is None


def test_totals_and_peak_come_from_the_steps(tmp_path: Path) -> None:
    made = steps_of({"a": [10, 20]}, used_blocks=40, evictions=2, preemptions=1)
    run = load_run(make_run(tmp_path / "run", [*made, finished("a", 0, tokens=[10, 20])], num_blocks=50))
    assert (run.evictions, run.preemptions, run.peak_used_blocks) == (4, 2, 40)
    assert run.peak_occupancy == pytest.approx(0.8)


def test_a_broken_table_is_one_line(tmp_path: Path) -> None:
    run_dir = simple_run(tmp_path / "run")
    (run_dir / "requests.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(KvtopError, match="run: a table cannot be read") as caught:
        load_run(run_dir)
    assert "\n" not in str(caught.value)


def test_a_directory_without_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"run\.json"):
        load_run(tmp_path)


def test_itl_is_not_reported_without_a_recording(tmp_path: Path) -> None:
    run_dir = simple_run(tmp_path / "run")
    (run_dir / "frames.msgpack.zst").unlink()
    run = load_run(run_dir)
    assert (run.itl.n, run.itl.p50) == (0, None)
    assert run.steady_output_tokens_s == pytest.approx(12 / 2.13)
    assert run.tpot.n == 3
