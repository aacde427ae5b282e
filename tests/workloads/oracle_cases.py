"""What the tests of the oracle share: rows as a trace may hold them, and caches written down block by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations
from typing import NamedTuple

import msgspec
from hypothesis import strategies as st

from kvtop.workloads.rows import Row
from kvtop.workloads.tokens import TokenMaker

replace = msgspec.structs.replace
Block = tuple[int, ...]  # all tokens from position 0 to its end


MAKER = TokenMaker(0, 1 << 40)
"""Makes so many different tokens that no two streams meet by chance."""


@st.composite
def row_lists(draw: st.DrawFn, max_rows: int = 12) -> list[Row]:
    """Ids of prefixes or only of blocks, partial last blocks, tails of their own, system prompts, conversations."""
    block = draw(st.integers(1, 9))
    shared = st.sampled_from([0, *draw(st.lists(st.integers(1, 12), max_size=2))])
    talks = st.sampled_from([None, 0, 1]) if draw(st.booleans()) else st.none()
    rows = []
    for _ in range(draw(st.integers(1, max_rows))):
        ids = tuple(draw(st.lists(st.integers(0, 2), max_size=5)))
        cut = draw(st.integers(0, block - 1)) if ids else 0
        own = draw(st.integers(0, 20)) if not cut else 0
        common = draw(shared)
        tokens = max(1, common + len(ids) * block - cut + own)
        answer = draw(st.integers(1, 12))
        row = Row(0, tokens, answer, ids, block if ids else 0, common)
        rows.append(replace(row, shared_id=draw(st.integers(0, 1)), conversation=draw(talks)))
    return rows


class Tokens(NamedTuple):
    """What a request asks with, and what it leaves behind where the answer is known."""

    prompt: list[int]
    stored: list[int]


def tokens_of(rows: Sequence[Row]) -> list[Tokens]:
    prompts = [MAKER.prompt(row, index) for index, row in enumerate(rows)]
    answers = [list(MAKER.answer(row) or ()) for row in rows]
    return [Tokens(prompt, prompt + answer[:-1]) for prompt, answer in zip(prompts, answers, strict=True)]


def chain_of(tokens: Sequence[int], block_size: int) -> list[Block]:
    return [tuple(tokens[: end + block_size]) for end in range(0, len(tokens) - block_size + 1, block_size)]


class PlainCache:
    """One block at a time, in lists: ``order`` gives a block's key, the smallest goes first, then the deepest."""

    def __init__(self, block_size: int, capacity: int, order: Callable[[PlainCache, Block], tuple[int, ...]]) -> None:
        self.block_size, self.capacity, self.order = block_size, capacity, order
        self.came: dict[Block, int] = {}
        self.used: dict[Block, int] = {}
        self.uses: dict[Block, int] = {}

    def serve(self, tokens: Tokens, now: int) -> int:
        chain = chain_of(tokens.stored, self.block_size)
        found = []
        for block in chain:
            if block not in self.came:
                break
            found.append(block)
        hits = found[: (len(tokens.prompt) - 1) // self.block_size]
        for block in hits:
            self.uses[block] += 1
        for block in found:
            self.used[block] = now
        wanted = max(len(found), min(len(chain), self.capacity))
        while len(self.came) + wanted - len(found) > self.capacity:
            free = [b for b in self.came if b not in found and not self.has_child(b)]
            del self.came[min(free, key=lambda b: (*self.order(self, b), -len(b)))]
        for block in chain[len(found) : wanted]:
            self.came[block] = self.used[block] = now
            self.uses[block] = 0
        return len(hits)

    def has_child(self, block: Block) -> bool:
        return any(len(other) == len(block) + self.block_size and other[: len(block)] == block for other in self.came)


ORDERS: dict[str, Callable[[PlainCache, Block], tuple[int, ...]]] = {
    "fifo": lambda cache, block: (cache.came[block],),
    "lru": lambda cache, block: (cache.used[block],),
    "lfu": lambda cache, block: (cache.uses[block], cache.used[block]),
}


def plain_hits(policy: str, rows: Sequence[Row], block_size: int, capacity: int) -> int:
    plain = PlainCache(block_size, capacity, ORDERS[policy])
    return sum(plain.serve(tokens, now) for now, tokens in enumerate(tokens_of(rows)))


def most_hits(rows: Sequence[Row], block_size: int, capacity: int) -> int:
    """By trying every choice of what to keep after each request, with no policy at all."""
    requests = tokens_of(rows)
    chains = [chain_of(tokens.stored, block_size) for tokens in requests]

    @cache
    def best(index: int, held: frozenset[Block]) -> int:
        if index == len(chains):
            return 0
        chain = chains[index]
        hits = 0
        while hits < (len(requests[index].prompt) - 1) // block_size and chain[hits] in held:
            hits += 1
        others = held.difference(chain)
        room = max(0, capacity - len(chain))
        kept = set()
        for beside in combinations(sorted(others), min(room, len(others))):
            stay = set(beside) | set(chain)
            kept |= {frozenset(s) for s in combinations(sorted(stay), min(capacity, len(stay)))}
        return hits + max(best(index + 1, choice) for choice in kept)

    return best(0, frozenset())
