"""Token ids of prompts that nobody recorded: a pure function of seed, stream and index, in any order and process.

Token j of item k of a stream is SplitMix64 at counter j under a key made from (seed, stream, k): the first m tokens of
an item do not depend on how many are asked for, so a partial block is a prefix of the whole one. The first two
tokens spell k in base ``span`` (each digit through a seeded permutation), so that items below ``span`` differ in their
very first token and items below ``span``² in their first two, certainly and not only with high probability.

SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kvtop.workloads.rows import Row, own_tokens

U64 = NDArray[np.uint64]
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_SHIFT_A, _SHIFT_B, _SHIFT_C = np.uint64(30), np.uint64(27), np.uint64(31)
_MUL_A, _MUL_B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

STREAM_HASH, STREAM_SHARED, STREAM_OWN, STREAM_SAMPLING, STREAM_CONVERSATION = 1, 2, 3, 4, 5
MAX_RESERVED = 32
"""Ids left out at the low end, where tokenizers keep their special tokens (an eighth of a small vocabulary)."""


class TokenMaker:
    """Makes the prompts of one workload. ``vocab_size`` ids, of which the first few are never used."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        if vocab_size < 1:
            raise ValueError(f"vocab_size is {vocab_size}, expected at least 1")
        self.seed = seed
        self.low = min(MAX_RESERVED, vocab_size // 8)
        self.span = vocab_size - self.low
        self._seed_key = _mix_int(seed & _MASK)
        self._stored = np.uint16 if vocab_size <= 1 << 16 else np.uint32

    def prompt(self, row: Row, index: int) -> list[int]:
        """The ``row.prompt_tokens`` ids of the row at position ``index`` of its workload."""
        return self._prompt(row, index).tolist()

    def packed_prompt(self, row: Row, index: int) -> memoryview:
        """The same, read-only, in two or four bytes a token: an overloaded engine keeps thousands of them waiting."""
        return self._prompt(row, index).astype(self._stored).data.toreadonly()

    def _prompt(self, row: Row, index: int) -> NDArray[np.int64]:
        parts = []
        if row.shared_tokens:
            parts.append(self.items(STREAM_SHARED, [row.shared_id], row.shared_tokens)[0])
        own = own_tokens(row)
        if in_blocks := row.prompt_tokens - row.shared_tokens - own:
            parts.append(self.items(STREAM_HASH, row.hash_ids, row.hash_block_tokens).reshape(-1)[:in_blocks])
        if own:
            talks = row.conversation
            stream, item = (STREAM_OWN, index) if talks is None else (STREAM_CONVERSATION, talks)
            parts.append(self.items(stream, [item], own)[0])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def answer(self, row: Row) -> tuple[int, ...] | None:
        """The ``row.output_tokens`` ids that follow the prompt in its conversation; None: it is in none."""
        if row.conversation is None:
            return None
        own = own_tokens(row)
        said = self.items(STREAM_CONVERSATION, [row.conversation], own + row.output_tokens)[0]
        return tuple(said[own:].tolist())

    def items(self, stream: int, indices: list[int] | tuple[int, ...], num_tokens: int) -> NDArray[np.int64]:
        """``num_tokens`` ids of each item: shape (len(indices), num_tokens)."""
        stream_key = _mix_int(self._seed_key + stream * _GOLDEN)
        ids = np.array(indices, dtype=np.uint64)
        keys = _mix(np.uint64(stream_key) + ids * np.uint64(_GOLDEN))
        counters = np.arange(1, num_tokens + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
        words = _mix(keys[:, None] + counters[None, :])
        # The high 32 bits scaled to the span: no modulo bias worth the name, and no division.
        tokens = ((words >> np.uint64(32)) * np.uint64(self.span)) >> np.uint64(32)
        digits = ids
        for column in range(min(2, num_tokens)):
            multiplier, offset = self._permutation(stream_key, column)
            digit = digits % np.uint64(self.span)
            tokens[:, column] = (digit * np.uint64(multiplier) + np.uint64(offset)) % np.uint64(self.span)
            digits = digits // np.uint64(self.span)
        return tokens.astype(np.int64) + self.low

    def sampling_seed(self, index: int) -> int:
        """The seed a row's sampling starts from: 0 .. 2^63 - 1."""
        return _mix_int(_mix_int(self._seed_key + STREAM_SAMPLING * _GOLDEN) + index * _GOLDEN) >> 1

    def _permutation(self, stream_key: int, column: int) -> tuple[int, int]:
        """x -> (multiplier * x + offset) mod span, with multiplier and span coprime."""
        word = _mix_int(stream_key + (column + 17) * _GOLDEN)
        multiplier, offset = (word >> 32) % self.span, (word & 0xFFFFFFFF) % self.span
        while math.gcd(multiplier, self.span) != 1:
            multiplier = (multiplier + 1) % self.span if self.span > 1 else 1
        return multiplier, offset


def _mix(words: U64) -> U64:
    words = (words ^ (words >> _SHIFT_A)) * _MUL_A
    words = (words ^ (words >> _SHIFT_B)) * _MUL_B
    return words ^ (words >> _SHIFT_C)


def _mix_int(word: int) -> int:
    """``_mix`` of one Python integer: numpy warns about overflow of scalars, not of arrays."""
    word &= _MASK
    word = ((word ^ (word >> 30)) * int(_MUL_A)) & _MASK
    word = ((word ^ (word >> 27)) * int(_MUL_B)) & _MASK
    return word ^ (word >> 31)
