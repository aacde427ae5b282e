"""Tile sizes and splits, from shapes alone: nothing here looks at lengths, so a launch never waits for the device.

Sized for GPUs with about 200 KiB of shared memory and 250 KiB of registers a multiprocessor (A100, H100, H200).
"""

from __future__ import annotations

from dataclasses import dataclass

TILE_BYTES = 16_384  # of K a program has under way a stage, and as much of V
TILE_ELEMENTS = 8192  # more would not leave registers for three programs on a multiprocessor
PROGRAMS_PER_PROCESSOR = 8  # about three run at a time: the last ones to end are then a small part
MAX_SPLIT_TOKENS = 16_384  # keys one program reads at most: what a long sequence may lag behind a batch of short ones
MIN_SPLIT_TOKENS = 256  # fewer keys a program cost more in starting it and merging than they gain
MAX_SPLITS = 128


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """``tile`` keys an iteration; a sequence's tiles go to ``num_splits`` programs, at least ``min_tiles`` each."""

    tile: int
    num_splits: int
    min_tiles: int
    num_warps: int = 4
    num_stages: int = 3


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """``rows`` (query, head) pairs of one KV head a program, ``tile`` keys an iteration."""

    rows: int
    tile: int
    num_warps: int = 4
    num_stages: int = 2


def next_power(n: int, least: int = 1) -> int:
    """Smallest power of two >= n and >= least."""
    return max(least, 1 << max(n - 1, 0).bit_length())


def decode_config(
    num_seqs: int, kv_heads: int, max_keys: int, dim: int, itemsize: int, num_processors: int
) -> DecodeConfig:
    """``max_keys`` any sequence of the launch may have (the width of its block tables, or its window).

    The tile holds TILE_BYTES of K whatever the block size: small blocks are read several an iteration.
    """
    elements = min(TILE_ELEMENTS, TILE_BYTES // itemsize)
    tile = min(128, max(16, elements // next_power(dim)))
    programs = max(1, num_seqs * kv_heads)
    wanted = max(-(-num_processors * PROGRAMS_PER_PROCESSOR // programs), -(-max_keys // MAX_SPLIT_TOKENS))
    useful = max(1, -(-max_keys // MIN_SPLIT_TOKENS))
    # Powers of two: kernels are compiled for each number of splits, and lengths change all the time.
    splits = min(next_power(wanted), 1 << useful.bit_length() - 1, MAX_SPLITS)
    stages = 4 if itemsize == 1 else 3  # as many bytes under way from smaller elements
    return DecodeConfig(tile, splits, max(1, MIN_SPLIT_TOKENS // tile), num_stages=stages)


def prefill_config(group: int, dim: int, itemsize: int) -> PrefillConfig:
    """``group`` query heads share a KV head and its tiles."""
    big = next_power(dim) * itemsize > 256  # head size above 128 in half precision, above 64 in fp32
    rows = next_power(group, 32 if big else 64)
    return PrefillConfig(rows, 32 if big else 64, num_warps=8 if itemsize == 4 else 4)
