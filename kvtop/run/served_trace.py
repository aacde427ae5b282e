"""What came in from outside during a run, as a trace that can be replayed: times and lengths, and no text.

Which parts of prompts are equal is kept as ids of whole blocks of tokens: numbers in order of appearance, from which
no token can be told.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from kvtop.engine.types import RequestSpec
from kvtop.results.files import replacing
from kvtop.workloads.formats.base import Trace
from kvtop.workloads.formats.hash_ids import FLOOR
from kvtop.workloads.formats.kvtop_trace import write
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
    """Rows of a trace, ``block_tokens`` tokens a block id. About 100 bytes a request, and 8 a block of its prompt."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._rows: dict[str, _Arrival] = {}
        self._ids: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def arrived(self, request_id: str, t_ns: int, spec: RequestSpec) -> None:
        """A request was accepted at ``t_ns`` on the run's clock."""
        tokens = list(spec.prompt)
        ids = self._block_ids(tokens, f"{sorted((spec.extra_key or {}).items())}".encode())
        bare = RequestSpec(prompt=(), params=spec.params, priority=spec.priority, tenant=spec.tenant)
        self._rows[request_id] = _Arrival(t_ns, bare, len(tokens), ids)

    def emitted(self, request_id: str, count: int) -> None:
        """``count`` more tokens of its answers."""
        self._rows[request_id].num_output += count

    def _block_ids(self, tokens: list[int], before: bytes) -> tuple[int, ...]:
        """One a whole block; equal ids are equal prefixes up to the end of that block."""
        size, ids, found = self._block_tokens, self._ids, []
        for start in range(0, len(tokens) - size + 1, size):
            block = ",".join(map(str, tokens[start : start + size]))
            before = blake2b(before + b"|" + block.encode(), digest_size=16).digest()
            found.append(ids.setdefault(before, len(ids)))
        return tuple(found)

    def write(self, path: Path) -> None:
        """Write what has come in so far, replacing ``path`` as a whole.

        Raises:
            FileError: the disk refuses.
        """
        arrivals = sorted(self._rows.values(), key=lambda each: each.t_ns)
        rows = [self._row(each, arrivals[0].t_ns) for each in arrivals]
        trace = Trace(rows=rows, notices=NOTICES, format="serve-api", rounding=FLOOR, counted_by="the engine")
        with replacing(path) as temp, open(temp, "wb") as file:
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
