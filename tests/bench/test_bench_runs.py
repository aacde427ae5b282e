"""Whole benches in processes of their own: files, determinism, interruption, failure, output without a terminal."""

from __future__ import annotations

import json
import os
import select
import signal
from pathlib import Path

import pytest
from bench_process import kvtop, run_dirs, started

NULL = ("--executor", "null", "--num-blocks", "512", "--length-scale", "0.0625", "--limit", "12")


def test_bench_writes_tables_compares_resumes_and_repeats_itself(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("bench", "-w", "mooncake-conversation", "-p", "fcfs", "-p", "lpm", *NULL)
    done = kvtop(*words, "-o", str(out))
    assert "TTFT p99" in done.stdout
    assert "12 / 12" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert len(run_dirs(out)) == 2
    for run_dir in run_dirs(out):
        names = {path.name for path in run_dir.iterdir()}
        assert {"run.json", "requests.parquet", "steps.parquet", "events.parquet", "frames.msgpack.zst"} == names
        assert json.loads((run_dir / "run.json").read_text())["status"] == "complete"

    refused = kvtop(*words, "-o", str(out), code=2)
    assert "--resume" in refused.stderr
    assert refused.stderr.count("\n") == 1
    before = {run_dir: (run_dir / "run.json").stat().st_mtime_ns for run_dir in run_dirs(out)}
    resumed = kvtop(*words, "-p", "sjf", "-o", str(out), "--resume")
    assert resumed.stdout.count(": kept, ") == 2
    assert len(run_dirs(out)) == 3
    assert {run_dir: (run_dir / "run.json").stat().st_mtime_ns for run_dir in before} == before

    again = tmp_path / "again"
    kvtop(*words, "-o", str(again))
    for run_dir in run_dirs(again):
        for name in ("events.parquet", "requests.parquet", "steps.parquet"):
            assert (run_dir / name).read_bytes() == (out / run_dir.name / name).read_bytes()
    (found,) = json.loads(kvtop("compare", "--json", str(again)).stdout)
    assert [column["label"] for column in found["columns"]] == ["fcfs", "lpm"]


def test_compare_can_make_the_runs_itself(tmp_path: Path) -> None:
    words = ("-w", "poisson-shared-prefix", "-p", "fcfs", "-p", "lpm", *NULL)
    done = kvtop("compare", *words, "-o", str(tmp_path / "out"), "--json")
    (found,) = json.loads(done.stdout)
    hashes = {run["manifest"]["workload_hash"] for column in found["columns"] for run in column["runs"]}
    assert len(hashes) == 1
    assert found["workload"] == "poisson-shared-prefix"


def test_replicates_share_their_workload_across_policies(tmp_path: Path) -> None:
    kvtop(
        "bench",
        "-w",
        "poisson-shared-prefix",
        "-p",
        "fcfs",
        "-p",
        "lpm",
        "--replicates",
        "2",
        *NULL,
        "-o",
        str(tmp_path),
    )
    hashes: dict[int, set[str]] = {}
    for run_dir in run_dirs(tmp_path):
        manifest = json.loads((run_dir / "run.json").read_text())
        hashes.setdefault(manifest["replicate"], set()).add(manifest["workload_hash"])
    assert sorted(hashes) == [0, 1]
    assert all(len(found) == 1 for found in hashes.values())
    assert hashes[0] != hashes[1]


def test_a_run_that_fails_is_one_line_and_the_others_go_on(tmp_path: Path) -> None:
    """Without a number of blocks only the engine's process knows that 512 tokens cannot hold the longest prompt."""
    words = ("bench", "-w", "default", "-p", "fcfs", "-p", "lpm", "--executor", "null", "--no-chunked-prefill")
    words += ("--max-batched-tokens", "512")
    done = kvtop(*words, "--limit", "2", "-o", str(tmp_path / "out"), code=1)
    lines = [line for line in done.stderr.splitlines() if ": failed: " in line]
    assert [line.split(": failed: ")[0] for line in lines] == ["kvtop: fcfs default", "kvtop: lpm default"]
    assert all("max_batched_tokens is 512" in line for line in lines)
    assert list((tmp_path / "out").iterdir()) == []


def test_no_successful_request_is_a_failure_with_its_file_written(tmp_path: Path) -> None:
    trace = tmp_path / "long.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 5000, "output_length": 3, "hash_ids": [0,1,2,3,4,5,6,7,8,9]}\n')
    done = kvtop(
        "bench", "-w", str(trace), "--executor", "null", "--num-blocks", "4", "-o", str(tmp_path / "out"), code=1
    )
    assert "no successful request" in done.stderr
    (run_dir,) = run_dirs(tmp_path / "out")
    assert (run_dir / "requests.parquet").exists()
    assert "0 / 1" in done.stdout


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_keeps_what_is_finished(tmp_path: Path, signal_number: signal.Signals) -> None:
    words = ("bench", "-w", "poisson-shared-prefix", "--replicates", "40", *NULL, "-o", str(tmp_path))
    with started(words) as process:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], 60)
        assert ready, "no run ended within a minute"
        os.killpg(process.pid, signal_number)  # as a terminal does: the engine's process gets it too
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; finished rows are kept" in err
    assert "not started" in err
    assert "Traceback" not in err
    complete = [
        path for path in run_dirs(tmp_path) if json.loads((path / "run.json").read_text())["status"] == "complete"
    ]
    assert 1 <= len(complete) < 40
    assert "TTFT p99" in out


def test_live_without_a_terminal_runs_headless_and_prints_the_summary(tmp_path: Path) -> None:
    done = kvtop("live", *NULL, "--seconds", "5", "--record", str(tmp_path / "run"))
    assert "TTFT p99" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["max_seconds"] == 5
