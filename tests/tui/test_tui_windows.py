"""Windows, as far as it can be seen from here: everything can be imported, and what cannot work says so in one line."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from kvtop.engine.errors import KvtopError
from kvtop.run.session import RunSession
from kvtop.run.spec import RunSpec
from kvtop.tui.suspend import suspend_on_signals
from kvtop.tui.terminal import exit_on_signals
from kvtop.workloads.spec import WorkloadSpec

IMPORT_ALL = """
import builtins, importlib, json, os, signal, sys
from pathlib import Path

MISSING = {"fcntl", "termios", "tty", "pty", "resource", "grp", "pwd", "syslog", "posix", "_posixsubprocess"}
plain_import = builtins.__import__

def import_there(name, globals=None, locals=None, fromlist=(), level=0):
    # Libraries have wheels of their own for Windows: only what kvtop asks for is refused.
    if level == 0 and name in MISSING and (globals or {}).get("__name__", "").startswith("kvtop"):
        raise ImportError(f"No module named {name!r}")
    return plain_import(name, globals, locals, fromlist, level)

builtins.__import__ = import_there
for name in ("SIGHUP", "SIGTSTP", "SIGCONT", "SIGSTOP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCHLD"):
    delattr(signal, name)

import kvtop
root, names, failed = Path(kvtop.__file__).parent, [], []
for folder, _, files in os.walk(root, followlinks=True):
    for file in files:
        if file.endswith(".py") and file not in ("__init__.py", "__main__.py"):
            names.append(".".join(("kvtop", *Path(folder, file).relative_to(root).with_suffix("").parts)))
for name in sorted(names):
    try:
        importlib.import_module(name)
    except Exception as error:
        failed.append(f"{name}: {type(error).__name__}: {error}")
print(json.dumps([names, failed]))
"""


def test_all_of_kvtop_is_imported_without_what_windows_does_not_have():
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=True, timeout=100)
    names, failed = json.loads(done.stdout.splitlines()[-1])
    assert failed == []
    assert {"kvtop.tui.app", "kvtop.results.recording", "kvtop.run.child", "kvtop.engine.worker"} <= set(names)


async def test_a_loop_without_signals_is_no_reason_to_stop(monkeypatch):
    def refuse(number: int, callback: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", refuse)
    monkeypatch.delattr(signal, "SIGHUP")
    monkeypatch.delattr(signal, "SIGTSTP")
    looked: list[float] = []
    driver = SimpleNamespace(can_suspend=True)
    app = SimpleNamespace(set_interval=lambda every_s, _: looked.append(every_s), exit=None, _driver=driver)
    exit_on_signals(app)  # type: ignore[arg-type]
    suspend_on_signals(app)  # type: ignore[arg-type]
    assert len(looked) == 1  # the terminal itself is still asked


def test_the_engine_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    session = RunSession(RunSpec(workload=WorkloadSpec(name="default"), executor="null"))
    with pytest.raises(KvtopError, match="run kvtop in WSL"):
        session.start()
