"""From a prompt's tokens to the hashes a server gave its blocks, learned from the tokens in ``BlockStored`` events.

Servers hash in ways of their own, often with a random seed. So each block is also given a key of kvtop's, from its
tokens and the block before: what is remembered is that key beside the server's hash, and no token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvtop.attach.kv_decode import Stored
from kvtop.engine.keys import default_key, prompt_keys
from kvtop.state.cache_log import GHOSTS_KEPT

EXTRA_ENTRIES = 2 * GHOSTS_KEPT  # hashes of blocks that are gone: at least the last GHOSTS_KEPT stay recognisable


class PromptIndex:
    """Of all servers together. Complexity: O(1) a block, amortised; memory: O(cached blocks + EXTRA_ENTRIES).

    ``num_silent``: blocks whose event had no tokens; ``num_orphans``: those under a parent that is not known.
    """

    def __init__(self) -> None:
        self.version = 0  # grows with every block
        self.num_silent = self.num_orphans = 0
        self._own: dict[int, int] = {}  # server's hash -> own key, oldest first
        self._hashes: dict[int, list[int]] = {}  # own key -> servers' hashes

    def __len__(self) -> int:
        return len(self._own)

    def stored(self, event: Stored) -> None:
        size, parent = event.block_size, event.parent
        above = 0 if parent is None else self._own.get(parent)
        for index, key in enumerate(event.hashes):
            tokens = tuple(event.tokens[index * size : (index + 1) * size])
            if len(tokens) < size or not all(type(token) is int for token in tokens):
                self.num_silent += 1
                above = None
            elif above is None:
                self.num_orphans += 1
            else:
                above = default_key(above, tokens, event.extra_of(index))
                self._remember(key, above)

    def _remember(self, key: int, own: int) -> None:
        before = self._own.pop(key, None)  # to the end
        self._own[key] = own
        if before == own:
            return
        if before is not None:
            self._drop(key, before)
        self._hashes.setdefault(own, []).append(key)
        self.version += 1

    def _drop(self, key: int, own: int) -> None:
        left = [each for each in self._hashes[own] if each != key]
        if left:
            self._hashes[own] = left
        else:
            del self._hashes[own]

    def forget_old(self, is_cached: Callable[[int], bool], num_cached: int) -> None:
        """Drop the oldest hashes of blocks that are gone, once there are many."""
        if len(self._own) <= num_cached + EXTRA_ENTRIES:
            return
        gone = [key for key in self._own if not is_cached(key)]
        for key in gone[: max(0, len(gone) - GHOSTS_KEPT)]:
            self._drop(key, self._own.pop(key))

    def hashes_of(self, own_keys: Sequence[int]) -> list[list[int]]:
        """Of each block of a prompt, by its ``own_keys_of``: the hashes that servers have given it."""
        return [list(self._hashes.get(own, ())) for own in own_keys]


own_keys_of = prompt_keys
"""The keys of kvtop's of a prompt's whole blocks, given the servers' block size."""
