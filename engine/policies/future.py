"""What a recorded workload will ask for: the knowledge the Belady bound needs and no real engine has."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from kvtop.engine.keys import default_key, stable_int
from kvtop.engine.types import RequestSpec

NEVER = 1 << 62


class FutureUses:
    """For each block key, the requests (by submission number) that will find it in the cache or compute it.

    ``now`` is the latest request admitted; requests are taken to be admitted in order of submission, which is exact
    under fcfs. A block that will be computed again before anybody could use it is not worth a place until then.
    ``max_prompt``: longer prompts are rejected and want nothing. (Belady, "A study of replacement algorithms", 1966.)
    """

    def __init__(self, specs: Iterable[RequestSpec], block_size: int, max_prompt: int | None = None) -> None:
        self.now = -1
        self._mentions: dict[int, list[int]] = {}  # key -> 2 * request + (1: it can be a hit there)
        for index, spec in enumerate(specs):
            if max_prompt is None or len(spec.prompt) <= max_prompt:
                for key, can_hit in stored_keys(spec, block_size):
                    self._mentions.setdefault(key, []).append(2 * index + can_hit)

    def next_use(self, key: int) -> int:
        """The next request that keeping ``key`` until then would help; NEVER if none."""
        mention = self._next(key)
        return mention >> 1 if mention is not None and mention & 1 else NEVER

    def next_mention(self, key: int) -> int | None:
        """The next request whose tokens hold ``key``, whether it can be a hit there or not."""
        mention = self._next(key)
        return None if mention is None else mention >> 1

    def _next(self, key: int) -> int | None:
        mentions = self._mentions.get(key, ())
        index = bisect_right(mentions, 2 * self.now + 1)
        return mentions[index] if index < len(mentions) else None


def stored_keys(spec: RequestSpec, block_size: int) -> Iterator[tuple[int, bool]]:
    """Key of each whole block that ``spec`` stores, and whether a lookup of its prompt could find it.

    A lookup leaves one token of the prompt to be computed. Outputs are known where they are forced; the last token
    emitted is not stored.
    """
    params = spec.params
    tokens = [*spec.prompt, *(params.forced_output or ())[: params.max_tokens - 1]]
    extra = tuple(sorted(spec.extra_key.items())) if spec.extra_key else ()
    key = stable_int(extra) if extra else 0
    for index in range(len(tokens) // block_size):
        block = tuple(tokens[index * block_size : (index + 1) * block_size])
        key = default_key(key, block, (spec.block_keys or {}).get(index))
        yield key, (index + 1) * block_size < len(spec.prompt)
