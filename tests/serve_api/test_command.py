"""`kvtop serve-api` as it is typed: with and without a screen, stopped by signals."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from loopback import free_port  # pyright: ignore[reportMissingImports]

from kvtop.cli.main import main

sys.path.insert(0, str(Path(__file__).parents[1] / "tui"))

from pseudo_terminal import RESTORED, PseudoTerminal  # pyright: ignore[reportMissingImports]

COMMAND = [sys.executable, "-m", "kvtop", "serve-api", "--executor", "null", "--num-blocks", "64"]
BODY = {"prompt": [1, 2, 3], "max_tokens": 5}


@contextmanager
def killed(process: subprocess.Popen[str]) -> Iterator[None]:
    """Not waited for for ever where a test fails before its end."""
    try:
        yield
    finally:
        process.kill()


def is_healthy(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/health").status_code == 200
    except httpx2.TransportError:  # nobody listens there yet
        return False


def test_it_says_where_it_serves_and_ends_with_0_when_it_is_told_to() -> None:
    with subprocess.Popen([*COMMAND, "--port", "0"], stderr=subprocess.PIPE, text=True) as process, killed(process):
        assert process.stderr is not None
        told = ""
        while (url := re.search(r"http://127\.0\.0\.1:\d+/v1", told)) is None:
            line = process.stderr.readline()
            assert line, told
            told += line
        assert httpx2.post(f"{url[0]}/completions", json=BODY).json()["usage"]["completion_tokens"] == 5
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        told += process.stderr.read()
        assert "there is no tokenizer" in told
        assert "serving no model (executor null) as none at http" in told


def test_the_screen_shows_what_clients_do_and_gives_the_terminal_back() -> None:
    port = free_port()
    terminal = PseudoTerminal([*COMMAND, "--port", str(port), "--tui"])
    try:
        terminal.wait_for("64")
        deadline_s = time.monotonic() + 60
        while not is_healthy(port):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        answer = httpx2.post(f"http://127.0.0.1:{port}/v1/completions", json=BODY | {"max_tokens": 40}).json()
        assert answer["usage"]["completion_tokens"] == 40
        terminal.wait_for("step 39")  # the first one is 0
        terminal.press(b"q")
        assert terminal.wait() == 0
        assert all(sequence in terminal.output for sequence in RESTORED)
    finally:
        terminal.close()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port", "70000"], "'70000' is no port (expected 0 to 65535)"),
        (["--max-concurrency", "0"], "'0' is out of range (expected a whole number >= 1)"),
        (["--eviction", "belady"], "nobody knows what clients will send"),
        (["--executor", "nul"], "did you mean 'null'?"),
        (["--record-workload", "/nowhere/x.jsonl", "--executor", "null"], "/nowhere"),
        (["--host", "256.1.1.1", "--executor", "null"], "cannot listen on 256.1.1.1:8000"),
    ],
)
def test_options_that_cannot_work_are_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["serve-api", *words])
    told = capsys.readouterr().err
    assert message in told
    assert (code, told.count("\n")) in ((2, 1), (1, 1))
