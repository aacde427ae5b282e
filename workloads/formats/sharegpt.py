"""ShareGPT JSON: a list of conversations, each a list of messages with text. Every answer becomes a turn.

``[{"id": ..., "conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}, ...]}, ...]``
A turn's prompt is everything said before the answer, its output the answer; later turns begin with earlier ones and
their answers, token for token. Tokens are counted from the text, by a tokenizer where one is given. Neither arrivals
nor think times are recorded: conversations need an arrival_rate, and a turn follows the one before at once.
"""

from __future__ import annotations

import msgspec

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.files import TextFile
from kvtop.workloads.formats.base import Clock, ReadOptions, Stamped, Trace, TraceFormat, check_length, finish
from kvtop.workloads.formats.json_rows import json_document
from kvtop.workloads.formats.text_tokens import TokenCounter
from kvtop.workloads.rows import Row
from kvtop.workloads.words import counted, shorten

ANSWERS = {"gpt", "chatgpt", "assistant", "model", "bing", "bard", "claude"}
OTHERS = {"human", "user", "system", "tool", "function", "observation", "function_response"}


class _Message(msgspec.Struct, rename={"from_": "from"}, gc=False):
    from_: str
    value: str | None = None


class _Conversation(msgspec.Struct, gc=False):
    conversations: list[_Message]
    id: str | int | None = None


_decode = msgspec.json.Decoder(list[_Conversation]).decode


def read(file: TextFile, options: ReadOptions) -> Trace:
    """Read every conversation.

    Raises:
        WorkloadError: not such a file (with the place), or a message from somebody unknown.
    """
    counter = TokenCounter(options.tokenizer)
    stamped: list[Stamped] = []
    num_silent = 0
    found = json_document(file, _decode, 'a list like [{"conversations": [{"from": "human", "value": "..."}]}]')
    for number, conversation in enumerate(found):
        messages = [
            (_is_answer(message.from_, f"{file.path}: [{number}].conversations[{i}]"), message.value or "")
            for i, message in enumerate(conversation.conversations)
        ]
        rows = turns(messages, counter, number, f"{file.path}: [{number}]")
        num_silent += not rows
        stamped += [Stamped(number + 1, None, row) for row in rows]
    notices = unrecorded(stamped)
    if num_silent:
        notices.append(f"{counted(num_silent, 'conversation')} without a question and an answer dropped")
    trace = finish(stamped, SHAREGPT, path=file.path, sha256=file.sha256, notices=notices, counted_by=counter.name)
    return msgspec.structs.replace(trace, nominal_arrivals=True)


def turns(messages: list[tuple[bool, str]], counter: TokenCounter, number: int, place: str) -> list[Row]:
    """A row for each answer, from (is an answer, text) of every message of one conversation.

    An answer to nothing, an empty one, and one right after another are part of what later prompts hold.
    """
    rows: list[Row] = []
    said = 0
    after_answer = False
    for is_answer, text in messages:
        tokens = counter.count(text)
        if is_answer and not after_answer and said and tokens:
            check_length(said + tokens, "a conversation", path=place, line=None)
            rows.append(
                Row(
                    0,
                    said,
                    tokens,
                    session_id=f"c{number}",
                    turn=len(rows) + 1,
                    think_ns=0 if rows else None,
                    conversation=number,
                )
            )
        said += tokens
        after_answer = is_answer
    return rows


def unrecorded(stamped: list[Stamped]) -> list[str]:
    """What to know about turns of which only the text is recorded."""
    num_turns = sum(entry.row.think_ns is not None for entry in stamped)
    if not num_turns:
        return []
    return [f"{counted(num_turns, 'think time')} not recorded: a turn follows at once when the answer before has ended"]


def _is_answer(sender: str, place: str) -> bool:
    name = sender.lower()
    if name not in ANSWERS and name not in OTHERS:
        known = ", ".join(sorted(ANSWERS | OTHERS))
        raise WorkloadError(f"message from {shorten(sender)}, expected one of {known}", path=place)
    return name in ANSWERS


SHAREGPT = TraceFormat(
    name="sharegpt",
    summary='JSON list of conversations: [{"conversations": [{"from": "human", "value": "Hi"}, ...]}, ...]',
    keys=("conversations", "from", "value"),
    read=read,
    clock=Clock(key="arrival", unit="seconds"),
    is_json=True,
)
