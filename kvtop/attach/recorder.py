"""A session with attached servers in kvtop's own files, as any other run: ``run.json`` and ``frames.msgpack.zst``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtop.engine.errors import KvtopError
from kvtop.engine.events import Event, RunEnded
from kvtop.results.manifest import MANIFEST_KEYS, RUNNING, environment, write_manifest
from kvtop.results.recording import FRAMES_NAME, FrameWriter
from kvtop.results.rundir import prepare_run_dir
from kvtop.results.versions import DEFINITIONS_VERSION, RESULTS_SCHEMA_VERSION


class Recorder:
    """Appends events as they are handed out. What a killed process has written so far can be replayed.

    Raises:
        UsageError: the directory cannot be used, or holds a recording already.
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
        self._writer: FrameWriter | None = FrameWriter(self.path / FRAMES_NAME)

    def write(self, events: list[Event], facts: dict[str, Any]) -> str:
        """Append ``events``; returns "" or why nothing is recorded from now on. ``facts`` go to run.json at the end."""
        if self._writer is None:
            return ""
        try:
            self._writer.write(events)
            if isinstance(events[-1], RunEnded):
                self._writer.finish()
                self._manifest |= {**facts, "status": events[-1].status}
                write_manifest(self.path, self._manifest)
        except KvtopError as error:
            self._writer = None
            return str(error)
        return ""

    def close(self) -> None:
        """Release the file. Safe to call twice."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
