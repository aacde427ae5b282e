"""Benches in processes of their own, for tests: start one, and look at what it left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

KVTOP = (sys.executable, "-m", "kvtop")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def kvtop(*words: str, code: int = 0, timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
    """Run to the end, and expect ``code`` and no traceback."""
    done = subprocess.run(
        [*KVTOP, *words], capture_output=True, text=True, timeout=timeout_s, env=ENVIRONMENT, stdin=subprocess.DEVNULL
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@contextlib.contextmanager
def started(words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A bench in a process group of its own. What is left of it at the end is killed."""
    process = subprocess.Popen(
        [*KVTOP, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@contextlib.contextmanager
def held(process: subprocess.Popen[str], is_so: Callable[[], bool], limit_s: float = 60) -> Iterator[None]:
    """Stop the bench and all it has started once ``is_so``, which is still so inside: nothing goes on meanwhile.

    It is looked at while it stands still. What is signalled inside is received at the end, when it goes on.
    """
    deadline = time.monotonic() + limit_s
    while True:
        assert process.poll() is None, process.communicate()
        os.killpg(process.pid, signal.SIGSTOP)
        if is_so():
            break
        os.killpg(process.pid, signal.SIGCONT)
        assert time.monotonic() < deadline, f"nothing happened for {limit_s:g} s"
        time.sleep(0.05)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)


def run_dirs(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if (path / "run.json").exists()) if folder.is_dir() else []


def manifest(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "run.json").read_text())


def requests(run_dir: Path) -> pl.DataFrame:
    return pl.read_parquet(run_dir / "requests.parquet")


def write_trace(path: Path, rows: Sequence[tuple[int, int, int]]) -> Path:
    """A trace of (arrival in ms, prompt tokens, output tokens), no two prompts alike."""
    lines = [
        json.dumps({"timestamp": at, "input_length": prompt, "output_length": output, "hash_ids": [i]})
        for i, (at, prompt, output) in enumerate(rows)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path
