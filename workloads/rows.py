"""One row of a workload, whatever it was read or generated from."""

from __future__ import annotations

import msgspec

MAX_LENGTH_TOKENS = 10_000_000
"""No model has a context of this length: a longer row is a broken row, and would be materialised."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """One request to come: when, how long, and which part of its prompt it has in common with others.

    The prompt is, from position 0: ``shared_tokens`` tokens that every row has in common, then one block of
    ``hash_block_tokens`` tokens for each of ``hash_ids`` (the last one may be partial), then tokens of its own.
    ``arrival_ns`` counts from the workload's first arrival, which is 0.
    """

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    hash_block_tokens: int = 0  # 0: no hash ids
    shared_tokens: int = 0
    n: int = 1  # parallel samples, or answers of a beam search
    num_beams: int = 1
    temperature: float = 0.0
    priority: int = 0
    tenant: str = ""
    klass: str = ""
    session_id: str = ""
    turn: int = 0
    parent_request_id: str = ""


class RowSet(msgspec.Struct, frozen=True):
    """Rows in order of arrival, the first at 0, and what the user should know about how they came about."""

    rows: list[Row]
    notices: list[str] = []
    trace_sha256: str | None = None  # of the file as it is on disk; None for generated rows
    format: str | None = None
