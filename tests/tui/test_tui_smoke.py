"""What ``make run`` starts, whole: command line, engine in a process of its own, screen, keys, end."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from pseudo_terminal import RESTORED, PseudoTerminal

WORKLOAD = ("-w", "mooncake-conversation", "--length-scale", "0.0625", "--limit", "10", "--num-blocks", "256")


@contextmanager
def kvtop(*words: str) -> Iterator[PseudoTerminal]:
    command = [sys.executable, "-m", "kvtop", *words, *WORKLOAD]
    with closing(PseudoTerminal(command, OMP_NUM_THREADS="1")) as screen:
        yield screen


def status(run_dir: Path) -> str:
    return json.loads((run_dir / "run.json").read_text())["status"]


@pytest.mark.parametrize("executor", [("--executor", "null"), ("-m", "tiny", "--device", "cpu")], ids=["null", "tiny"])
def test_the_pool_is_shown_stepped_resumed_and_left_in_order(tmp_path: Path, executor: tuple[str, ...]) -> None:
    with kvtop("live", "--paused", *executor, "--record", str(tmp_path / "run")) as screen:
        screen.wait_for("paused   step 0", timeout_s=90.0)
        screen.wait_for("256 blocks of 16 tokens")
        screen.press(b"2")
        screen.wait_for("0 . . . . .")
        screen.press(b"n")
        # "r0" holds the block under the cursor, which stands on the first one.
        screen.wait_for("r0", "paused", re.compile("^ +0 [▪2-9]"))
        screen.press(b"?")
        screen.wait_for("Esc  close")
        screen.press(b"?")
        screen.press(b"4")
        screen.wait_for("who runs, who waits")
        screen.press(b"p")
        screen.wait_for("complete", timeout_s=90.0)
        screen.press(b"q")
        assert screen.wait() == 0
        assert all(code in screen.output for code in RESTORED)
        assert b"Traceback" not in screen.output
    assert status(tmp_path / "run") in ("complete", "interrupted")
    assert (tmp_path / "run" / "requests.parquet").exists()


def test_a_run_goes_to_its_end_and_stays_on_the_screen(tmp_path: Path) -> None:
    with kvtop("--executor", "null", "--record", str(tmp_path / "run")) as screen:
        screen.wait_for("complete")
        screen.press(b"8")
        screen.wait_for("END")
        screen.press(b"q")
        assert screen.wait() == 0
    assert status(tmp_path / "run") == "complete"
