"""One state as JSON and as text, and a run in plain lines: the numbers are those of the fold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvtop.cli.main import main
from kvtop.cli.plain import run_plain
from kvtop.engine.events import Event, RunEnded, RunStarted, Sample, StepEvent
from kvtop.results.recording import FRAMES_NAME, FrameWriter, read_frames
from kvtop.run.recorded import RecordedSession
from kvtop.state.model import FRESH, IDLE, USED, RunState
from kvtop.state.numbers import NUMBERS, read_all
from kvtop.state.reduce import reduce

FRAMES = Path(__file__).parents[1] / "tui" / "data" / "frames.msgpack.zst"


def at_step(step: int) -> RunState:
    state = RunState()
    for event in (event for events in read_frames(FRAMES) for event in events):
        if isinstance(event, StepEvent) and event.step > step:
            break
        reduce(state, event)
    return state


def test_the_json_of_a_step_is_that_of_the_fold_up_to_it(capsys):
    assert main(["once", str(FRAMES), "--step", "300", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    state = at_step(300)
    assert state.pool is not None
    numbers = found["numbers"]
    assert found["step"] == 300
    assert found["simulated"] is True
    assert numbers == json.loads(json.dumps(read_all(state)))
    assert [numbers[f"pool.{name}_blocks"] for name in ("fresh", "idle", "used")] == [
        state.pool.counts[which] for which in (FRESH, IDLE, USED)
    ]
    assert sum(row["count"] for row in found["waiting"]) == sum(s.state != "running" for s in state.sequences.values())
    assert found["holders"][0]["block_ns"] == max(s.block_ns(state.t_ns) for s in state.sequences.values())


def test_every_number_has_a_definition_and_is_never_nan():
    for state in (RunState(), at_step(0), at_step(400)):
        for number in NUMBERS.values():
            value = number.read(state)
            assert value is None or value == value
            assert number.formula
            assert number.window


def test_the_text_names_every_number(capsys):
    assert main(["once", str(FRAMES)]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in NUMBERS)
    assert "simulated" in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([str(FRAMES), "--step", "99999"], f"--step 99999: {FRAMES} has steps"),
        ([str(FRAMES), "127.0.0.1:1"], "a recorded run and a server; expected one run, or servers"),
        ([str(FRAMES), str(FRAMES)], "2 recorded runs; expected one, or servers"),
    ],
)
def test_what_is_not_there_is_not_shown(words, told, capsys):
    assert main(["once", *words]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert told in err


@pytest.mark.parametrize(
    ("steps", "step", "told"),
    [((5, 6), 3, "begins with step 5"), ((5, 6), 7, "has steps 5 to 6"), ((), 0, "has no steps")],
)
def test_a_step_that_a_recording_lacks_is_answered_with_those_it_has(steps, step, told, tmp_path, capsys):
    looks = [Sample(step=number, t_ns=number, server="http://a:1") for number in steps]
    with FrameWriter(tmp_path / FRAMES_NAME) as writer:
        writer.write([RunStarted(run_id="x", manifest={"executor": "attached"}), *looks])
        writer.finish()
    path = tmp_path / FRAMES_NAME
    assert main(["once", str(path), "--step", str(step)]) == 2
    assert capsys.readouterr().err == f"kvtop: --step {step}: {path} {told}\n"


def test_several_servers_are_shown_together(capsys):
    servers = ["127.0.0.1:1", "127.0.0.1:2"]  # nobody listens there
    assert main(["once", *servers, "--json", "--interval", "0.1", "--timeout", "0.2"]) == 1
    found = json.loads(capsys.readouterr().out)["attached"]["servers"]
    assert [server["server"] for server in found] == [f"http://{server}" for server in servers]


def test_a_step_without_a_run_is_a_usage_error(capsys):
    assert main(["once", "--step", "3"]) == 2
    assert "name the run" in capsys.readouterr().err


def test_a_workload_is_served_for_a_while(capsys):
    words = ["--executor", "null", "--limit", "5", "--num-blocks", "128", "--seconds", "30", "--json"]
    assert main(["once", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == "complete"
    assert found["run"]["num_blocks"] == 128
    assert found["numbers"]["pool.num_blocks"] == 128


class Failing(RecordedSession):
    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        self.ended = True
        return [RunEnded(t_ns=0, status="failed", error="boom", exit_code=3)]


@pytest.mark.parametrize(("session", "code", "last"), [(RecordedSession, 0, "interrupted"), (Failing, 3, "boom")])
def test_plain_lines_end_with_how_it_ended(session, code, last):
    lines: list[str] = []
    assert run_plain(session(FRAMES), lines.append) == code
    assert last in lines[-1]
    assert all("\x1b" not in line and "\n" not in line for line in lines)
