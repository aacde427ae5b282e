"""``--find-rate`` against queues that are worked out by hand: one server, every request takes the same time."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_process import held, kvtop, run_dirs, started, write_trace

from kvtop.cli.main import main

STEP_S = 0.010  # of the null executor
OUTPUT = 5  # tokens, one a step: the prompt fits the first step
SERVICE_S = OUTPUT * STEP_S
ONE_SERVER = ("--executor", "null", "--num-blocks", "64", "--max-num-seqs", "1")


def ttft(gaps_s: np.ndarray) -> np.ndarray:
    """Lindley's recursion: what a request waits is what the one before waited, and its service, less the gap."""
    waits = [0.0]
    for gap in gaps_s:
        waits.append(max(0.0, waits[-1] + SERVICE_S - gap))
    return np.array(waits) + STEP_S


def gaps_of(arrivals_ms: list[int]) -> np.ndarray:
    return np.diff(np.array(arrivals_ms)) / 1000


def rate_of(arrivals_ms: list[int]) -> float:
    return 1000 * (len(arrivals_ms) - 1) / (arrivals_ms[-1] - arrivals_ms[0])


REGULAR = [50 * i for i in range(41)]
RANDOM = [int(t) for t in np.cumsum(np.random.default_rng(7).exponential(100, 60))]


def search(folder: Path, name: str, arrivals: list[int], tolerance: str) -> list[str]:
    """The command."""
    trace = write_trace(folder / f"{name}.jsonl", [(at, 8, OUTPUT) for at in arrivals])
    words = ["bench", "-w", str(trace), *ONE_SERVER, "--find-rate", "ttft_p99<200ms", "--rate-tolerance", tolerance]
    return [*words, "--jobs", "2", "-o", str(folder / "out")]


def check_every_trial(candidate: dict[str, Any], arrivals: list[int]) -> None:
    """Value, margin and verdict at each rate that was tried are those of the recursion."""
    for trial in candidate["tried"]:
        expected = np.percentile(ttft(gaps_of(arrivals) * rate_of(arrivals) / trial["rate_per_s"]), 99)
        (judged,) = trial["objectives"]
        assert judged["value"] / 1e9 == pytest.approx(expected, abs=1e-6)
        assert judged["margin"] == pytest.approx(1 - expected / 0.2, abs=1e-5)
        assert trial["passed"] is judged["holds"] is bool(expected < 0.2)
    rates = [trial["rate_per_s"] for trial in candidate["tried"]]
    assert len(set(rates)) == len(rates) == candidate["num_rates"]
    assert min(rates) <= 0.6 * candidate["rate_per_s"], "checked well below the answer"
    assert max(rates) >= 1.6 * candidate["fails_at_per_s"], "and well above it"


def test_the_rate_of_a_single_server_is_what_queueing_theory_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regular arrivals have a closed form: at gap T below the service time S request k waits k (S - T), so that the
    99th percentile of 41 is 39.6 (S - T) and a step. A search that is resumed runs nothing again."""
    words = search(tmp_path, "regular", REGULAR, "0.25")
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (candidate,) = found["candidates"]
    edge = 1 / (SERVICE_S - (0.2 - STEP_S) / 39.6)
    assert 20 < edge < 23, "above the rate of service, because the trace is finite"
    assert candidate["rate_per_s"] <= edge < candidate["fails_at_per_s"] <= 1.25 * candidate["rate_per_s"]
    assert (candidate["clock"], candidate["passes_above_a_failure_per_s"]) == ("virtual", [])
    assert found["finished"] is True
    check_every_trial(candidate, REGULAR)

    before = {run_dir: (run_dir / "run.json").stat().st_mtime_ns for run_dir in run_dirs(tmp_path / "out")}
    (kept,) = (tmp_path / "out").glob("find-rate-*.json")
    assert json.loads(kept.read_text()) == found
    assert main(words) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*words, "--resume"]) == 0
    text = capsys.readouterr().out
    assert "simulated time" in text
    assert "FAIL" in text
    assert {run_dir: (run_dir / "run.json").stat().st_mtime_ns for run_dir in run_dirs(tmp_path / "out")} == before
    assert json.loads(kept.read_text()) == found


@pytest.mark.slow
def test_random_arrivals_are_judged_as_the_recursion_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*search(tmp_path, "random", RANDOM, "0.02"), "--json"]) == 0
    (candidate,) = json.loads(capsys.readouterr().out)["candidates"]
    check_every_trial(candidate, RANDOM)
    passing = [
        rate
        for rate in np.arange(5, 40, 0.01)
        if np.percentile(ttft(gaps_of(RANDOM) * rate_of(RANDOM) / rate), 99) < 0.2
    ]
    assert candidate["rate_per_s"] <= max(passing) + 0.01
    assert candidate["fails_at_per_s"] >= max(passing)


def test_what_no_rate_can_meet_is_a_measured_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(tmp_path / "two.jsonl", [(0, 8, 2), (1000, 8, 2)])
    words = ["bench", "-w", str(trace), *ONE_SERVER, "--find-rate", "ttft_p99<5ms", "--max-rates", "2"]
    assert main([*words, "-o", str(tmp_path / "out")]) == 1
    text = capsys.readouterr().out
    assert "none" in text
    assert "no rate that was tried passed" in text
    assert "10.0 ms (-100.0 %)" in text


def test_requests_that_were_not_served_are_told_beside_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rejected request has no TTFT, so an objective on TTFT cannot see it."""
    trace = write_trace(tmp_path / "trace.jsonl", [(0, 8, 2), (500, 300, 2), (1000, 8, 2)])
    words = ["bench", "-w", str(trace), "--executor", "null", "--num-blocks", "4", "--max-rates", "1"]
    assert main([*words, "--find-rate", "ttft_p99<1s", "-o", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "1 of 3 requests were not served at 2.000: latencies are those of the others" in out
    attained = ["--slo", "ttft<1s", "--find-rate", "slo_attainment>90%", "-o", str(tmp_path / "out"), "--resume"]
    assert main([*words, *attained]) == 1, "attainment counts it as missed"
    assert "not served" not in capsys.readouterr().out, "there is no answer to stand beside"


def test_an_interrupted_search_says_so_and_goes_on(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace.jsonl", [(10 * i, 16, 100) for i in range(150)])
    words = ["bench", "-w", str(trace), *ONE_SERVER, "--find-rate", "ttft_p99<2s", "--max-rates", "2"]
    words += ["-o", str(tmp_path / "out")]
    with started(words) as process:
        with held(process, lambda: bool(list((tmp_path / "out").glob("find-rate-*.json")))):  # after the first rate
            os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted: the search is not finished" in out
    (kept,) = (tmp_path / "out").glob("find-rate-*.json")
    found = json.loads(kept.read_text())
    assert (found["finished"], found["candidates"][0]["num_rates"]) == (False, 1)
    assert "150 / 150" in kvtop(*words, "--resume", code=1).stdout  # 10 ms apart and 1 s each: both rates fail
    found = json.loads(kept.read_text())
    assert (found["finished"], found["candidates"][0]["num_rates"]) == (True, 2)


@pytest.mark.parametrize(
    ("rows", "more", "says"),
    [
        ([(0, 8, 2), (1000, 8, 2)], "--find-rate ttft<2s", "unknown metric in --find-rate 'ttft'"),
        ([(0, 8, 2), (1000, 8, 2)], "--find-rate ttft_p99<2", "expected a unit"),
        ([(0, 8, 2), (1000, 8, 2)], "--find-rate ttft_p99<+5%", "no baseline"),
        (
            [(0, 8, 2), (1000, 8, 2)],
            "--find-rate ttft_p99<2s --max-seconds 3",
            "a run that is cut off hides its backlog",
        ),
        ([(0, 8, 2), (1000, 8, 2)], "--find-rate ttft_p99<2s --plot ttft", "there is nothing to draw"),
        ([(0, 8, 2), (1000, 8, 2)], "--find-rate ttft_p99<2s --rate-tolerance 3", "expected 0.001 to 1"),
        ([(0, 8, 2), (1000, 8, 2)], "--find-rate ttft_p99<2s --executor torch -m tiny", "runs in real time"),
        ([(0, 8, 2), (1000, 8, 2)], "--max-rates 3", "--max-rates: there is no --find-rate"),
        ([(0, 8, 2), (0, 8, 2)], "--find-rate ttft_p99<2s", "2 requests within 0 ns: no rate to vary"),
        ([(0, 8, 2)], "--find-rate ttft_p99<2s", "1 request within 0 ns: no rate to vary"),
        ([(0, 8, 1), (1000, 8, 1)], "--find-rate tpot_p99<2s", "has no tpot_p99, so it cannot be judged"),
    ],
)
def test_what_cannot_be_searched_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[tuple[int, int, int]], more: str, says: str
) -> None:
    trace = write_trace(tmp_path / "trace.jsonl", rows)
    words = ["bench", "-w", str(trace), "--num-blocks", "64", "-o", str(tmp_path / "out"), *more.split()]
    executor = [] if "--executor" in words else ["--executor", "null"]
    assert main([*words, *executor]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_arrivals_that_wait_for_answers_have_no_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "-w", "agent", "--executor", "null", "--find-rate", "ttft_p99<2s", "-o", str(tmp_path / "out")]
    assert main(words) == 2
    assert "requests are sent when others end" in capsys.readouterr().err
