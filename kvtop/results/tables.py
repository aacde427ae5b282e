"""Parquet tables of a run, derived from its recording: the recording is the truth, the tables are a view of it.

Row groups are cut by count and nothing depends on time or hashing, so the same recording gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from kvtop.engine.errors import KvtopError
from kvtop.engine.events import Event, RequestEvent, RunEnded, RunStarted, StepEvent
from kvtop.results.decisions import DecisionRows
from kvtop.results.files import replacing
from kvtop.results.manifest import MANIFEST_NAME, read_manifest, write_manifest
from kvtop.results.recording import FRAMES_NAME, read_frames
from kvtop.results.requests import RequestRows
from kvtop.results.schema import SCHEMAS, STEPS, file_metadata

ROW_GROUP = 131_072
CHUNK_ROWS = 65_536  # Python rows held at once before they become columns


class TableBuilder:
    """Rows of one table, as columns of fixed types as soon as there are ``CHUNK_ROWS`` of them."""

    def __init__(self, name: str) -> None:
        self.name, self.schema = name, SCHEMAS[name]
        self._rows: list[tuple[Any, ...]] = []
        self._frames: list[pl.DataFrame] = []

    def add(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Each row has the schema's columns in order."""
        self._rows.extend(rows)
        if len(self._rows) >= CHUNK_ROWS:
            self._seal()

    def _seal(self) -> None:
        self._frames.append(pl.DataFrame(self._rows, schema=self.schema, orient="row"))
        self._rows = []

    def write(self, run_dir: Path, run_id: str) -> None:
        """Replace ``<name>.parquet`` as a whole.

        Raises:
            FileError: the disk refuses; the old file stays.
        """
        self._seal()
        frame = pl.concat(self._frames, rechunk=True)
        # With a path, polars raises errors of its own for a full disk; with a Python file they stay OSErrors.
        with replacing(run_dir / f"{self.name}.parquet") as temp, open(temp, "wb") as file:
            frame.write_parquet(file, compression="zstd", row_group_size=ROW_GROUP, metadata=file_metadata(run_id))


def write_tables(run_dir: str | Path, *, status: str | None = None, **updates: Any) -> dict[str, Any]:
    """Derive requests, steps and events tables and the final run.json from ``frames.msgpack.zst``.

    ``status`` None: as the recording's last event says; without one (a killed process) ``interrupted``. ``updates`` are
    further keys of run.json. Returns the manifest as written.

    Raises:
        FileError: the recording cannot be read, or a file cannot be written; files written before stay whole.
        KvtopError: the recording holds no run.
    """
    run_dir = Path(run_dir)
    tables = _Tables()
    for events in read_frames(run_dir / FRAMES_NAME):
        for event in events:
            tables.fold(event)
    manifest = _manifest(run_dir, tables.started)
    run_id = str(manifest["run_id"])
    for builder in tables.finish(run_id):
        builder.write(run_dir, run_id)
    ended = tables.ended
    manifest["status"] = status or (ended.status if ended is not None else "interrupted")
    manifest["error"] = ended.error if ended is not None else ""
    manifest["window_start_ns"], manifest["window_end_ns"] = tables.window()
    manifest.update(updates)
    write_manifest(run_dir, manifest)
    return manifest


def _manifest(run_dir: Path, started: RunStarted | None) -> dict[str, Any]:
    """run.json of the directory; when it is lost, as the recording's first event has it."""
    if (run_dir / MANIFEST_NAME).exists():
        return read_manifest(run_dir)
    if started is None:
        raise KvtopError(f"{run_dir / FRAMES_NAME}: holds no run (no event says how it was started)")
    return dict(started.manifest)


class _Tables:
    """Folds events into the rows of all tables."""

    def __init__(self) -> None:
        self.started: RunStarted | None = None
        self.ended: RunEnded | None = None
        self._requests = RequestRows()
        self._decisions = DecisionRows()
        self._steps = TableBuilder("steps")
        self._events = TableBuilder("events")
        self._first_ns: int | None = None
        self._last_ns: int | None = None
        self._run_id = ""

    def fold(self, event: Event) -> None:
        if isinstance(event, StepEvent):
            if self._first_ns is None:
                self._first_ns = event.t_start_ns
            self._last_ns = event.t_done_ns
            self._steps.add((_step_row(self._run_id, event),))
            self._events.add(self._decisions.rows(self._run_id, event))
            self._requests.step(event)
        elif isinstance(event, RequestEvent):
            self._decisions.request(event)
            self._requests.request(event)
        elif isinstance(event, RunStarted):
            self.started, self._run_id = event, event.run_id
        elif isinstance(event, RunEnded):
            self.ended = event

    def window(self) -> tuple[int | None, int | None]:
        """First start and last end of a step, ns; null when no step was made."""
        return self._first_ns, self._last_ns

    def finish(self, run_id: str) -> list[TableBuilder]:
        requests = TableBuilder("requests")
        requests.add(self._requests.rows(run_id))
        return [requests, self._steps, self._events]


_STEP_TEXTS = ("waiting_reason", "head_of_line")
_STEP_FIELDS = tuple(name for name in STEPS if name not in ("run_id", "predicted_ns", *_STEP_TEXTS))


def _step_row(run_id: str, event: StepEvent) -> tuple[Any, ...]:
    values: dict[str, Any] = {name: getattr(event, name) for name in _STEP_FIELDS}
    values |= {name: getattr(event, name) or None for name in _STEP_TEXTS}
    values |= {"run_id": run_id, "predicted_ns": None}
    return tuple(values[name] for name in STEPS)
