"""What a prompt may be: a sequence of token ids. Looked through by C loops only: a prompt has thousands."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from operator import countOf

from kvtop.engine.errors import InvalidRequest

INTEGER_CODES = "bBhHiIlLqQ"


def as_tokens(prompt: object) -> list[int]:
    """The prompt as a list of the engine's own.

    Raises:
        InvalidRequest: not a sequence, or not of integers.
    """
    if isinstance(prompt, range) or (isinstance(prompt, array) and prompt.typecode in INTEGER_CODES):
        return list(prompt)  # nothing else can be in it
    if not isinstance(prompt, Seq) or isinstance(prompt, str | bytes):
        raise InvalidRequest(f"prompt is {type(prompt).__name__}, expected a sequence of token ids")
    if countOf(map(type, prompt), int) < len(prompt):
        index, bad = next((i, token) for i, token in enumerate(prompt) if type(token) is not int)
        raise InvalidRequest(f"prompt[{index}] is {bad!r}, expected a token id (an integer)")
    return list(prompt)


def outside(tokens: list[int], vocab_size: int | None) -> int | None:
    """One that is no token of the vocabulary, if there is any. ``vocab_size`` None: all from 0 on are tokens."""
    if vocab_size is None:
        try:
            array("I", tokens)  # takes no negative number, and half the time of ``min``
            return None
        except OverflowError:
            vocab_size = max(tokens) + 1
    low, high = min(tokens), max(tokens)
    return low if low < 0 else high if high >= vocab_size else None
