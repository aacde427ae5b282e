"""`kvtop why RUN REQUEST`: text, JSON, and one line for every mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from why_engine import Scenario, record, tokens

from kvtop.cli.main import main


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A bench directory with one run: a, b that waits for it, c with two branches, and one rejected."""
    scenario = Scenario(5)
    scenario.submit("a", tokens(9, 1), 9)
    scenario.submit("b", tokens(12, 2), 2)
    scenario.submit("c", tokens(6, 3), 2, n=2)
    with pytest.raises(Exception, match="at most 20"):
        scenario.submit("long", tokens(64, 4))
    scenario.finish()
    scenario.events += scenario.engine.recorder.drain()
    record(tmp_path / "bench" / "one", scenario.events, scenario.run)
    return tmp_path / "bench"


def test_the_text_has_time_step_and_words_and_no_escape_codes(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", str(run_dir / "one"), "b"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    lines = out.splitlines()
    assert lines[0].startswith("request b  (made, ")
    assert "simulated time" in lines[0]
    assert "0.000 s     0  arrived: 12 prompt tokens, up to 2 tokens to come" in lines
    assert "0.000 s     0  waited 90.0 ms (9 steps): no room: 3 blocks needed, 2 were available" in out
    assert lines[-1] == "0.110 s    10  ended with all 2 tokens it asked for, E2E 110 ms"


def test_a_directory_with_one_run_will_do(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", str(run_dir), "b"]) == 0
    direct = capsys.readouterr().out
    assert main(["why", str(run_dir / "one"), "b"]) == 0
    assert capsys.readouterr().out == direct


def test_json_has_the_same_lines_with_their_numbers(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    assert main(["why", str(run_dir), "b", "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert (found["name"], found["clock"], found["request"]["prompt_tokens"]) == ("b", "virtual", 12)
    waited = next(line for line in found["lines"] if line["kind"] == "waited")
    assert waited["sequence"] == "b"
    assert waited["stretches"][0] == {
        "reason": "no_blocks", "other": "a", "first_step": 0, "num_steps": 9, "wait_ns": 90_000_000,
        "need": 3, "have": 2, "held_by_other": 3,
    }  # fmt: skip


def test_branches_are_named_in_the_text_and_can_be_asked_for(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", str(run_dir), "c"]) == 0
    assert "  c#1  decode: 1 token" in capsys.readouterr().out
    assert main(["why", str(run_dir), "c#1"]) == 0
    assert "branches off c, with 1 token of output so far" in capsys.readouterr().out


def test_a_rejected_request(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", str(run_dir), "long"]) == 0
    assert "rejected at submission: 64 prompt tokens, at most 20 are served" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{bench}", "cc"], "no request 'cc' among its 4; did you mean 'c'?"),
        (["{bench}", "c#7"], "no request 'c#7' among its 4"),
        (["{bench}/nothing", "a"], "does not exist, expected a run directory"),
        (["{bench}/one/run.json", "a"], "is a file, expected a run directory"),
        (["{bench}/two", "a"], "is not a run"),
        (["{bench}"], "the following arguments are required: REQUEST"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(
    run_dir: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    (run_dir / "two").mkdir()
    assert main(["why", *(word.format(bench=run_dir) for word in words)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_several_runs_are_listed(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run_dir / "one").rename(run_dir / "first")
    (run_dir / "second").mkdir()
    for file in (run_dir / "first").iterdir():
        (run_dir / "second" / file.name).write_bytes(file.read_bytes())
    assert main(["why", str(run_dir), "a"]) == 2
    assert "holds 2 runs, expected one; name it: first, second" in capsys.readouterr().err


def test_a_broken_table_is_one_line(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run_dir / "one" / "events.parquet").write_bytes(b"nothing")
    assert main(["why", str(run_dir), "a"]) == 1
    err = capsys.readouterr().err
    assert "a table cannot be read" in err
    assert err.count("\n") == 1


def test_explaining_needs_neither_polars_nor_torch() -> None:
    code = (
        "import sys, kvtop.why, kvtop.cli.why; "
        "sys.exit(sum(name in sys.modules for name in ('polars', 'torch', 'transformers', 'textual')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
