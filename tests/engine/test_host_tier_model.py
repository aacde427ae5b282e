"""The host tier in long runs, against a plain model: both tiers as lists of prefixes."""

from __future__ import annotations

from engine_helpers import kv_engine
from host_tier_helpers import found, kept
from hypothesis import given, settings
from hypothesis import strategies as st


class PlainTiers:
    """Both tiers as lists of prefixes, for requests that come one after the other. Least recently used first."""

    def __init__(self, num_blocks: int, num_host: int, size: int) -> None:
        self.num_blocks, self.num_host, self.size = num_blocks, num_host, size
        self.device: list[tuple[int, ...]] = []
        self.host: list[tuple[int, ...]] = []

    def serve(self, prompt: list[int]) -> tuple[int, int]:
        """Tokens found on the device and in the host tier; then both tiers are as after the request's end."""
        size = self.size
        heads = [tuple(prompt[: i + size]) for i in range(0, len(prompt) - size + 1, size)]
        usable = heads[: (len(prompt) - 1) // size]
        hits = [head for i, head in enumerate(usable) if set(usable[: i + 1]) <= set(self.device)]
        rest = usable[len(hits) :]
        loaded = [head for i, head in enumerate(rest) if set(rest[: i + 1]) <= set(self.host)]
        for head in reversed(loaded):
            self.host.remove(head)
            self.host.append(head)
        missing = -(-len(prompt) // size) - len(hits)
        for _ in range(missing - (self.num_blocks - len(self.device))):
            gone = next(head for head in self.device if head not in hits)
            self.device.remove(gone)
            self.keep(gone, loaded)
        for head in reversed(heads):
            if head in self.device:
                self.device.remove(head)
            self.device.append(head)
        return len(hits) * size, len(loaded) * size

    def keep(self, head: tuple[int, ...], loaded: list[tuple[int, ...]]) -> None:
        if head in self.host:
            self.host.remove(head)
        elif len(self.host) == self.num_host:
            idle = [other for other in self.host if other not in loaded]
            if not idle:
                return
            self.host.remove(idle[0])
        self.host.append(head)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    num_blocks=st.integers(3, 8),
    num_host=st.integers(1, 10),
    prompts=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6), st.integers(0, 3)), min_size=5, max_size=30),
)
def test_a_plain_model_finds_the_same_tokens(
    num_blocks: int, num_host: int, prompts: list[tuple[int, int, int]]
) -> None:
    size = 2
    engine = kv_engine(num_blocks, size, host_cache_blocks=num_host)
    model = PlainTiers(num_blocks, num_host, size)
    for stem, length, tail in prompts:
        prompt = ([stem] * length + [5] * tail)[: num_blocks * size]
        assert found(engine, prompt) == model.serve(prompt), prompt
        assert kept(engine) == model.host
