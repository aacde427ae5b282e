"""The hash by which two runs know that they were served the same requests."""

from __future__ import annotations

import hashlib

import msgspec

from kvtop.workloads.rows import Row

VERSION = "kvtop-workload-1"


def workload_hash(rows: list[Row], *, seed: int, vocab_size: int) -> str:
    """SHA-256 (hex) of everything that is served: arrivals, lengths, what is shared, sampling, seed and vocabulary.

    The text hashed is one JSON array a line: ``[VERSION, seed, vocab_size]``, then for each row every field in the
    order of the list below (then ``num_beams``, where it is above 1, and an object of what else there is, by name:
    what makes a closed loop, and which system prompt). Names, paths, formats and compression are not in it: the same
    requests have the same hash.
    """
    digest = hashlib.sha256()
    encoder = msgspec.json.Encoder()
    digest.update(encoder.encode([VERSION, seed, vocab_size]) + b"\n")
    for row in rows:
        digest.update(encoder.encode(_served(row)) + b"\n")
    return digest.hexdigest()


def _served(row: Row) -> list[object]:
    return [
        row.arrival_ns,
        row.prompt_tokens,
        row.output_tokens,
        row.hash_ids,
        row.hash_block_tokens,
        row.shared_tokens,
        row.n,
        row.temperature,
        row.priority,
        row.tenant,
        row.klass,
        row.session_id,
        row.turn,
        row.parent_request_id,
        *([row.num_beams] if row.num_beams > 1 else ()),
        *([more] if (more := _more(row)) else ()),
    ]


def _more(row: Row) -> dict[str, object]:
    values = {
        "think_ns": row.think_ns,
        "after": row.after or None,
        "conversation": row.conversation,
        "shared_id": row.shared_id or None,
    }
    return {name: value for name, value in values.items() if value is not None}
