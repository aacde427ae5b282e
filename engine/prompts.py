"""What a request may be: its prompt a sequence of token ids, everything else of the type it says."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import cast

from kvtop.engine.checks import check_ids, is_integer
from kvtop.engine.errors import InvalidRequest
from kvtop.engine.types import RequestSpec, SamplingParams

UNSIGNED = "BHILQ"  # formats of memory that holds no negative number
TEXTS = ("tenant", "klass", "session_id", "parent_request_id")


def as_tokens(prompt: object, *, may_wait: bool = False) -> list[int]:
    """The prompt as a list of the engine's own.

    With ``may_wait`` a read-only memoryview stays what it is: nobody changes it, and as a list a prompt takes twenty
    times the room, for as long as it waits. ``own_tokens`` makes what can grow when its sequence is about to start.

    Raises:
        InvalidRequest: not a sequence, or not of integers.
    """
    check_ids(InvalidRequest, "prompt", prompt)
    if may_wait and isinstance(prompt, memoryview) and prompt.readonly:
        return cast("list[int]", prompt)
    return list(cast("Seq[int]", prompt))


def own_tokens(tokens: list[int]) -> list[int]:
    """Those of a sequence that may start now, which can grow: what waited in a memoryview becomes an array.

    As a list of numbers, each an object, it takes five times the room, and twice the time with what is done to it next.
    """
    if not isinstance(tokens, memoryview):
        return tokens
    if tokens.itemsize == 8:  # numbers that no model has may be in it
        return list(tokens)
    import numpy as np

    return cast("list[int]", array("q", np.asarray(tokens).astype(np.int64).tobytes()))


def check_types(spec: RequestSpec) -> None:
    """Everything but the prompt and the extra key. A wrong type found inside a step would stop all requests.

    Raises:
        InvalidRequest: the field, what it is and what was expected.
    """
    if not isinstance(spec.params, SamplingParams):
        raise InvalidRequest(f"params is {type(spec.params).__name__}, expected SamplingParams")
    if spec.request_id is not None and not isinstance(spec.request_id, str):
        raise InvalidRequest(f"request_id is {spec.request_id!r}, expected a string or None")
    if not is_integer(spec.priority):
        raise InvalidRequest(f"priority is {spec.priority!r}, expected an integer of 64 bits")
    if spec.arrival_ns is not None and not is_integer(spec.arrival_ns):
        raise InvalidRequest(f"arrival_ns is {spec.arrival_ns!r}, expected an integer of 64 bits (ns) or None")
    if not is_integer(spec.turn):
        raise InvalidRequest(f"turn is {spec.turn!r}, expected an integer of 64 bits")
    for name in TEXTS:
        if not isinstance(getattr(spec, name), str):
            raise InvalidRequest(f"{name} is {getattr(spec, name)!r}, expected a string")
    if spec.block_keys is not None:
        _check_block_keys(spec.block_keys)


def _check_block_keys(block_keys: object) -> None:
    if not isinstance(block_keys, Mapping):
        raise InvalidRequest(f"block_keys is {type(block_keys).__name__}, expected a mapping of block index to key")
    for index, key in block_keys.items():
        if not is_integer(index, 0):
            raise InvalidRequest(f"block_keys has the index {index!r}, expected an integer >= 0")
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise InvalidRequest(f"block_keys[{index}] is {key!r}, expected a string or integer")


def check_vocabulary(
    request_id: str, tokens: list[int], params: SamplingParams, stops: frozenset[int], vocab_size: int | None
) -> None:
    """Raises InvalidRequest: a token that is none, or stop tokens that ``min_tokens`` forbids and nothing else."""
    last = "" if vocab_size is None else vocab_size - 1
    if (bad := outside(tokens, vocab_size)) is not None:
        raise InvalidRequest(f"request {request_id!r}: token id {bad} is outside the vocabulary (0 to {last})")
    if params.forced_output is not None:
        if vocab_size is not None and (bad := max(params.forced_output)) >= vocab_size:  # none is negative
            raise InvalidRequest(f"request {request_id!r}: forced_output has {bad}, the vocabulary is 0 to {last}")
    elif params.min_tokens and len(stops) == vocab_size:
        raise InvalidRequest(
            f"request {request_id!r}: min_tokens is {params.min_tokens}, but all {vocab_size} tokens of the vocabulary "
            f"are stop tokens: none is left to go on with"
        )


def outside(tokens: list[int], vocab_size: int | None) -> int | None:
    """One that is no token of the vocabulary, if there is any. ``vocab_size`` None: all from 0 on are tokens."""
    if vocab_size is None:
        if isinstance(tokens, memoryview) and tokens.format in UNSIGNED:
            return None
        try:
            array("I", tokens)  # takes no negative number, and half the time of ``min``
            return None
        except OverflowError:
            vocab_size = max(tokens) + 1
    low, high = min(tokens), max(tokens)
    return low if low < 0 else high if high >= vocab_size else None
