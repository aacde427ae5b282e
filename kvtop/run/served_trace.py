"""What came in from outside during a run, as a trace that can be replayed: times and lengths, and no text.

Which parts of prompts are equal is kept as ids of whole blocks of tokens: numbers in order of appearance, from which
no token can be told.
"""

from __future__ import annotations

from dataclasses import dataclass
from errno import ENOSPC
from hashlib import blake2b
from io import FileIO
from pathlib import Path

from kvtop.engine.types import RequestSpec
from kvtop.results.files import FileError, replacing, target_of
from kvtop.workloads.formats.base import Trace
from kvtop.workloads.formats.hash_ids import FLOOR
from kvtop.workloads.formats.kvtop_trace import encode_row, write
from kvtop.workloads.rows import Row

NOTICES = [
    "recorded by kvtop serve-api: arrivals, lengths and block ids of prompts; no text, and nothing of the answers",
    "a prompt that repeats an earlier answer shares its blocks with later prompts, but not with that answer",
]


@dataclass(slots=True)
class _Arrival:
    t_ns: int
    spec: RequestSpec
    num_prompt: int
    hash_ids: tuple[int, ...]
    num_output: int = 0  # of all branches


class ServedTrace:
    """Rows of a trace, ``block_tokens`` tokens a block id. About 100 bytes a request, and 8 a block of its prompt.

    A request that has ended is in the file at once, so that a process that is killed loses only what was under way. The
    rows stand there in the order of their ends, which the header says; ``write`` puts all of them in order of arrival.
    """

    def __init__(self, block_tokens: int, path: Path) -> None:
        self._block_tokens, self._path = block_tokens, path
        self._file: FileIO | None = None
        self._refused = False  # the disk did not take a row: ``write`` tries again, and says so
        self._first_ns = 0
        self._rows: dict[str, _Arrival] = {}
        self._ids: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def arrived(self, request_id: str, t_ns: int, spec: RequestSpec) -> None:
        """A request was accepted at ``t_ns`` on the run's clock."""
        tokens = list(spec.prompt)
        ids = self._block_ids(tokens, f"{sorted((spec.extra_key or {}).items())}".encode())
        if not self._rows:
            self._first_ns = t_ns
        bare = RequestSpec(prompt=(), params=spec.params, priority=spec.priority, tenant=spec.tenant)
        self._rows[request_id] = _Arrival(t_ns, bare, len(tokens), ids)

    def emitted(self, request_id: str, count: int) -> None:
        """``count`` more tokens of its answers."""
        self._rows[request_id].num_output += count

    def ended(self, request_id: str) -> None:
        """No token comes any more: its row is written."""
        each = self._rows.get(request_id)
        if each is None or self._refused:
            return
        try:
            self._append(encode_row(self._row(each, self._first_ns)))
        except (OSError, FileError):
            self._refused = True

    def _append(self, line: bytes) -> None:
        if self._file is None:
            trace = Trace(rows=[], notices=NOTICES, format="serve-api", rounding=FLOOR, counted_by="the engine")
            with replacing(self._path) as temp, open(temp, "wb") as file:
                file.writelines(write(trace, in_order=False).lines)
            self._file = FileIO(target_of(self._path), "ab")
        if self._file.write(line) != len(line):
            raise OSError(ENOSPC, "a row was cut off")

    def _block_ids(self, tokens: list[int], before: bytes) -> tuple[int, ...]:
        """One a whole block; equal ids are equal prefixes up to the end of that block."""
        size, ids, found = self._block_tokens, self._ids, []
        for start in range(0, len(tokens) - size + 1, size):
            block = ",".join(map(str, tokens[start : start + size]))
            before = blake2b(before + b"|" + block.encode(), digest_size=16).digest()
            found.append(ids.setdefault(before, len(ids)))
        return tuple(found)

    def write(self) -> None:
        """Write what has come in so far, replacing the file as a whole.

        Raises:
            FileError: the disk refuses.
        """
        arrivals = sorted(self._rows.values(), key=lambda each: each.t_ns)
        rows = [self._row(each, arrivals[0].t_ns) for each in arrivals]
        trace = Trace(rows=rows, notices=NOTICES, format="serve-api", rounding=FLOOR, counted_by="the engine")
        if self._file is not None:
            self._file.close()
        with replacing(self._path) as temp, open(temp, "wb") as file:
            file.writelines(write(trace).lines)

    def _row(self, each: _Arrival, first_ns: int) -> Row:
        params = each.spec.params
        return Row(
            arrival_ns=each.t_ns - first_ns,
            prompt_tokens=each.num_prompt,
            output_tokens=round(each.num_output / params.n),
            hash_ids=each.hash_ids,
            hash_block_tokens=self._block_tokens if each.hash_ids else 0,
            n=params.n,
            temperature=float(params.temperature),
            priority=each.spec.priority,
            tenant=each.spec.tenant,
        )
