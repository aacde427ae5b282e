"""KV events recorded from a running server (``kvtop attach --record``) as a workload: what was stored behind what.

Servers report blocks, not requests. One is taken to be a run of blocks stored behind each other: what comes first, in
one piece or several of two blocks and more, is its prompt (with all blocks above it, which it found in the cache); a
single block stored later at its end is output. So lengths are whole blocks, rounded down; a prompt that was found whole
stored nothing and is not seen, and neither is what stayed below one block. The notices say so.

The file is a row of zstd frames, and their content a row of msgpack binaries, each a list of events as maps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.formats.base import Clock, ReadOptions, Stamped, Trace, TraceFormat, finish
from kvtop.workloads.formats.hash_ids import FLOOR
from kvtop.workloads.rows import Row
from kvtop.workloads.words import counted

FRAMES, MANIFEST = "frames.msgpack.zst", "run.json"
PAUSE_NS = 30_000_000_000  # a block stored at the end of a run that has been silent for so long begins another request


@dataclass(slots=True)
class _Served:
    """One run of blocks: a request, as far as it can be told."""

    t_ns: int
    prompt: tuple[int, ...]  # ids
    num_output: int = 0  # blocks
    last_ns: int = 0


@dataclass(slots=True)
class _Chains:
    """Blocks as they were stored: ids in order of appearance, the chain above each."""

    served: list[_Served] = field(default_factory=list)
    num_unknown: int = 0  # stored under a block that nobody told of
    _ids: dict[int, int] = field(default_factory=dict)
    _above: dict[int, int | None] = field(default_factory=dict)  # key -> its parent's
    _open: dict[int, _Served] = field(default_factory=dict)  # last key of a run -> the request

    def store(self, t_ns: int, parent: int | None, keys: list[int]) -> None:
        above = parent
        for key in keys:
            self._ids.setdefault(key, len(self._ids))
            self._above[key], above = above, key
        request = self._open.pop(parent, None) if parent is not None else None
        goes_on = (
            request is not None and t_ns - request.last_ns <= PAUSE_NS and (len(keys) == 1 or not request.num_output)
        )
        if request is None or not goes_on:
            request = _Served(t_ns, self._chain(keys[-1]))
            self.served.append(request)
        elif len(keys) == 1:
            request.num_output += 1
        else:
            request.prompt = self._chain(keys[-1])
        request.last_ns = t_ns
        self._open[keys[-1]] = request

    def _chain(self, key: int) -> tuple[int, ...]:
        chain: list[int] = []
        seen: set[int] = set()
        at: int | None = key
        while at is not None:
            if at not in self._ids or at in seen:  # a block below itself: what is above it is not known either
                self.num_unknown += 1
                break
            seen.add(at)
            chain.append(self._ids[at])
            at = self._above[at]
        return tuple(reversed(chain))


def read_paths(paths: list[Path], options: ReadOptions) -> Trace:
    """Read one recording.

    Raises:
        WorkloadError: no recording of KV events, or more than one path.
    """
    if len(paths) > 1:
        raise WorkloadError(f"{len(paths)} recordings are given, expected one", path=paths[1])
    path = paths[0] / FRAMES
    chains, size = _Chains(), 0
    num_gaps = 0
    for event in _events(path):
        kind = event.get("e")
        if kind == "key" and isinstance(event.get("block_size"), int):
            size = max(size, event["block_size"])
        elif kind == "kv":
            num_gaps += sum("lost" in note or "before kvtop listened" in note for note in event.get("notes", ()))
            for parent, keys in _stores(event.get("decisions", ())):
                chains.store(event["t_ns"], parent, keys)
    if not chains.served or not size:
        raise WorkloadError(
            "holds no stored block: it was recorded without --kv-events, or nothing happened", path=path
        )
    stamped = [Stamped(number + 1, request.t_ns, _row(request, size)) for number, request in enumerate(chains.served)]
    return finish(
        stamped,
        OBSERVED,
        path=str(paths[0]),
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        notices=_notices(chains, size, num_gaps),
        counted_by="the server",
        rounding=FLOOR,
    )


def _row(request: _Served, size: int) -> Row:
    return Row(
        0,
        len(request.prompt) * size,
        max(1, request.num_output * size),
        hash_ids=request.prompt,
        hash_block_tokens=size,
    )


def _notices(chains: _Chains, size: int, num_gaps: int) -> list[str]:
    notices = [
        f"requests are told from the blocks they stored: lengths are whole blocks of {size}, rounded down, and prompts "
        f"that were found whole in the cache are missing"
    ]
    if chains.num_unknown:
        notices.append(f"{counted(chains.num_unknown, 'request')} stored blocks under ones that were never reported")
    if num_gaps:
        notices.append(f"events were lost {counted(num_gaps, 'time')}: requests are missing there")
    return notices


def _stores(decisions: Any) -> Iterator[tuple[int | None, list[int]]]:
    """(parent, keys stored behind each other) of one event, in order; of the first KV group."""
    first: int | None = None
    keys: list[int] = []
    for decision in decisions:
        if decision[0] != "publish" or decision[2]:
            continue
        key, parent = decision[4], decision[5]
        if keys and parent == keys[-1]:
            keys.append(key)
            continue
        if keys:
            yield first, keys
        first, keys = parent, [key]
    if keys:
        yield first, keys


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """Every event of a recording. What a killed writer left incomplete at its end is passed over."""
    import zstandard

    try:
        with (
            open(path, "rb") as file,
            zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as plain,
        ):
            while len(head := plain.read(5)) == 5 and head[0] == 0xC6:
                body = plain.read(int.from_bytes(head[1:], "big"))
                yield from (event for event in msgspec.msgpack.decode(body) if isinstance(event, dict))
    except OSError as error:
        raise WorkloadError(f"cannot be read: {error.strerror or error}", path=path) from None
    except (zstandard.ZstdError, msgspec.DecodeError):
        return


def is_observed(path: Path) -> bool:
    """Whether a directory is a recording of attached servers."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.get("executor") == "attached" and (path / FRAMES).is_file()


OBSERVED = TraceFormat(
    name="observed",
    summary="the directory of a recording of running servers (kvtop attach --record --kv-events)",
    keys=(),
    read_paths=read_paths,
    claims=is_observed,
    clock=Clock(key="t_ns", unit="nanoseconds since kvtop began to look", absolute=True),
)
