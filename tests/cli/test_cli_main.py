"""Dispatch, exit codes and one-line errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvtop.cli import main as cli
from kvtop.cli.main import main
from kvtop.cli.registry import COMMANDS
from kvtop.engine.errors import KvtopError, UsageError


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_a_description(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: kvtop {name}")
    assert max(map(len, text.splitlines())) <= 120


def test_help_of_a_command_by_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "calc"]) == 0
    assert capsys.readouterr().out.startswith("usage: kvtop calc")


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("kvtop 0.")


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bensh"]) == 2
    assert "unknown command 'bensh'; did you mean 'bench'?" in capsys.readouterr().err


def test_an_unknown_option_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "-w", "x", "-o", "y", "--polcy", "fcfs"]) == 2
    assert "unknown option '--polcy'; did you mean --policy?" in capsys.readouterr().err


def test_options_without_a_command_are_those_of_live(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--num-blocks", "0"]) == 2
    assert "kvtop live --help" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("wrong"), 2, "kvtop: wrong\n"),
        (KvtopError("measured\nand failed"), 1, "kvtop: measured and failed\n"),
        (KvtopError("a\x1b[31m.csv\x07: no such file"), 1, "kvtop: a?[31m.csv?: no such file\n"),
        (OSError(28, "No space left on device", "out/run.json"), 1, "kvtop: out/run.json: No space left on device\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_outcomes_become_exit_codes_and_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, line: str
) -> None:
    def fail(words: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "_dispatch", fail)
    assert main([]) == code
    assert capsys.readouterr().err == line


def test_a_bug_is_one_line_and_a_traceback_only_when_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(words: list[str]) -> int:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(cli, "_dispatch", fail)
    monkeypatch.delenv("KVTOP_DEBUG", raising=False)
    assert main([]) == cli.EXIT_BUG
    assert "internal error: ZeroDivisionError: oops" in capsys.readouterr().err
    monkeypatch.setenv("KVTOP_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main([])


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_reason_to_fail(tmp_path: Path, closed: str) -> None:
    words = f"-m kvtop bench -w poisson-shared-prefix --executor null --limit 3 -o {tmp_path / 'out'} {closed}"
    shell = ["sh", "-c", f'"$0" {words}', sys.executable]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    (run_dir,) = (path for path in (tmp_path / "out").iterdir() if path.is_dir())
    assert (run_dir / "requests.parquet").exists()


@pytest.mark.parametrize("name", ["policies", "models", "workloads"])
def test_listings_also_come_as_json(capsys: pytest.CaptureFixture[str], name: str) -> None:
    import json

    assert main([name]) == 0
    assert capsys.readouterr().out.strip()
    assert main([name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_policies_lists_what_the_engine_has(capsys: pytest.CaptureFixture[str]) -> None:
    from kvtop.engine.config import ALLOCATORS
    from kvtop.engine.policies.registry import eviction_policies, queue_policies

    assert main(["policies"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in [*queue_policies(), *eviction_policies(), *ALLOCATORS])
