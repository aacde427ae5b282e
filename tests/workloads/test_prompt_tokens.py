"""Equal hash ids are equal tokens, different ones differ, and all of it depends on seed and id alone."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.workloads.rows import Row
from kvtop.workloads.tokens import STREAM_HASH, STREAM_OWN, TokenMaker

VOCAB = 49_152


def hashed(prompt_tokens: int, *ids: int, block: int = 512) -> Row:
    return Row(0, prompt_tokens, 1, hash_ids=ids, hash_block_tokens=block)


def common(a: list[int], b: list[int]) -> int:
    """Length of the common prefix, token by token."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def splitmix_word(key: int, counter: int) -> int:
    """SplitMix64 in plain Python integers, as published."""
    mask = (1 << 64) - 1
    z = (key + counter * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_rows_share_exactly_the_blocks_of_their_common_ids():
    maker = TokenMaker(0, VOCAB)
    a = maker.prompt(hashed(1500, 0, 1, 2), 0)
    b = maker.prompt(hashed(1500, 0, 1, 3), 1)
    c = maker.prompt(hashed(600, 0, 4), 2)
    assert (len(a), len(b), len(c)) == (1500, 1500, 600)
    assert common(a, b) == 1024
    assert common(a, c) == 512


def test_a_partial_block_is_a_prefix_of_the_whole_one():
    maker = TokenMaker(0, VOCAB)
    whole = maker.prompt(hashed(1024, 0, 9), 0)
    for part in (513, 514, 700, 1023):
        assert maker.prompt(hashed(part, 0, 9), 5) == whole[:part]


def test_position_in_the_workload_does_not_matter_with_ids_and_does_without():
    maker = TokenMaker(0, VOCAB)
    assert maker.prompt(hashed(700, 0, 1), 0) == maker.prompt(hashed(700, 0, 1), 99)
    assert common(maker.prompt(Row(0, 700, 1), 0), maker.prompt(Row(0, 700, 1), 1)) == 0


def test_the_tail_beyond_the_ids_belongs_to_the_row():
    maker = TokenMaker(0, VOCAB)
    a, b = (maker.prompt(hashed(150, 0, 1, block=64), i) for i in (0, 1))
    assert common(a, b) == 128


def test_a_shared_head_is_shared_and_nothing_more():
    maker = TokenMaker(0, VOCAB)
    a, b = (maker.prompt(Row(0, 300, 1, shared_tokens=256), i) for i in (0, 1))
    assert common(a, b) == 256


def test_another_seed_gives_other_tokens():
    row = hashed(2048, 0, 1, 2, 3)
    a, b = TokenMaker(0, VOCAB).prompt(row, 0), TokenMaker(1, VOCAB).prompt(row, 0)
    assert sum(x == y for x, y in zip(a, b, strict=True)) < 5


@pytest.mark.parametrize("vocab_size", [1, 2, 7, 8, 100, 257, 49_152, 262_144])
def test_ids_stay_inside_the_vocabulary_and_off_its_first_ids(vocab_size: int):
    tokens = TokenMaker(3, vocab_size).prompt(hashed(4096, *range(8)), 0)
    assert min(tokens) >= min(32, vocab_size // 8)
    assert max(tokens) < vocab_size
    assert all(type(token) is int for token in tokens[:10])


@given(
    seed=st.integers(0, 2**64 - 1),
    vocab_size=st.integers(2, 300_000),
    ids=st.lists(st.integers(0, 2**20), min_size=2, max_size=50, unique=True),
)
@settings(deadline=None, max_examples=100)
def test_ids_below_the_squared_span_differ_within_two_tokens(seed: int, vocab_size: int, ids: list[int]):
    maker = TokenMaker(seed, vocab_size)
    few = [i for i in ids if i < maker.span**2]
    heads = {tuple(head) for head in maker.items(STREAM_HASH, few, 2).tolist()}
    assert len(heads) == len(few)
    firsts = [i for i in ids if i < maker.span]
    assert len({head[0] for head in maker.items(STREAM_HASH, firsts, 2).tolist()}) == len(firsts)


def test_later_tokens_are_splitmix64_of_their_counter():
    maker = TokenMaker(0, VOCAB)
    tokens = maker.items(STREAM_HASH, [5], 40)[0].tolist()
    stream_key = splitmix_word(maker._seed_key, STREAM_HASH)
    key = splitmix_word(stream_key, 5)
    span = VOCAB - 32
    want = [32 + ((splitmix_word(key, j + 1) >> 32) * span >> 32) for j in range(40)]
    assert tokens[2:] == want[2:]


def test_tokens_are_spread_evenly():
    tokens = TokenMaker(0, 132).items(STREAM_OWN, [0], 100_000)[0] - 16
    counts = np.bincount(tokens, minlength=116)
    expected = 100_000 / 116
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert chi2 < 200  # 115 degrees of freedom: mean 115, standard deviation 15


def test_tokens_are_the_same_in_another_process():
    code = (
        "from kvtop.workloads.rows import Row; from kvtop.workloads.tokens import TokenMaker;"
        "print(TokenMaker(7, 1000).prompt(Row(0, 40, 1, hash_ids=(3, 2**63 - 1), hash_block_tokens=32), 0))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    row = Row(0, 40, 1, hash_ids=(3, 2**63 - 1), hash_block_tokens=32)
    assert out.strip() == str(TokenMaker(7, 1000).prompt(row, 0))
