"""``tokens.parquet``: when each token of each request was emitted. Large, so only written where it is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvtop.engine.errors import UsageError
from kvtop.engine.events import RequestEvent, StepEvent
from kvtop.results.builder import TableBuilder
from kvtop.results.manifest import read_manifest
from kvtop.results.recording import FRAMES_NAME, read_frames


def branch_of(seq_id: str, requests: Mapping[str, Any]) -> tuple[str, int]:
    """(request id, branch) of a sequence: branch k of request ``a`` is called ``a#k``, unless a request is."""
    request_id, mark, branch = seq_id.rpartition("#")
    if seq_id in requests or not mark or not branch.isdecimal():
        return seq_id, 0
    return request_id, int(branch)


class TokenRows:
    """Folds events of one run, in order, into rows of tokens.parquet."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._index: dict[str, int] = {}  # by request id
        self._next: dict[str, int] = {}  # index of the next token, by sequence id

    def request(self, event: RequestEvent) -> None:
        self._index.setdefault(event.request_id, event.req_index)

    def rows(self, event: StepEvent) -> Iterator[tuple[Any, ...]]:
        for seq_id, count in event.emitted:
            request_id, branch = branch_of(seq_id, self._index)
            first = self._next.get(seq_id, 0)
            self._next[seq_id] = first + count
            for index in range(first, first + count):
                yield self._run_id, self._index.get(request_id), branch, index, event.t_done_ns, event.step


def write_tokens(run_dir: str | os.PathLike[str], run_id: str | None = None) -> int:
    """Derive ``tokens.parquet`` from the recording of a run that has ended; returns the number of rows.

    ``run_id`` None: as its manifest says.

    Raises:
        UsageError: there is no recording.
        FileError: the recording cannot be read, or the table cannot be written.
    """
    run_dir = Path(run_dir)
    if not (run_dir / FRAMES_NAME).exists():
        raise UsageError(f"{run_dir}: times of tokens are in its recording, and there is no {FRAMES_NAME}")
    if run_id is None:
        run_id = str(read_manifest(run_dir)["run_id"])
    rows, count = TokenRows(run_id), 0
    with TableBuilder("tokens", run_dir) as table:
        for events in read_frames(run_dir / FRAMES_NAME):
            for event in events:
                if isinstance(event, RequestEvent):
                    rows.request(event)
                elif isinstance(event, StepEvent) and event.emitted:
                    made = list(rows.rows(event))
                    count += len(made)
                    table.add(made)
        table.write(run_id)
    return count
