"""A bench that is interrupted or killed, and resumed: nothing is lost, nothing is there twice, nothing half."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from bench_process import held, kvtop, manifest, requests, run_dirs, started, write_trace
from made_runs import simple_run

from kvtop.bench import plan_points
from kvtop.engine.errors import UsageError
from kvtop.engine.events import RequestEvent
from kvtop.results.recording import FRAMES_NAME, FrameWriter, read_frames
from kvtop.results.rundir import is_complete, run_dir_name
from kvtop.run.spec import RunSpec
from kvtop.workloads.spec import WorkloadSpec

REQUESTS = 160
LENGTHS = [80 + i % 40 for i in range(REQUESTS)]  # one at a time: 16,000 steps, a second or two


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    trace = write_trace(tmp_path / "trace.jsonl", [(0, 16, output) for output in LENGTHS])
    bench = ["bench", "-w", str(trace), "--executor", "null", "--max-num-seqs", "1", "--num-blocks", "32"]
    return [*bench, "-p", "fcfs", "-p", "sjf", "-o", str(tmp_path / "out")]


def share_done(out: Path) -> float:
    """Of the run under way: finished requests in its recording."""
    for run_dir in run_dirs(out):
        if manifest(run_dir)["status"] == "running" and (run_dir / FRAMES_NAME).exists():
            events = (event for batch in read_frames(run_dir / FRAMES_NAME) for event in batch)
            return sum(isinstance(e, RequestEvent) and e.phase == "finished" for e in events) / REQUESTS
    return 0.0


def child_of(process: subprocess.Popen[str]) -> psutil.Process:
    (child,) = psutil.Process(process.pid).children()
    return child


def test_interrupted_killed_and_resumed_every_request_is_there_once(tmp_path: Path, words: list[str]) -> None:
    out = tmp_path / "out"
    with started(words) as process:
        with held(process, lambda: share_done(out) >= 0.3):
            os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; finished rows are kept" in err
    (last,) = [run_dir for run_dir in run_dirs(out) if manifest(run_dir)["status"] == "interrupted"]
    done = requests(last).filter(status="ok").height
    assert 0.3 * REQUESTS <= done < REQUESTS

    with started([*words, "--force"]) as process:
        with held(process, lambda: share_done(out) > 0):
            child_of(process).kill()
        with held(process, lambda: len(run_dirs(out)) == 2 and share_done(out) > 0):  # the other point goes on
            child = child_of(process)
            process.kill()
        process.wait(60)
        assert not any(is_complete(run_dir) for run_dir in run_dirs(out))
        done_text = kvtop(*words, "--resume").stdout  # waits for the child that outlived its parent
        assert not child.is_running()
    assert done_text.count(f"complete, {REQUESTS}/{REQUESTS} ok") == 2
    assert len(run_dirs(out)) == 2
    for run_dir in run_dirs(out):
        table = requests(run_dir).sort("req_index")
        assert manifest(run_dir)["status"] == "complete"
        assert table["req_index"].to_list() == list(range(REQUESTS))
        assert table["output_tokens"].to_list() == LENGTHS, "as many tokens as were recorded, whatever the default is"
        assert not list(run_dir.glob(".*")), "no temporary file is left"


# -- what counts as there --------------------------------------------------------------------------------------------


def point(name: str = "default", **values: object) -> RunSpec:
    return RunSpec(workload=WorkloadSpec(name=name), executor="null", **values)  # type: ignore[arg-type]


def kept(spec: RunSpec, out: Path) -> bool:
    ((_, is_kept),) = plan_points([spec], out, resume=True, force=False)
    return is_kept


@pytest.mark.parametrize("table", ["requests.parquet", "steps.parquet", "events.parquet"])
def test_half_a_table_is_no_run(tmp_path: Path, table: str) -> None:
    run_dir = simple_run(tmp_path / run_dir_name(point()))
    assert kept(point(), tmp_path)
    whole = (run_dir / table).read_bytes()
    (run_dir / table).write_bytes(whole[: len(whole) // 2])
    assert not kept(point(), tmp_path)
    (run_dir / table).write_bytes(b"")
    assert not kept(point(), tmp_path)
    (run_dir / table).unlink()
    assert not kept(point(), tmp_path)
    (run_dir / table).write_bytes(whole)
    assert kept(point(), tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"status": "running"}', '{"status": "interrupted"}', "{}"])
def test_a_run_that_does_not_say_that_it_is_complete_is_not(tmp_path: Path, text: str) -> None:
    run_dir = simple_run(tmp_path / run_dir_name(point()))
    (run_dir / "run.json").write_text(text)
    assert not kept(point(), tmp_path)


def test_a_point_is_named_by_the_content_of_its_trace(tmp_path: Path) -> None:
    rows = [(0, 16, 4), (10, 16, 4)]
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_trace(tmp_path / folder / "trace.jsonl", rows)
    first, second = (point(str(tmp_path / folder / "trace.jsonl")) for folder in "ab")
    assert run_dir_name(first) == run_dir_name(second)
    before = run_dir_name(first)
    write_trace(tmp_path / "a" / "trace.jsonl", [*rows, (20, 16, 4)])
    assert run_dir_name(first) != before
    assert run_dir_name(second) == before


def test_a_point_is_named_by_the_content_of_its_workload_spec_and_the_trace_in_it(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.jsonl", [(0, 16, 4)])
    (tmp_path / "w.toml").write_text('kind = "trace"\npath = "trace.jsonl"\n')
    shutil.copytree(tmp_path, tmp_path / "copy")
    spec, copied = point(str(tmp_path / "w.toml")), point(str(tmp_path / "copy" / "w.toml"))
    name = run_dir_name(spec)
    assert run_dir_name(copied) == name
    (tmp_path / "w.toml").write_text('kind = "trace"\npath = "trace.jsonl"\nlimit = 1\n')
    assert run_dir_name(spec) != name
    write_trace(tmp_path / "copy" / "trace.jsonl", [(0, 16, 5)])
    assert run_dir_name(copied) != name


def test_a_run_that_is_being_written_by_another_bench_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtop.bench.points.ORPHAN_S", 0.2)
    run_dir = tmp_path / run_dir_name(point())
    run_dir.mkdir()
    with (
        FrameWriter(run_dir / FRAMES_NAME),
        pytest.raises(UsageError, match="another run is being written here"),
    ):
        plan_points([point()], tmp_path, resume=True, force=False)
    assert not kept(point(), tmp_path)
