"""The trace formats kvtop reads: one file and one line here for each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from kvtop.engine.errors import UnknownName, WorkloadError
from kvtop.workloads.files import TextFile, each_row, read_text
from kvtop.workloads.formats.azure import AZURE
from kvtop.workloads.formats.base import NONE, PER_SESSION, SAMPLED, ReadOptions, Trace, TraceFormat
from kvtop.workloads.formats.burstgpt import BURSTGPT
from kvtop.workloads.formats.kvtop_trace import KVTOP
from kvtop.workloads.formats.mooncake import MOONCAKE
from kvtop.workloads.formats.observed import OBSERVED
from kvtop.workloads.formats.openai import OPENAI
from kvtop.workloads.formats.qwen import QWEN
from kvtop.workloads.formats.recording import RECORDING
from kvtop.workloads.formats.served import LLMSERVINGSIM, VLLM_BENCH
from kvtop.workloads.formats.servegen import SERVEGEN
from kvtop.workloads.formats.sharegpt import SHAREGPT
from kvtop.workloads.formats.splitwise import SPLITWISE
from kvtop.workloads.formats.vidur import VIDUR
from kvtop.workloads.formats.weka import WEKA
from kvtop.workloads.shape import between, num_sessions, tiled, with_arrivals
from kvtop.workloads.words import counted, shorten

FORMATS: dict[str, TraceFormat] = {
    MOONCAKE.name: MOONCAKE,
    AZURE.name: AZURE,
    KVTOP.name: KVTOP,
    VIDUR.name: VIDUR,
    SPLITWISE.name: SPLITWISE,
    BURSTGPT.name: BURSTGPT,
    QWEN.name: QWEN,
    WEKA.name: WEKA,
    LLMSERVINGSIM.name: LLMSERVINGSIM,
    VLLM_BENCH.name: VLLM_BENCH,
    SHAREGPT.name: SHAREGPT,
    OPENAI.name: OPENAI,
    SERVEGEN.name: SERVEGEN,
    RECORDING.name: RECORDING,
    OBSERVED.name: OBSERVED,
}

HEAD_CHARS = 65_536
"""How much of a document is looked at to recognise it."""


def read_trace(
    path: Path | str,
    format_name: str | None = None,
    *,
    hash_block_tokens: int | None = None,
    arrival_rate: float | None = None,
    tile: int = 1,
    options: ReadOptions | None = None,
) -> Trace:
    """Read a trace so that it can be served; its format is recognised when ``format_name`` is None.

    ``arrival_rate`` (requests or sessions per second, Poisson from the options' seed; inf: all at once) is for traces
    that do not record when their requests, or their sessions, arrived. ``tile``: copies, one after the other.

    Raises:
        UnknownName: no format of that name.
        WorkloadError: an unreadable file, a format that is not recognised, a malformed row (with its number), or no
            arrivals and no ``arrival_rate``.
    """
    options = options or ReadOptions()
    if hash_block_tokens is not None:
        options = msgspec.structs.replace(options, hash_block_tokens=hash_block_tokens)
    trace = sliced(load_trace([path], format_name, options), path, options)
    trace = servable(trace, path, arrival_rate=arrival_rate, seed=options.seed)
    rows, notices = tiled(trace.rows, tile)
    return msgspec.structs.replace(trace, rows=rows, notices=[*trace.notices, *notices])


def read_lengths(path: Path | str, format_name: str | None = None) -> list[tuple[int, int]]:
    """(prompt tokens, output tokens) of every row, in the trace's order, whether arrivals are recorded or not.

    Raises:
        UnknownName, WorkloadError: like ``read_trace``.
    """
    return [(row.prompt_tokens, max(1, row.output_tokens)) for row in load_trace([path], format_name).rows]


def load_trace(
    paths: Iterable[Path | str], format_name: str | None = None, options: ReadOptions | None = None
) -> Trace:
    """What the files say, and no more: arrivals may be missing, and outputs may be 0.

    Several paths are sessions of one workload, for formats that have a file for each session.

    Raises:
        UnknownName, WorkloadError: like ``read_trace``.
    """
    if format_name is not None and format_name not in FORMATS:
        raise UnknownName("trace format", format_name, FORMATS)
    options = options or ReadOptions()
    places = [Path(path).expanduser() for path in paths]
    first = places[0]
    file = None
    chosen = _without_text(first, format_name)
    if chosen is None:
        file = read_text(first)
        chosen = FORMATS[format_name] if format_name is not None else recognise(file)
    _check_hash_block(chosen, options.hash_block_tokens, str(first))
    if chosen.read_paths is not None:
        return chosen.read_paths(places, options)
    if len(places) > 1:
        raise WorkloadError(f"{len(places)} files are given, but a {chosen.name} trace is one file", path=places[1])
    assert chosen.read is not None
    assert file is not None, "what is no text is read from its path"
    return chosen.read(file, options)


def sliced(trace: Trace, path: Path | str, options: ReadOptions) -> Trace:
    """The part of the trace between the options' start and end, unless its format has cut it already.

    Raises:
        WorkloadError: nothing is left, or nothing to cut by.
    """
    if trace.is_cut or (options.start_s == 0 and options.end_s is None):
        return trace
    if trace.arrivals == NONE:
        raise WorkloadError("records no arrival times: there is nothing for start and end to cut by", path=path)
    rows, notices = between(trace.rows, options.start_s, options.end_s)
    return msgspec.structs.replace(trace, rows=rows, notices=[*trace.notices, *notices])


def servable(trace: Trace, path: Path | str, *, arrival_rate: float | None = None, seed: int = 0) -> Trace:
    """The trace with an arrival and at least one output token for every row.

    Raises:
        WorkloadError: no arrivals and no ``arrival_rate``, or both.
    """
    trace = answered(trace)
    if arrival_rate is not None:
        return started(trace, path, arrival_rate, seed)
    if trace.arrivals == NONE:
        raise WorkloadError(
            "records no arrival times: give arrival_rate, in requests per second (--arrival-rate, or the key of a "
            "workload spec)",
            path=path,
        )
    if trace.arrivals == PER_SESSION and (num := num_sessions(trace.rows)) > 1:
        text = (
            f"{num:,} sessions start together: each has a clock of its own (arrival_rate, in sessions per second, "
            f"spreads them)"
        )
        return msgspec.structs.replace(trace, notices=[*trace.notices, text])
    return trace


def answered(trace: Trace) -> Trace:
    """The trace with at least one output token for every row: no engine serves fewer."""
    num_silent = sum(row.output_tokens == 0 for row in trace.rows)
    if not num_silent:
        return trace
    rows = [row if row.output_tokens else msgspec.structs.replace(row, output_tokens=1) for row in trace.rows]
    text = f"{counted(num_silent, 'request')} with 0 output tokens recorded: 1 is served, the prompt was computed"
    return msgspec.structs.replace(trace, rows=rows, notices=[*trace.notices, text])


def started(trace: Trace, path: Path | str, arrival_rate: float, seed: int) -> Trace:
    """The trace with sampled arrivals: of its sessions, where it has any.

    Raises:
        WorkloadError: the trace has arrivals already, or not a rate.
    """
    if trace.arrivals not in (NONE, PER_SESSION):
        raise WorkloadError(
            f"arrival_rate is given, but arrivals are {trace.arrivals} (time_scale changes their rate)", path=path
        )
    rows, notices = with_arrivals(trace.rows, arrival_rate, seed)
    return msgspec.structs.replace(trace, rows=rows, notices=[*trace.notices, *notices], arrivals=SAMPLED)


def recognise(file: TextFile) -> TraceFormat:
    """The format whose keys the first row that is not blank shows best, and at least two of them.

    Raises:
        WorkloadError: no format fits; says what the row shows and what is expected.
    """
    line, first = next(((i, text) for i, text in enumerate(each_row(file.text), 1) if text.strip()), (1, ""))
    if not first:
        raise WorkloadError("holds only blank lines, expected a trace", path=file.path)
    # A document may be written over many lines; a row of JSON lines ends where its object does.
    is_row = first.lstrip().startswith("{") and first.rstrip().endswith("}")
    head = first if is_row or not first.lstrip().startswith(("{", "[")) else file.text[:HEAD_CHARS]
    best = max(FORMATS.values(), key=lambda f: _fit(f, head))
    if _fit(best, head)[1] < 2:
        expected = ", ".join(FORMATS)
        raise WorkloadError(
            f"format not recognised: found {shorten(first.strip())}, expected one of {expected} (kvtop trace formats)",
            path=file.path,
            row=line,
        )
    return best


def _fit(candidate: TraceFormat, head: str) -> tuple[float, int]:
    """Share and number of the format's keys that a row shows, in whatever case: a misspelt one is still recognised."""
    if candidate.shown_by is not None and candidate.shown_by(head):
        return 1.0, 100
    if candidate.is_json != head.lstrip().startswith(("{", "[")) or not candidate.keys:
        return 0.0, 0
    lowered = head[:HEAD_CHARS].lower()
    shown = sum(key.lower() in lowered for key in candidate.keys)
    return shown / len(candidate.keys), shown


def _without_text(path: Path, format_name: str | None) -> TraceFormat | None:
    """The format of a directory or a binary file; None: it is text, and shows what it is."""
    if path.is_dir():
        named = [FORMATS[format_name]] if format_name is not None else FORMATS.values()
        for candidate in named:
            if candidate.claims is not None and candidate.claims(path):
                return candidate
        of = f"a {format_name} trace" if format_name is not None else "a trace file"
        dirs = ", ".join(f.name for f in FORMATS.values() if f.claims is not None)
        raise WorkloadError(f"is a directory, expected {of} (formats of directories: {dirs})", path=path)
    binary = next((f for f in FORMATS.values() if f.suffix and path.name.endswith(f.suffix)), None)
    return binary if format_name in (None, binary.name if binary else None) else None


def _check_hash_block(chosen: TraceFormat, hash_block_tokens: int | None, path: str) -> None:
    if hash_block_tokens is None:
        return
    if not chosen.takes_hash_block:
        raise WorkloadError(
            f"hash_block_tokens is given, but {chosen.name} traces have no hash ids, or say what they stand for",
            path=path,
        )
    if hash_block_tokens < 1:
        raise WorkloadError(f"hash_block_tokens is {hash_block_tokens}, expected at least 1", path=path)
