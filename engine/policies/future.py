"""What a recorded workload will ask for: the knowledge the Belady bound needs and no real engine has."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from collections.abc import Sequence as Seq

from kvtop.engine.prefix_cache import default_key, stable_int
from kvtop.engine.types import RequestSpec

NEVER = 1 << 62


class FutureUses:
    """For each block key, the requests (by submission number) whose prompts hold it.

    ``now`` is the latest request admitted; requests are taken to be admitted in order of submission, which is exact
    under fcfs. (Belady, "A study of replacement algorithms", 1966.)
    """

    def __init__(self, specs: Iterable[RequestSpec], block_size: int) -> None:
        self.now = -1
        self._uses: dict[int, list[int]] = {}
        for index, spec in enumerate(specs):
            for key in prompt_keys(spec, block_size):
                self._uses.setdefault(key, []).append(index)

    def next_use(self, key: int) -> int:
        """Submission number of the next request that wants ``key``; NEVER if none does."""
        uses = self._uses.get(key)
        if not uses:
            return NEVER
        index = bisect_right(uses, self.now)
        return uses[index] if index < len(uses) else NEVER


def prompt_keys(spec: RequestSpec, block_size: int) -> list[int]:
    """Keys of the whole blocks of a prompt, as the prefix cache computes them by default."""
    tokens: Seq[int] = spec.prompt
    extra = tuple(sorted(spec.extra_key.items())) if spec.extra_key else ()
    key = stable_int(extra) if extra else 0
    keys = []
    for index in range(len(tokens) // block_size):
        block = tuple(tokens[index * block_size : (index + 1) * block_size])
        key = default_key(key, block, (spec.block_keys or {}).get(index))
        keys.append(key)
    return keys
