"""What a trace format is, and the checks that every format makes in the same words."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Iterable

import msgspec

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.files import TextFile
from kvtop.workloads.rows import MAX_LENGTH_TOKENS, Row, RowSet
from kvtop.workloads.words import counted, shorten

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may say about a file; None: the format's own value."""

    hash_block_tokens: int | None = None


class TraceFormat(msgspec.Struct, frozen=True, kw_only=True):
    """One trace format. ``keys`` are the names its first row must show; they also recognise it."""

    name: str
    summary: str  # one line: what the rows look like
    keys: tuple[str, ...]
    read: Callable[[TextFile, ReadOptions], RowSet]
    is_json: bool = False  # a row opens with { or [
    takes_hash_block: bool = False


class Stamped(msgspec.Struct, frozen=True, gc=False):
    """A row as read: ``time_ns`` on the file's own clock, ``line`` as an editor counts."""

    line: int
    time_ns: int
    row: Row


def check_length(value: int, key: str, *, path: str, line: int, low: int = 1) -> None:
    """Raise WorkloadError unless ``low <= value <= MAX_LENGTH_TOKENS``."""
    if not low <= value <= MAX_LENGTH_TOKENS:
        found = f"{value:,}" if abs(value) < 10**20 else "a number of more than 20 digits"
        raise WorkloadError(f"{key} is {found}, expected {low} to {MAX_LENGTH_TOKENS:,} tokens", path=path, row=line)


def missing_key(
    key: str, found: Iterable[str], *, valid: Iterable[str], what: str, path: str, line: int
) -> WorkloadError:
    """The error for a row or header without ``key``; names the nearest one found that is not itself ``valid``."""
    known = set(valid)
    names = [name for name in found if isinstance(name, str)]
    near = difflib.get_close_matches(key.lower(), [n.lower() for n in names if n not in known], n=1, cutoff=0.5)
    nearest = next((n for n in names if near and n.lower() == near[0] and n not in known), None)
    hint = f"; nearest is {shorten(nearest)}" if nearest else ""
    listed = shorten(", ".join(names), 100) if names else "none"
    return WorkloadError(f"{what} {key!r} is missing{hint} (found {listed})", path=path, row=line)


def finish(stamped: list[Stamped], *, file: TextFile, format_name: str, num_dropped: int, notices: list[str]) -> RowSet:
    """Sort by time, let the first arrival be 0, and report what was changed.

    The sort is stable: rows of one timestamp keep the file's order.

    Raises:
        WorkloadError: no row is left.
    """
    notices = list(notices)
    if num_dropped:
        notices.append(f"{counted(num_dropped, 'row')} with 0 output tokens dropped (failed requests)")
    if not stamped:
        found = "every row has 0 output tokens" if num_dropped else "no rows"
        raise WorkloadError(f"{found}, expected at least one request", path=file.path)
    early = sum(a.time_ns > b.time_ns for a, b in itertools.pairwise(stamped))
    if early:
        stamped = sorted(stamped, key=lambda s: s.time_ns)
        notices.append(
            f"timestamps are not sorted ({counted(early, 'step')} back in time): rows were sorted by arrival"
        )
    start_ns = stamped[0].time_ns
    rows = [msgspec.structs.replace(s.row, arrival_ns=s.time_ns - start_ns) for s in stamped]
    return RowSet(rows, notices, file.sha256, format_name)
