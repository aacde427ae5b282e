"""Evicted keys against an ordered dict that is trimmed key by key, and packed tokens against the tokens themselves."""

from __future__ import annotations

from collections import OrderedDict
from random import Random

import pytest

from kvtop.engine.ghosts import Ghosts
from kvtop.engine.keys import default_key, default_keys, pack


@pytest.mark.parametrize("num_entries", [0, 1, 7, 40])
def test_ghosts_are_those_of_an_ordered_dict(num_entries: int) -> None:
    rng, ghosts, model = Random(num_entries), Ghosts(num_entries), OrderedDict[int, tuple[int, str]]()
    for step in range(3000):
        keys = [rng.randrange(60) for _ in range(rng.randrange(1, 9))]  # some twice
        if rng.random() < 0.5:
            ghosts.remember(keys, step, f"r{step}")
            for key in keys:
                model.pop(key, None)
                model[key] = (step, f"r{step}")
            while len(model) > num_entries:
                model.popitem(last=False)
        else:
            ghosts.forget(keys)
            for key in keys:
                model.pop(key, None)
        ends = {key: ghosts.get(key) for key in range(60)}
        assert {key: (end.step, end.cause) for key, end in ends.items() if end is not None} == model
    assert ghosts._num_in_runs <= 2 * num_entries + 1024


def test_packed_blocks_are_equal_exactly_where_tokens_are() -> None:
    values = [0, 1, 255, 256, 2**40, 2**63, 2**64 - 1, 2**64, 2**70]
    rng = Random(1)
    prompts = [tuple(rng.choice(values) for _ in range(4)) for _ in range(60)] + [(1, 256, 0, 1)] * 2
    for left in prompts:
        for right in prompts:
            equal = [a == b for a, b in zip(pack(left, 2), pack(right, 2), strict=True)]
            assert equal == [left[:2] == right[:2], left[2:] == right[2:]]


def test_keys_of_a_chain_are_those_of_its_blocks_one_by_one() -> None:
    blocks = [(1, 2), (3, 4), (3, 4)]
    first = default_key(5, blocks[0], None)
    second = default_key(first, blocks[1], None)
    assert default_keys(5, blocks) == [first, second, default_key(second, blocks[2], None)]
