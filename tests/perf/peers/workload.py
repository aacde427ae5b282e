"""The requests every peer gets: seeded, so that they are the same in every run and every environment."""

from __future__ import annotations

import random

NUM_REQUESTS, SYSTEM_TOKENS, VOCABULARY = 48, 160, 49_152
MIN_PROMPT, MAX_PROMPT, MIN_OUTPUT, MAX_OUTPUT = 16, 384, 8, 96


def requests(seed: int = 0) -> list[dict]:
    """``prompt`` (token ids) and ``num_tokens`` of each; every second one starts with the system prompt."""
    rng = random.Random(seed)
    system = _tokens(rng, SYSTEM_TOKENS)
    made = []
    for index in range(NUM_REQUESTS):
        if index % 2:
            own = rng.randint(1, MAX_PROMPT - SYSTEM_TOKENS)
            prompt = system + _tokens(rng, own)
        else:
            prompt = _tokens(rng, rng.randint(MIN_PROMPT, MAX_PROMPT))
        made.append({"prompt": prompt, "num_tokens": rng.randint(MIN_OUTPUT, MAX_OUTPUT)})
    return made


def _tokens(rng: random.Random, count: int) -> list[int]:
    # From 100 on: the first ids are special tokens, which some peers treat as such.
    return [rng.randrange(100, VOCABULARY) for _ in range(count)]
