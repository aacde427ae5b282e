"""Parquet tables of a run, derived from its recording: the recording is the truth, the tables are a view of it.

Row groups are cut by count and nothing depends on time or hashing, so the same recording gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvtop.analysis.slo import parse_slo
from kvtop.cost.predict import predictor
from kvtop.engine.errors import KvtopError
from kvtop.engine.events import ConfigChanged, Event, RequestEvent, RunEnded, RunStarted, StepEvent
from kvtop.results import builder
from kvtop.results.builder import TableBuilder
from kvtop.results.decisions import DecisionColumns
from kvtop.results.manifest import MANIFEST_NAME, read_manifest, write_manifest
from kvtop.results.recording import FRAMES_NAME, read_frames
from kvtop.results.requests import RequestRows
from kvtop.results.schema import STEPS
from kvtop.results.tokens import write_tokens
from kvtop.results.window import BusyWindow

Ideal = Mapping[str, tuple[int | None, int | None]]
"""By request id: tokens that an infinite cache serves, in whole blocks and exactly (``ideal_hit_tokens``,
``shared_prefix_tokens``)."""


def write_tables(
    run_dir: str | Path, *, status: str | None = None, ideal: Ideal | None = None, **updates: Any
) -> dict[str, Any]:
    """Derive requests, steps and events tables and the final run.json from ``frames.msgpack.zst``.

    ``status`` None: as the recording's last event says; without one (a killed process) ``interrupted``. ``ideal``: what
    an infinite cache would have served, which the recording does not know. ``updates`` are further keys of run.json.
    Returns the manifest as written. Rows beyond ``builder.CHUNK_ROWS`` of a table wait on disk.

    Raises:
        FileError: the recording cannot be read, or a file cannot be written; files written before stay whole.
        KvtopError: the recording holds no run.
    """
    run_dir = Path(run_dir)
    with (
        TableBuilder("requests", run_dir) as rows,
        TableBuilder("steps", run_dir) as steps,
        TableBuilder("events", run_dir) as decisions,
    ):
        tables = _Tables(steps, decisions)
        for events in read_frames(run_dir / FRAMES_NAME):
            for event in events:
                tables.fold(event)
        tables.seal()
        if tables.requests.has_open:
            for events in read_frames(run_dir / FRAMES_NAME):
                for event in events:
                    tables.requests.retrace(event)
        manifest = _manifest(run_dir, tables.started)
        run_id = str(manifest["run_id"])
        num_warmup, texts = int(manifest.get("warmup_requests") or 0), manifest.get("slo")
        slo = parse_slo(texts, f"slo of {run_dir / MANIFEST_NAME}") if texts else None
        rows.add(tables.requests.rows(run_id, tables.busy.window(), num_warmup, ideal or {}, slo))
        for table in (rows, steps, decisions):
            table.write(run_id)
    if manifest.get("tokens"):
        write_tokens(run_dir, run_id)
    ended = tables.ended
    manifest["status"] = status or (ended.status if ended is not None else "interrupted")
    manifest["error"] = ended.error if ended is not None else ""
    manifest["window_start_ns"], manifest["window_end_ns"] = tables.busy.window() or (None, None)
    if tables.changes:
        manifest["config_changes"] = config_changes(tables.changes, manifest)
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


def config_changes(changes: list[tuple[int, ConfigChanged]], manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was changed by hand while the run went on: key, old and new value, time and the step before it.

    ``changes``: (step, event) in order. The arrival rate is a factor on the workload's own, 1 at the start.
    """
    now: dict[str, Any] = {**manifest, "arrival_rate": 1.0}
    rows: list[dict[str, Any]] = []
    for step, event in changes:
        for key, value in event.changes.items():
            rows.append({"key": key, "old": now.get(key), "new": value, "step": step, "t_ns": event.t_ns})
            now[key] = value
    return rows


class _Tables:
    """Folds events into the rows of all tables."""

    def __init__(self, steps: TableBuilder, decisions: TableBuilder) -> None:
        self.started: RunStarted | None = None
        self.ended: RunEnded | None = None
        self.changes: list[tuple[int, ConfigChanged]] = []
        self.requests = RequestRows()
        self.busy = BusyWindow()
        self._decisions = DecisionColumns()
        self._steps_table, self._events_table = steps, decisions
        self._run_id = ""
        self._step = 0
        self._predicted = predictor({})

    def fold(self, event: Event) -> None:
        if isinstance(event, StepEvent):
            self._step = event.step
            self.busy.add(event.t_start_ns, event.t_done_ns, event.num_running)
            self._steps_table.add((_step_row(self._run_id, event, self._predicted(event)),))
            self._decisions.step(event)
            if len(self._decisions) >= builder.CHUNK_ROWS:
                self.seal()
        elif isinstance(event, RequestEvent):
            self._decisions.request(event)
            self.requests.request(event)
        elif isinstance(event, RunStarted):
            self.started, self._run_id = event, event.run_id
            self._predicted = predictor(event.manifest)
        elif isinstance(event, ConfigChanged):
            self.changes.append((self._step, event))
        elif isinstance(event, RunEnded):
            self.ended = event

    def seal(self) -> None:
        """Decisions that are kept become a chunk of their table."""
        if self._decisions:
            self._events_table.add_frame(self._decisions.take(self._run_id))


_STEP_TEXTS = ("waiting_reason", "head_of_line")
_STEP_FIELDS = tuple(name for name in STEPS if name not in ("run_id", "predicted_ns", "output_tokens", *_STEP_TEXTS))


def _step_row(run_id: str, event: StepEvent, predicted_ns: int | None) -> tuple[Any, ...]:
    values: dict[str, Any] = {name: getattr(event, name) for name in _STEP_FIELDS}
    values |= {name: getattr(event, name) or None for name in _STEP_TEXTS}
    values |= {"run_id": run_id, "predicted_ns": predicted_ns}
    values["output_tokens"] = sum(count for _, count in event.emitted)
    return tuple(values[name] for name in STEPS)
