"""The trace formats kvtop reads: one file and one line here for each."""

from __future__ import annotations

from pathlib import Path

from kvtop.engine.errors import UnknownName, WorkloadError
from kvtop.workloads.files import TextFile, read_text, rows_of
from kvtop.workloads.formats.azure import AZURE
from kvtop.workloads.formats.base import ReadOptions, TraceFormat
from kvtop.workloads.formats.mooncake import MOONCAKE
from kvtop.workloads.rows import RowSet
from kvtop.workloads.words import shorten

FORMATS: dict[str, TraceFormat] = {
    MOONCAKE.name: MOONCAKE,
    AZURE.name: AZURE,
}


def read_trace(path: Path | str, format_name: str | None = None, *, hash_block_tokens: int | None = None) -> RowSet:
    """Read a trace file; its format is recognised from its first row when ``format_name`` is None.

    Raises:
        UnknownName: no format of that name.
        WorkloadError: an unreadable file, a format that is not recognised, or a malformed row (with its number).
    """
    if format_name is not None and format_name not in FORMATS:
        raise UnknownName("trace format", format_name, FORMATS)
    path = Path(path).expanduser()
    file = read_text(path)
    chosen = FORMATS[format_name] if format_name is not None else recognise(file)
    _check_hash_block(chosen, hash_block_tokens, file.path)
    return chosen.read(file, ReadOptions(hash_block_tokens=hash_block_tokens))


def recognise(file: TextFile) -> TraceFormat:
    """The format whose keys the first row that is not blank shows most of, and at least two.

    Raises:
        WorkloadError: no format fits; says what the row shows and what is expected.
    """
    line, first = next(((i, text) for i, text in enumerate(rows_of(file.text), 1) if text.strip()), (1, ""))
    if not first:
        raise WorkloadError("holds only blank lines, expected a trace", path=file.path)
    best = max(FORMATS.values(), key=lambda f: _num_keys(f, first))
    if _num_keys(best, first) < 2:
        expected = " or ".join(f"{f.name} ({f.summary})" for f in FORMATS.values())
        raise WorkloadError(
            f"format not recognised: found {shorten(first.strip())}, expected {expected}", path=file.path, row=line
        )
    return best


def _num_keys(candidate: TraceFormat, first: str) -> int:
    """How many of the format's keys the row shows, in whatever case: a misspelt or broken row is still recognised."""
    if candidate.is_json != first.lstrip().startswith(("{", "[")):
        return 0
    return sum(key.lower() in first.lower() for key in candidate.keys)


def _check_hash_block(chosen: TraceFormat, hash_block_tokens: int | None, path: str) -> None:
    if hash_block_tokens is None:
        return
    if not chosen.takes_hash_block:
        raise WorkloadError(f"hash_block_tokens is given, but {chosen.name} traces have no hash ids", path=path)
    if hash_block_tokens < 1:
        raise WorkloadError(f"hash_block_tokens is {hash_block_tokens}, expected at least 1", path=path)
