"""A session with attached servers in kvtop's own files, as any other run: ``run.json`` and ``frames.msgpack.zst``.

They are written by a thread of its own: a disk that takes its time holds up neither the screen nor a line.
"""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Any

from kvtop.engine.errors import KvtopError
from kvtop.engine.events import Event, RunEnded
from kvtop.results.manifest import MANIFEST_KEYS, RUNNING, environment, write_manifest
from kvtop.results.recording import FRAMES_NAME, FrameWriter
from kvtop.results.rundir import prepare_run_dir
from kvtop.results.versions import DEFINITIONS_VERSION, RESULTS_SCHEMA_VERSION

MOST_WAITING = 20_000  # events: a quarter of an hour of a busy server's


class Recorder:
    """Appends events in the order in which they are handed over. What a killed process has written so far can be
    replayed.

    Raises:
        UsageError: the directory cannot be used, or holds a recording already.
        FileError: the file cannot be written.
    """

    def __init__(self, run_dir: Path, manifest: dict[str, Any]) -> None:
        self.path = prepare_run_dir(run_dir)
        known = {
            **environment(),
            **manifest,
            "status": RUNNING,
            "definitions_version": DEFINITIONS_VERSION,
            "schema_version": RESULTS_SCHEMA_VERSION,
        }
        self._manifest = {key: known.get(key) for key in MANIFEST_KEYS} | known
        write_manifest(self.path, self._manifest)
        self._writer = FrameWriter(self.path / FRAMES_NAME)
        self._waiting: queue.SimpleQueue[tuple[list[Event], dict[str, Any]] | None] = queue.SimpleQueue()
        self._error = ""  # why nothing is written any more, until it has been told
        self._is_given_up = False  # and that has been told
        self._num_given = 0  # events; only the caller changes it
        self._num_written = 0  # only the thread does
        self._thread = threading.Thread(target=self._run, daemon=True, name="kvtop-record")
        self._thread.start()

    def write(self, events: list[Event], facts: dict[str, Any]) -> str:
        """Hand over ``events``, which nobody changes any more; nothing is waited for. ``facts`` go to run.json at the
        end. Returns "" or, once, why nothing is recorded from now on: of a disk that is so slow that more than
        ``MOST_WAITING`` events wait for it, what waits is written still."""
        if self._is_given_up or not self._thread.is_alive():
            return self.news()
        if (num_waiting := self._num_given - self._num_written) > MOST_WAITING:
            self._waiting.put(None)
            return self._give_up(f"recording stopped: the disk is too slow, {num_waiting:,} events wait for it")
        self._num_given += len(events)
        self._waiting.put((events, dict(facts)))
        return self.news()

    def close(self, timeout_s: float) -> str:
        """Wait until all is written and the file released, for ``timeout_s`` at most; returns as ``write``. Safe to
        call twice."""
        self._waiting.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive() and not self._is_given_up:
            return self._give_up("the disk is too slow: the last of what was seen may not be recorded")
        return self.news()

    def _give_up(self, why: str) -> str:
        self._is_given_up = True
        return f"{self.path}: {why}"

    def news(self) -> str:
        """As ``write``, where there is nothing to hand over."""
        if self._is_given_up or self._thread.is_alive():
            return ""
        error, self._error = self._error, ""
        return error

    # The thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with self._writer:
                while (piece := self._waiting.get()) is not None:
                    self._append(*piece)
                    self._num_written += len(piece[0])
        except KvtopError as error:
            self._error = str(error)
        except Exception as error:
            self._error = f"{self.path}: recording stopped: {type(error).__name__}: {error}"

    def _append(self, events: list[Event], facts: dict[str, Any]) -> None:
        self._writer.write(events)
        if isinstance(events[-1], RunEnded):
            self._writer.finish()
            self._manifest |= {**facts, "status": events[-1].status}
            write_manifest(self.path, self._manifest)
