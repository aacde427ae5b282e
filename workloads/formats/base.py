"""What a trace format is, what reading one gives, and the checks that every format makes in the same words."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.files import TextFile
from kvtop.workloads.rows import MAX_LENGTH_TOKENS, Row, RowSet
from kvtop.workloads.words import counted, shorten

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
NS_PER_DAY = 86_400 * NS_PER_S
MAX_INT = 2**63 - 1
MAX_TIME_NS = 2**62
"""Any time a file may give: 146 years, so that the sum of two still fits an int64."""

RECORDED, PER_SESSION, SAMPLED, NONE = "recorded", "recorded per session", "sampled", "not recorded"
ARRIVALS = (RECORDED, PER_SESSION, SAMPLED, NONE)
"""What is known of arrivals. Per session: each session has a clock of its own, which starts at its first request."""


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may say about a file; None: the format's own value."""

    hash_block_tokens: int | None = None
    tokenizer: str | None = None  # a tokenizer.json, for formats that hold text; None: lengths are approximated
    output_tokens: int | None = None  # for requests of which no output length is recorded
    start_s: float = 0.0  # for formats that are sampled: the part of the trace to sample
    end_s: float | None = None
    seed: int = 0


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """How a format writes arrivals. ``absolute``: since some epoch, not since the trace's start."""

    key: str
    unit: str
    absolute: bool = False
    max_days: float = 31.0  # a longer span is taken for a wrong unit
    refuse: bool = False  # and refused; otherwise it is a notice


class Trace(RowSet, frozen=True, kw_only=True):
    """A trace as read, in order of arrival: its rows, and where their numbers come from.

    A row's ``output_tokens`` may be 0 here (an answer of which nothing came); ``servable`` raises it to 1.
    """

    arrivals: str = RECORDED
    time_unit: str = ""
    rounding: str | None = None  # of hash ids: ceil (the partial last block has one) or floor (it has none)
    counted_by: str = "the publisher"  # who counted the tokens
    num_dropped: int = 0
    is_cut: bool = False  # the format itself has kept to the options' start and end


class Written(msgspec.Struct, frozen=True):
    """A trace as the lines of a file, and what the format could not hold."""

    lines: Iterable[bytes]
    notices: list[str] = []


class TraceFormat(msgspec.Struct, frozen=True, kw_only=True):
    """One trace format. ``keys`` are the names its first row must show; they also recognise it."""

    name: str
    summary: str  # one line: what the rows look like
    keys: tuple[str, ...]
    read: Callable[[TextFile, ReadOptions], Trace] | None = None
    clock: Clock | None = None
    is_json: bool = False  # a row opens with { or [
    takes_hash_block: bool = False
    shown_by: Callable[[str], bool] | None = None  # for rows without names: whether this first row is one
    read_paths: Callable[[list[Path], ReadOptions], Trace] | None = None  # instead of ``read``: binary, or many files
    claims: Callable[[Path], bool] | None = None  # whether a directory is a trace of this format
    suffix: str = ""  # of binary files
    write: Callable[[Trace], Written] | None = None


class Stamped(msgspec.Struct, frozen=True, gc=False):
    """A row as read: ``time_ns`` on the file's own clock (None: missing), ``line`` as an editor counts."""

    line: int
    time_ns: int | None
    row: Row


def check_length(value: int, key: str, *, path: str, line: int | None, low: int = 1) -> None:
    """Raise WorkloadError unless ``low <= value <= MAX_LENGTH_TOKENS``."""
    if not low <= value <= MAX_LENGTH_TOKENS:
        found = f"{value:,}" if abs(value) < 10**20 else "a number of more than 20 digits"
        raise WorkloadError(f"{key} is {found}, expected {low} to {MAX_LENGTH_TOKENS:,} tokens", path=path, row=line)


def nearest_key(key: str, found: Iterable[str], valid: Iterable[str]) -> str | None:
    """The name found that ``key`` may have been meant by: near in spelling, and not itself ``valid``."""
    known = set(valid)
    names = [name for name in found if isinstance(name, str)]
    near = difflib.get_close_matches(key.lower(), [n.lower() for n in names if n not in known], n=1, cutoff=0.5)
    return next((n for n in names if near and n.lower() == near[0] and n not in known), None)


def missing_key(
    key: str, found: Iterable[str], *, valid: Iterable[str], what: str, path: str, line: int | None
) -> WorkloadError:
    """The error for a row or header without ``key``; names the nearest one found that is not itself ``valid``."""
    names = [name for name in found if isinstance(name, str)]
    nearest = nearest_key(key, names, valid)
    hint = f"; nearest is {shorten(nearest)}" if nearest else ""
    listed = shorten(", ".join(names), 100) if names else "none"
    return WorkloadError(f"{what} {key!r} is missing{hint} (found {listed})", path=path, row=line)


def finish(
    stamped: list[Stamped],
    chosen: TraceFormat,
    *,
    path: str,
    sha256: str | None,
    num_dropped: int = 0,
    notices: Iterable[str] = (),
    counted_by: str = "the publisher",
    rounding: str | None = None,
) -> Trace:
    """Fill in missing times, sort, let the first arrival be 0, and report what was changed.

    The sort is stable: rows of one timestamp keep the file's order. When no row has a time, the order is the file's
    and ``arrivals`` says so.

    Raises:
        WorkloadError: no row is left, or a span that only a wrong unit explains.
    """
    notices = list(notices)
    if num_dropped:
        notices.append(f"{counted(num_dropped, 'row')} with 0 output tokens dropped (failed requests)")
    if not stamped:
        found = "every row has 0 output tokens" if num_dropped else "no rows"
        raise WorkloadError(f"{found}, expected at least one request", path=path)
    clock = chosen.clock or Clock(key="arrival", unit="ns")
    known = any(entry.time_ns is not None for entry in stamped)
    timed, more = _timed(stamped, clock) if known else ([(0, entry.line, entry.row) for entry in stamped], [])
    notices += more
    if known:
        notices += _check_unit(timed, clock, path)
    start_ns = timed[0][0]
    return Trace(
        rows=[msgspec.structs.replace(row, arrival_ns=time_ns - start_ns) for time_ns, _, row in timed],
        notices=notices,
        trace_sha256=sha256,
        format=chosen.name,
        arrivals=RECORDED if known else NONE,
        time_unit=clock.unit,
        rounding=rounding,
        counted_by=counted_by,
        num_dropped=num_dropped,
    )


def _timed(stamped: list[Stamped], clock: Clock) -> tuple[list[tuple[int, int, Row]], list[str]]:
    """(time, line, row) in order of time. A row without a time has that of the row before it in the file."""
    notices = []
    first_known = next(entry.time_ns for entry in stamped if entry.time_ns is not None)
    last = first_known if clock.absolute else min(0, first_known)
    timed, missing = [], []
    for entry in stamped:
        if entry.time_ns is None:
            missing.append(entry.line)
        else:
            last = entry.time_ns
        timed.append((last, entry.line, entry.row))
    if missing:
        notices.append(
            f"{counted(len(missing), 'row')} without {clock.key} (first: row {missing[0]:,}) placed at the time of the "
            f"row before, or at the start"
        )
    back = [b for a, b in itertools.pairwise(timed) if a[0] > b[0]]
    if back:
        timed.sort(key=lambda entry: entry[0])
        notices.append(
            f"timestamps are not sorted ({counted(len(back), 'step')} back in time, first at row {back[0][1]:,}): "
            f"rows were sorted by arrival"
        )
    return timed, notices


def _check_unit(timed: list[tuple[int, int, Row]], clock: Clock, path: str) -> list[str]:
    """Refuse, or notice, a span or a rate that only a wrong unit explains."""
    span_ns = timed[-1][0] - timed[0][0]
    num_rows = len(timed)
    if span_ns > MAX_INT:
        raise WorkloadError(f"{clock.key} spans more than 292 years", path=path, row=timed[-1][1])
    if span_ns > clock.max_days * NS_PER_DAY:
        text = f"{clock.key}: {counted(num_rows, 'row')} span {span_ns / NS_PER_DAY:,.1f} days if read as {clock.unit}"
        if clock.refuse:
            raise WorkloadError(f"{text}, expected at most {clock.max_days:g} days", path=path, row=timed[-1][1])
        return [f"{text}: check their unit"]
    if span_ns and num_rows >= 100:
        rate = (num_rows - 1) / span_ns * NS_PER_S
        if rate > 1000 or rate < 1 / 60:
            shown = f"{rate:,.0f} requests/s" if rate > 1 else f"one request every {1 / rate:,.0f} s"
            return [f"{clock.key} read as {clock.unit} gives {shown}: check their unit"]
    return []
