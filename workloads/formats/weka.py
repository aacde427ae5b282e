"""Agent sessions in WEKA's JSON: one object a session, ids of 64 tokens local to the file, think times, sub-agents.

``requests`` hold ``t`` (s from the session's start), ``in`` and ``out`` (tokens), ``hash_ids`` (full blocks only:
``in // block_size`` of them; the partial tail has none), ``api_time`` (s the answer took) and ``think_time`` (s from
the end of the previous answer to this call). An entry of type ``subagent`` has ``requests`` of its own, in the
parent's id space, with their own ``t``. Its ``t`` is when it *ended*: ``t - duration_ms`` falls on the end of the
parent's call before it, for every sub-agent of the published sessions. So sub-agents of one call run side by side,
and the parent's next call waits for those that ended before it.

Several files, or a directory of them, are one workload of many sessions; each starts at its own 0. Source: WEKA,
kv-cache-tester.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.files import TextFile, combined_sha256, read_text
from kvtop.workloads.formats.base import (
    NS_PER_MS,
    NS_PER_S,
    PER_SESSION,
    RECORDED,
    Clock,
    ReadOptions,
    Stamped,
    Trace,
    TraceFormat,
    check_length,
    finish,
)
from kvtop.workloads.formats.hash_ids import FLOOR, check_ids
from kvtop.workloads.formats.json_rows import json_document, unit_ns
from kvtop.workloads.rows import Row
from kvtop.workloads.words import counted, shorten

SCOPES = ("local", "global")


class _Entry(msgspec.Struct, rename={"in_": "in"}, gc=False):
    t: float
    type: str = ""
    in_: int | None = None
    out: int | None = None
    hash_ids: tuple[int, ...] = ()
    think_time: float | None = None
    api_time: float | None = None
    agent_id: str | None = None
    duration_ms: float | None = None
    requests: list[_Entry] | None = None


class _Session(msgspec.Struct):
    id: str
    block_size: int
    requests: list[_Entry]
    hash_id_scope: str = "local"


_decode = msgspec.json.Decoder(_Session).decode


class _Call(msgspec.Struct, frozen=True, gc=False):
    """A call that others may wait for. ``timed``: how long its answer took is recorded."""

    session: str
    turn: int
    due_ns: int
    end_ns: int
    timed: bool = True


class _Ids:
    """New ids for those of the files, without gaps; the ids of one file mean nothing in another."""

    def __init__(self) -> None:
        self._next = 0
        self._known: dict[int, int] = {}

    def start_file(self, scope: str) -> None:
        if scope == "local":
            self._known = {}

    def of(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        known = self._known
        for hash_id in ids:
            if hash_id not in known:
                known[hash_id] = self._next
                self._next += 1
        return tuple(map(known.__getitem__, ids))


class _Reader:
    """Turns the entries of one file into rows, ``stamped`` in ns from the session's start."""

    def __init__(self, path: str, block: int, ids: _Ids) -> None:
        self.path, self.block, self.ids = path, block, ids
        self.stamped: list[Stamped] = []
        self.names: set[str] = set()  # of sub-agents
        self.num_unknown_thinks = 0

    def read_session(self, session: _Session) -> list[Stamped]:
        """All rows of a file, its first call at 0."""
        self.ids.start_file(session.hash_id_scope)
        self._read(session.requests, session.id, "requests", 0, None)
        start_ns = min(entry.time_ns or 0 for entry in self.stamped)
        return [msgspec.structs.replace(entry, time_ns=(entry.time_ns or 0) - start_ns) for entry in self.stamped]

    def _read(self, entries: list[_Entry], session: str, place: str, start_ns: int, begun_by: _Call | None) -> _Call:
        """Append a session's rows; returns its last call.

        Raises:
            WorkloadError: no call in it, times that go back, lengths or ids that cannot be.
        """
        last: _Call | None = None
        waits: list[_Call] = []  # the last calls of sub-agents that nobody has waited for yet
        for number, entry in enumerate(entries):
            where = f"{place}[{number}]"
            if entry.requests is not None:
                waits.append(self._sub_agent(entry, session, where, start_ns, last))
                continue
            due_ns = start_ns + unit_ns(entry.t, NS_PER_S, "t", "seconds", self._at(where), None)
            if last is not None and due_ns < last.due_ns:
                raise WorkloadError(f"t is {entry.t:g}, before the call it follows", path=self._at(where))
            waited = [call for call in waits if call.due_ns <= due_ns and call.end_ns <= due_ns + NS_PER_S]
            waits = [call for call in waits if call not in waited]
            before = last or begun_by
            if last is not None and not waited and entry.think_time is not None:
                think_ns = unit_ns(entry.think_time, NS_PER_S, "think_time", "seconds", self._at(where), None)
            elif before is not None:
                self.num_unknown_thinks += not before.timed and not waited
                think_ns = max(0, due_ns - max(call.end_ns for call in (before, *waited)))
            else:
                think_ns = None
            after = [begun_by] if last is None and begun_by is not None else waited
            turn = 1 if last is None else last.turn + 1
            self._append(entry, session, turn, due_ns, think_ns, after, where)
            end_ns = due_ns + unit_ns(entry.api_time or 0.0, NS_PER_S, "api_time", "seconds", self._at(where), None)
            last = _Call(session, turn, due_ns, end_ns, timed=entry.api_time is not None)
        if last is None:
            raise WorkloadError("holds no call, expected at least one", path=self._at(place))
        return last

    def _sub_agent(self, entry: _Entry, session: str, where: str, start_ns: int, parent: _Call | None) -> _Call:
        """Append the rows of a sub-agent; returns its last call, which ends when the entry says."""
        end_ns = start_ns + unit_ns(entry.t, NS_PER_S, "t", "seconds", self._at(where), None)
        took_ns = unit_ns(entry.duration_ms or 0.0, NS_PER_MS, "duration_ms", "milliseconds", self._at(where), None)
        began_ns = end_ns - took_ns
        if parent is not None:
            began_ns = max(began_ns, parent.due_ns)
        name = f"{session}/{entry.agent_id or where}"
        if name in self.names:  # an agent that was called again is another one: how it went on is not recorded
            name = f"{name}#{where}"
        self.names.add(name)
        last = self._read(entry.requests or [], name, f"{where}.requests", max(0, began_ns), parent)
        return msgspec.structs.replace(last, end_ns=end_ns if entry.duration_ms else last.end_ns)

    def _append(
        self,
        entry: _Entry,
        session: str,
        turn: int,
        due_ns: int,
        think_ns: int | None,
        after: list[_Call],
        where: str,
    ) -> None:
        at = self._at(where)
        if entry.in_ is None or entry.out is None:
            key = "in" if entry.in_ is None else "out"
            raise WorkloadError(f"key {key!r} is missing, and it holds no requests of a sub-agent", path=at)
        check_length(entry.in_, "in", path=at, line=None)
        check_length(entry.out, "out", path=at, line=None, low=0)
        check_ids(entry.hash_ids, entry.in_, self.block, FLOOR, "in", at, None)
        row = Row(
            0,
            entry.in_,
            entry.out,
            self.ids.of(entry.hash_ids),
            self.block if entry.hash_ids else 0,
            session_id=session,
            turn=turn,
            think_ns=think_ns,
            after=tuple((call.session, call.turn) for call in after),
        )
        self.stamped.append(Stamped(len(self.stamped) + 1, due_ns, row))

    def _at(self, where: str) -> str:
        return f"{self.path}: {where}"


def read_paths(paths: list[Path], options: ReadOptions) -> Trace:
    """Read one session a file, or all of a directory; ids of different files are disjoint unless their scope is global.

    Raises:
        WorkloadError: an entry that cannot be (file and place in ``requests``), or a session that is there twice.
    """
    files = [file for path in paths for file in _files_of(path)]
    ids = _Ids()
    stamped: list[Stamped] = []
    hashes: list[tuple[str, str]] = []
    names: dict[str, Path] = {}
    num_unknown = 0
    for path in files:
        file = read_text(path)
        session = _session(file)
        if session.id in names:
            raise WorkloadError(f"session {shorten(session.id)} is also in {names[session.id]}", path=path)
        names[session.id] = path
        reader = _Reader(file.path, session.block_size, ids)
        stamped += reader.read_session(session)
        num_unknown += reader.num_unknown_thinks
        hashes.append((path.name, file.sha256))
    # Stable: at one time a parent's call stays before those of the sub-agents that it starts.
    stamped.sort(key=lambda entry: entry.time_ns or 0)
    notices = []
    if num_unknown:
        notices.append(
            f"{counted(num_unknown, 'think time')} not recorded, nor how long the answer before took: "
            f"the whole time since that call is used"
        )
    sha256 = hashes[0][1] if len(hashes) == 1 else combined_sha256(hashes)
    trace = finish(
        stamped, WEKA, path=str(paths[0]), sha256=sha256, notices=notices, counted_by="the publisher", rounding=FLOOR
    )
    return msgspec.structs.replace(trace, arrivals=RECORDED if len(files) == 1 else PER_SESSION)


def is_directory_of_sessions(path: Path) -> bool:
    """Whether the first JSON file in a directory is a session."""
    files = _json_files(path)
    if not files:
        return False
    try:
        head = read_text(files[0]).text[:65_536]
    except WorkloadError:
        return False
    return all(f'"{key}"' in head for key in WEKA.keys)


def _json_files(path: Path) -> list[Path]:
    files = sorted(file for pattern in ("*.json", "*.json.gz") for file in path.glob(pattern))
    return [file for file in files if file.name.startswith("trace_")] or files


def _files_of(path: Path) -> Iterable[Path]:
    if not path.is_dir():
        return [path]
    files = _json_files(path)
    if not files:
        raise WorkloadError("holds no .json or .json.gz file, expected one for each session", path=path)
    return files


def _session(file: TextFile) -> _Session:
    session = json_document(file, _decode, 'a session like {"id": "a", "block_size": 64, "requests": [...]}')
    if session.block_size < 1:
        raise WorkloadError(f"block_size is {session.block_size}, expected at least 1", path=file.path)
    if session.hash_id_scope not in SCOPES:
        raise WorkloadError(
            f"hash_id_scope is {shorten(session.hash_id_scope)}, expected {' or '.join(SCOPES)}", path=file.path
        )
    if not session.id:
        raise WorkloadError("id is empty, expected the session's name", path=file.path)
    return session


WEKA = TraceFormat(
    name="weka",
    summary='agent sessions, one JSON object a file: {"id": "a", "block_size": 64, "requests": [...]}',
    keys=("block_size", "requests", "hash_ids"),
    read_paths=read_paths,
    claims=is_directory_of_sessions,
    clock=Clock(key="t", unit="seconds"),
    is_json=True,
)
