"""The engine in a process of its own: started, obeyed, killed, interrupted, read too slowly. None loads torch."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvtop.engine.errors import UsageError
from kvtop.engine.events import (
    Event,
    Keyframe,
    Notice,
    Pause,
    Paused,
    RequestEvent,
    RequestKeyframe,
    Resume,
    Resumed,
    RunEnded,
    RunStarted,
    Step,
    StepEvent,
)
from kvtop.results.recording import FRAMES_NAME, read_frames
from kvtop.run.session import RunSession
from kvtop.run.spec import RunSpec
from kvtop.state.model import RunState
from kvtop.state.reduce import reduce
from kvtop.workloads.spec import WorkloadSpec

LIMIT_S = 90.0


def spec(limit: int = 20, **values: object) -> RunSpec:
    values = {"executor": "null", "num_blocks": 64} | values
    return RunSpec(workload=WorkloadSpec(name="poisson-shared-prefix", limit=limit), **values)  # type: ignore[arg-type]


def poll_until(session: RunSession, wanted: Callable[[Event], bool], limit_s: float = LIMIT_S) -> list[Event]:
    """Every event up to the batch that holds a wanted one."""
    events: list[Event] = []
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        batch = session.poll(0.2)
        events += batch
        if any(map(wanted, batch)):
            return events
    raise AssertionError(f"not within {limit_s} s; last events: {events[-3:]}")


def poll_to_end(session: RunSession) -> list[Event]:
    events = poll_until(session, lambda e: isinstance(e, RunEnded))
    assert session.ended
    assert session.poll(0.0) == []
    assert [type(e) for e in events].count(RunEnded) == 1
    return events


def is_gone(pid: int) -> bool:
    """Neither running nor a zombie."""
    return not Path(f"/proc/{pid}").exists()


def test_a_whole_run_in_order() -> None:
    session = RunSession(spec())
    session.start()
    pid = session.pid
    events = poll_to_end(session)
    end = events[-1]
    assert isinstance(end, RunEnded)
    assert (end.status, end.error, end.exit_code) == ("complete", "", 0)
    kinds = [type(e) for e in events if not isinstance(e, Notice)]
    assert kinds[:2] == [RunStarted, Keyframe]
    finished = [e for e in events if isinstance(e, RequestEvent) and e.phase == "finished"]
    assert len(finished) == 20
    assert pid is not None
    assert is_gone(pid)


def test_the_null_executor_loads_no_torch() -> None:
    """What makes a simulated run start at once; checked from outside, in the process that runs it."""
    code = (
        "import sys, kvtop.run.child\n"
        "from kvtop.engine.worker import build_engine\n"
        "from kvtop.workloads.load import load_workload\n"
        "bad = {'torch', 'transformers', 'triton', 'textual'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_killed_in_the_middle_gives_one_failed_end() -> None:
    session = RunSession(spec(start_paused=True))
    session.start()
    poll_until(session, lambda e: isinstance(e, Paused))
    assert session.pid is not None
    os.kill(session.pid, signal.SIGKILL)
    end = poll_to_end(session)[-1]
    assert isinstance(end, RunEnded)
    assert (end.status, end.exit_code) == ("failed", 1)
    assert "signal 9" in end.error
    assert is_gone(session.pid)


def test_a_crash_in_native_code_is_told_with_its_stack() -> None:
    session = RunSession(spec(start_paused=True))
    session.start()
    poll_until(session, lambda e: isinstance(e, Paused))
    assert session.pid is not None
    os.kill(session.pid, signal.SIGSEGV)
    end = poll_to_end(session)[-1]
    assert isinstance(end, RunEnded)
    assert "SIGSEGV" in end.error
    assert "Segmentation fault" in end.traceback
    assert "kvtop/run/loop.py" in end.traceback


def test_what_libraries_print_never_reaches_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    session = RunSession(spec(start_paused=True))
    session.start()
    poll_until(session, lambda e: isinstance(e, Paused))
    for fd in (1, 2):
        with open(f"/proc/{session.pid}/fd/{fd}", "ab", buffering=0) as stream:
            stream.write(b"native \x1b[31mtext\x1b[0m on %d\n" % fd)
    texts: list[str] = []
    for fd in (1, 2):
        while not any("native" in text and f"on {fd}" in text for text in texts):
            events = poll_until(session, lambda e: isinstance(e, Notice))
            texts += [e.text for e in events if isinstance(e, Notice)]
    session.stop()
    assert all("\x1b" not in text for text in texts)
    assert capfd.readouterr() == ("", "")


def test_pause_step_resume_and_keyframe() -> None:
    session = RunSession(spec(start_paused=True))
    session.start()
    poll_until(session, lambda e: isinstance(e, Paused))
    session.send(Step(3))
    events = poll_until(session, lambda e: isinstance(e, StepEvent) and e.step == 2)
    events += session.poll(0.3)
    session.send(RequestKeyframe())
    events += poll_until(session, lambda e: isinstance(e, Keyframe))
    assert sum(isinstance(e, StepEvent) for e in events) == 3, "paused again"
    session.send(Resume())
    events = poll_to_end(session)
    assert any(isinstance(e, Resumed) for e in events)
    assert events[-1].status == "complete"  # type: ignore[union-attr]


def test_commands_sent_while_it_loads_are_not_lost() -> None:
    session = RunSession(spec(limit=200))
    session.start()
    session.send(Pause())
    poll_until(session, lambda e: isinstance(e, Paused))
    session.stop()


def test_stop_keeps_what_was_finished(tmp_path: Path) -> None:
    session = RunSession(spec(limit=200, run_dir=str(tmp_path / "run"), start_paused=True))
    session.start()
    poll_until(session, lambda e: isinstance(e, Paused))
    session.send(Step(60))
    poll_until(session, lambda e: isinstance(e, StepEvent) and e.step >= 59)
    session.stop()
    end = poll_to_end(session)[-1]
    assert isinstance(end, RunEnded)
    assert (end.status, end.exit_code) == ("interrupted", 130)
    from kvtop.results.load import open_run

    run = open_run(tmp_path / "run")
    assert run.manifest["status"] == "interrupted"
    statuses = run.requests.collect()["status"].to_list()
    assert {"ok", "cutoff"} == set(statuses)
    assert len(run.steps.collect()) == 60


def test_stop_while_loading_ends_at_once() -> None:
    session = RunSession(spec())
    session.start()
    session.stop()
    end = poll_to_end(session)[-1]
    assert isinstance(end, RunEnded)
    assert end.status in ("interrupted", "complete")  # a fast machine may be through before it reads the command
    assert session.pid is not None
    assert is_gone(session.pid)


def test_a_hung_process_is_killed_within_the_timeout() -> None:
    session = RunSession(spec(start_paused=True))
    session.start()
    poll_until(session, lambda e: isinstance(e, Paused))
    assert session.pid is not None
    os.kill(session.pid, signal.SIGSTOP)
    session.stop(timeout_s=0.5)  # it would wait for ever
    end = poll_to_end(session)[-1]
    assert isinstance(end, RunEnded)
    assert end.status == "failed"
    assert is_gone(session.pid)


def test_terminated_from_outside_is_an_interrupted_run() -> None:
    session = RunSession(spec(start_paused=True))
    session.start()
    poll_until(session, lambda e: isinstance(e, Paused))
    assert session.pid is not None
    os.kill(session.pid, signal.SIGTERM)
    end = poll_to_end(session)[-1]
    assert isinstance(end, RunEnded)
    assert end.status == "interrupted"


PARENT = """
import sys
from kvtop.engine.events import Paused
from kvtop.run.session import RunSession
from kvtop.run.spec import RunSpec
from kvtop.workloads.spec import WorkloadSpec

session = RunSession(RunSpec(workload=WorkloadSpec(name="poisson-shared-prefix"), executor="null", num_blocks=64,
                             run_dir=sys.argv[1], start_paused=True))
session.start()
while not any(isinstance(e, Paused) for e in session.poll(0.2)):
    pass
try:
    print(session.pid, flush=True)  # inside: the signal may come as soon as this is read
    while True:
        session.poll(0.2)
except KeyboardInterrupt:
    session.stop()
    print(session.poll()[-1].status, flush=True)
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Parents that a test has started: what is left of them is ended."""
    parents: list[subprocess.Popen[str]] = []
    yield parents
    for parent in parents:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()


def start_parent(started: list[subprocess.Popen[str]], run_dir: Path) -> tuple[subprocess.Popen[str], int]:
    """A parent in a process group of its own, as a terminal would have it, and the engine's pid."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(run_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    started.append(parent)
    return parent, int(parent.stdout.readline())


def wait_until(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def test_ctrl_c_goes_to_the_whole_group_and_the_run_ends_cleanly(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    parent, pid = start_parent(started, tmp_path / "run")
    os.killpg(parent.pid, signal.SIGINT)
    out, err = parent.communicate(timeout=LIMIT_S)
    assert out.split() == ["interrupted"]
    assert err == ""
    assert is_gone(pid)
    assert (tmp_path / "run" / "requests.parquet").exists()


def test_a_killed_parent_takes_the_engine_with_it_and_the_files_are_finished(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    parent, pid = start_parent(started, tmp_path / "run")
    parent.kill()
    parent.communicate(timeout=LIMIT_S)
    assert wait_until(lambda: is_gone(pid))
    from kvtop.results.load import open_run

    assert open_run(tmp_path / "run").manifest["status"] == "interrupted"


def num_steps_kept(run_dir: Path) -> int:
    return sum(isinstance(event, StepEvent) for batch in read_frames(run_dir / FRAMES_NAME) for event in batch)


def test_both_killed_leave_a_run_that_the_next_reader_finishes(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    session = RunSession(spec(limit=200, run_dir=str(run_dir), start_paused=True))
    session.start()
    poll_until(session, lambda e: isinstance(e, Paused))
    session.send(Step(60))
    poll_until(session, lambda e: isinstance(e, StepEvent) and e.step >= 59)
    assert session.pid is not None
    assert wait_until(lambda: num_steps_kept(run_dir) == 60)  # a killed process may lose the last half second
    os.kill(session.pid, signal.SIGKILL)
    poll_to_end(session)
    assert not (run_dir / "requests.parquet").exists()
    from kvtop.results.load import open_run

    run = open_run(run_dir)
    assert run.manifest["status"] == "interrupted"
    assert len(run.steps.collect()) == 60
    assert "ok" in run.requests.collect()["status"].to_list()


def test_a_session_that_is_forgotten_leaves_no_process() -> None:
    session = RunSession(spec(start_paused=True))
    session.start()
    poll_until(session, lambda e: isinstance(e, Paused))
    pid = session.pid
    assert pid is not None
    del session
    assert wait_until(lambda: is_gone(pid))


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ({"engine": {"policy": "fcfz"}}, "did you mean 'fcfs'"),
        ({"engine": {"block_siez": 4}}, "block_size"),
        ({"executor": "nul"}, "did you mean 'null'"),
        ({"workload": WorkloadSpec(name="poisson-shard-prefix")}, "poisson-shared-prefix"),
    ],
)
def test_a_wrong_name_is_one_line_and_exit_code_2(values: dict[str, object], hint: str) -> None:
    base = {"workload": WorkloadSpec(name="poisson-shared-prefix"), "executor": "null"}
    session = RunSession(RunSpec(**(base | values)))  # type: ignore[arg-type]
    session.start()
    end = poll_to_end(session)[-1]
    assert isinstance(end, RunEnded)
    assert (end.status, end.exit_code, end.traceback) == ("failed", 2, "")
    assert hint in end.error
    assert "\n" not in end.error


def test_a_file_in_place_of_the_run_directory_is_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    session = RunSession(spec(run_dir=str(tmp_path / "taken" / "run")))
    with pytest.raises(UsageError, match="taken: is a file, expected a directory"):
        session.start()
    assert session.pid is None


def test_slow_and_fast_readers_fold_the_same_state() -> None:
    """Virtual time waits for its reader: nothing is dropped, however slow it is."""
    states = []
    for pause_s in (0.0, 0.05):
        session = RunSession(spec(limit=60))
        session.start()
        state = RunState()
        while not session.ended:
            for event in session.poll(0.2):
                reduce(state, event)
            time.sleep(pause_s)
        states.append(state)
    fast, slow = states
    assert fast.num_finished == slow.num_finished == 60
    assert fast.events_dropped == slow.events_dropped == 0
    assert fast.pool.owners == slow.pool.owners
    assert fast.totals == slow.totals


FULL_DISK = """
import resource, sys
from kvtop.engine.events import RunEnded
from kvtop.run.session import RunSession
from kvtop.run.spec import RunSpec
from kvtop.workloads.spec import WorkloadSpec

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # every file of the engine's process: as a full disk
session = RunSession(RunSpec(workload=WorkloadSpec(name="poisson-shared-prefix"), executor="null", run_dir=sys.argv[1]))
session.start()
while not session.ended:
    end = session.poll(0.5)[-1:]
print(end[0].status, end[0].exit_code, repr(end[0].traceback), end[0].error, sep="|")
"""


def test_a_full_disk_ends_the_run_with_one_line_and_keeps_the_recording(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(run_dir)], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.stderr == ""
    status, code, trace, error = done.stdout.strip().split("|")
    assert (status, code, trace) == ("failed", "1", "''")
    assert error == f"{run_dir}/frames.msgpack.zst: recording stopped: the file would exceed the size limit"
    from kvtop.results.load import open_run

    assert open_run(run_dir).requests.collect().height > 50
