"""One row of a workload, whatever it was read or generated from."""

from __future__ import annotations

import msgspec

MAX_LENGTH_TOKENS = 10_000_000
"""No model has a context of this length: a longer row is a broken row, and would be materialised."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """One request to come: when, how long, and which part of its prompt it has in common with others.

    The prompt is, from position 0: the first ``shared_tokens`` tokens of system prompt ``shared_id``, then one block of
    ``hash_block_tokens`` tokens for each of ``hash_ids`` (the last one may be partial), then tokens of its own.
    ``arrival_ns`` counts from the workload's first arrival, which is 0.

    A row with ``think_ns`` waits for others (closed loop): it is due that long after the last of these has ended, its
    session's previous turn and every turn in ``after``. Turns of one session that wait are in order of arrival. Such a
    row's ``arrival_ns`` is the recorded one: it orders the rows, and is the time of an open-loop replay. A row that
    waits for nobody (the first of its session, or the others were cut away) arrives at ``arrival_ns``.

    Sub-agents are sessions of their own. The first turn of one has ``after`` = the parent's turn that started it; the
    parent's next turn has the last turns of all that it waits for in its ``after``, and its ``think_ns`` counts from
    the last of them.

    With ``conversation``, the tokens of its own are the first ones of that conversation, and the answer is made of
    those that come next, whatever a model would say: the next turn's prompt is this one, the answer and new user text.
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
    parent_request_id: str = ""  # "": the request whose end makes this one due, if it waits for any
    think_ns: int | None = None  # None: due at ``arrival_ns`` (open loop)
    after: tuple[tuple[str, int], ...] = ()  # (session_id, turn) of turns of other sessions
    conversation: int | None = None
    shared_id: int = 0


def own_tokens(row: Row) -> int:
    """How many tokens at the end of the prompt are neither shared by all rows nor in a hash block."""
    rest = row.prompt_tokens - row.shared_tokens
    return rest - min(len(row.hash_ids) * row.hash_block_tokens, rest)


class RowSet(msgspec.Struct, frozen=True):
    """Rows in order of arrival, the first at 0, and what the user should know about how they came about."""

    rows: list[Row]
    notices: list[str] = []
    trace_sha256: str | None = None  # of the file as it is on disk; None for generated rows
    format: str | None = None
    nominal_arrivals: bool = False  # nobody recorded when rows with ``think_ns`` arrived: there is no open loop of them
