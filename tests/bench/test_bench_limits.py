"""Benches where something is short: no terminal, no disk, no time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bench_process import ENVIRONMENT, kvtop, manifest, requests, run_dirs, write_trace

NULL = ("--executor", "null", "--num-blocks", "64", "--max-num-seqs", "1")


def shell(script: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run ``kvtop WORDS`` where the script says "$@"."""
    return subprocess.run(
        ["sh", "-c", script, "sh", sys.executable, "-m", "kvtop", *words],
        capture_output=True,
        text=True,
        timeout=100,
        env=ENVIRONMENT | more,
    )


def test_without_a_terminal_there_are_no_escapes_and_nothing_is_drawn(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace.jsonl", [(0, 16, 50)] * 20)
    words = ("bench", "-w", str(trace), *NULL, "-o", str(tmp_path / "out"))
    script = f'"$@" < /dev/null > {tmp_path / "stdout"} 2> {tmp_path / "stderr"} <&-'
    done = shell(script, *words, TERM="dumb")
    assert done.returncode == 0
    out, err = ((tmp_path / name).read_bytes() for name in ("stdout", "stderr"))
    assert b"20/20 ok" in out
    assert b"\x1b" not in out + err
    assert b"\r" not in out + err
    assert err.count(b"\n") <= 4, "a line every five seconds at most"


def test_a_full_disk_is_one_line_and_earlier_runs_stay(tmp_path: Path) -> None:
    """A limit on the size of a file stands for the full disk: the same errors, without a file system of its own."""
    trace = write_trace(tmp_path / "trace.jsonl", [(0, 16, 60)] * 60)
    words = ("bench", "-w", str(trace), *NULL, "-o", str(tmp_path / "out"))
    kvtop(*words)
    (before,) = run_dirs(tmp_path / "out")
    content = {path.name: path.read_bytes() for path in before.iterdir()}
    done = shell('ulimit -f 32; "$@"', *words, "-p", "lpm", "-p", "fcfs", "--resume")  # of 512 bytes
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if "failed" in line]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("kvtop: lpm trace.jsonl: failed: ")
    assert "the file would exceed the size limit" in lines[0]
    assert "Traceback" not in done.stderr
    assert {path.name: path.read_bytes() for path in before.iterdir()} == content
    assert "fcfs trace.jsonl: kept, 60/60 ok" in done.stdout, "the others go on"
    kvtop(*words, "-p", "lpm", "-p", "fcfs", "--resume")
    assert [manifest(path)["status"] for path in run_dirs(tmp_path / "out")] == ["complete", "complete"]


def test_a_bound_on_the_time_holds_and_the_backlog_is_told(tmp_path: Path) -> None:
    """Ten requests of 0.5 s arrive each second, one runs at a time: two a second are served."""
    trace = write_trace(tmp_path / "trace.jsonl", [(100 * i, 16, 50) for i in range(200)])
    done = kvtop("bench", "-w", str(trace), *NULL, "--max-seconds", "10", "-o", str(tmp_path / "out"))
    (run_dir,) = run_dirs(tmp_path / "out")
    table = requests(run_dir)
    counts = dict(table["status"].value_counts().iter_rows())
    assert counts == {"ok": 20, "cutoff": table.height - 20}
    assert table["t_done_ns"].max() <= 10.01e9  # type: ignore[operator]
    assert table["t_submit_ns"].max() <= 10e9  # type: ignore[operator]
    assert manifest(run_dir)["max_seconds"] == 10
    sent = 100  # in the first ten seconds, at 0, 100, ... 9,900 ms
    assert table.height in (sent, sent + 1)
    assert f"backlog at the end: {table.height - 20} cut off and {200 - table.height} not yet sent" in done.stdout


@pytest.mark.slow
def test_a_bound_on_the_time_of_a_real_model_holds_on_the_wall_clock(tmp_path: Path) -> None:
    import time

    words = ("bench", "-w", "azure-conv", "-m", "tiny", "--time-scale", "0", "--device", "cpu", "--num-blocks", "2000")
    started = time.monotonic()
    done = kvtop(*words, "--max-seconds", "3", "-o", str(tmp_path / "out"))
    assert time.monotonic() - started < 60
    assert "backlog at the end: " in done.stdout
    (run_dir,) = run_dirs(tmp_path / "out")
    assert manifest(run_dir)["window_end_ns"] < 10e9
