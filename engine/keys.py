"""Keys of whole blocks of tokens, and the form in which the cache remembers their tokens."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence

Tokens = tuple[int, ...]
Packed = bytes | Tokens
"""The tokens of a block as the cache keeps them, to compare on a hit: equal for equal tokens, and only for them."""

BlockExtra = str | int | None
KeyFn = Callable[[int, Tokens, BlockExtra], int]


def stable_int(value: Hashable) -> int:
    """A 63-bit number for ``value``, equal in every process (``hash`` of a string is not)."""
    digest = hashlib.blake2b(repr(value).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def default_key(parent_key: int, tokens: Tokens, extra: BlockExtra) -> int:
    """Key of a block behind ``parent_key``. Hashes of integers do not depend on the hash seed."""
    return hash((parent_key, tokens) if extra is None else (parent_key, tokens, stable_int(extra)))


def default_keys(parent_key: int, blocks: Iterable[Tokens]) -> list[int]:
    """``default_key`` of each block of a chain without extra keys, at half the price of a call for each."""
    key = parent_key
    return [key := hash((key, tokens)) for tokens in blocks]


def prompt_keys(tokens: Sequence[int], size: int) -> list[int]:
    """Keys of the whole blocks of a prompt without extra keys."""
    return default_keys(0, zip(*[iter(tokens)] * size, strict=False))


def pack(tokens: Sequence[int], size: int) -> list[Packed]:
    """Whole blocks of ``size`` tokens, eight bytes a token; an array (of type q) has them in this form already.

    A block lives long after its tokens were used last: as a tuple it costs more to throw away than to make, because
    all its numbers are looked at again.
    """
    try:
        values = tokens.tobytes() if isinstance(tokens, array) else array("Q", tokens).tobytes()
    except OverflowError:  # a number that no model has, but the null executor takes
        return [block for at in range(0, len(tokens), size) for block in _pack_one(tuple(tokens[at : at + size]))]
    width = 8 * size
    return [values[at : at + width] for at in range(0, len(values), width)]


def _pack_one(block: Tokens) -> list[Packed]:
    try:
        return [array("Q", block).tobytes()]
    except OverflowError:
        return [block]
