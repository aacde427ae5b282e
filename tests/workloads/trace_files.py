"""Small traces written for one test."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.formats.base import Trace
from kvtop.workloads.formats.registry import load_trace, read_trace
from kvtop.workloads.rows import Row


def json_lines(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def document(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


def lengths(trace: Trace) -> list[tuple[int, int]]:
    return [(row.prompt_tokens, row.output_tokens) for row in trace.rows]


def arrivals_s(trace: Trace) -> list[float]:
    return [row.arrival_ns / 1e9 for row in trace.rows]


def turn(trace: Trace, session: str, number: int) -> Row:
    (found,) = [row for row in trace.rows if (row.session_id, row.turn) == (session, number)]
    return found


def refused(path: Path | list[Path], *words: str, read: Any = None, **options: Any) -> WorkloadError:
    """The one-line error of reading ``path``; it must name the file and hold every word."""
    read = load_trace if isinstance(path, list) else read or read_trace
    with pytest.raises(WorkloadError) as caught:
        read(path, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 600
    for word in words:
        assert word in text
    return caught.value
