"""The prompt asked about last: its own keys and nothing else of it, found again whenever servers have stored more."""

from __future__ import annotations

import msgspec

from kvtop.attach.kv_blocks import KvBlocks
from kvtop.attach.prompt_index import own_keys_of
from kvtop.engine.events import PromptKeys

NO_TOKENS = (
    "not reported: the KV events carry hashes without token ids ({} blocks), so no prompt can be found by its tokens; "
    "vLLM and SGLang publish token_ids in BlockStored: connect to the server itself, not to what passes events on"
)
ORPHANS = (
    "not known: all blocks told so far hang under parents stored before kvtop listened; give --kv-replay, or start "
    "kvtop before the server"
)


class AskedPrompt:
    """Lives in the thread that owns ``blocks``."""

    def __init__(self, blocks: KvBlocks) -> None:
        self._blocks = blocks
        self._waiting: list[int] | None = None  # tokens, until the block size is known
        self._own: list[int] = []
        self._num_tokens = 0
        self._seen: tuple[object, ...] = ()
        self._told: PromptKeys | None = None
        self._asked = False

    def ask(self, tokens: list[int]) -> None:
        self._waiting, self._asked, self._seen, self._told = tokens, True, (), None

    def news(self, t_ns: int) -> PromptKeys | None:
        """What is to be told now: an answer, or one that has become another since."""
        if not self._asked:
            return None
        index, size = self._blocks.prompts, self._blocks.block_size
        state = (index.version, size, index.num_silent > 0)
        if state == self._seen:
            return None
        self._seen = state
        found = self._answer()
        if found == self._told:
            return None
        self._told = found
        return msgspec.structs.replace(found, t_ns=t_ns)

    def _answer(self) -> PromptKeys:
        index, size = self._blocks.prompts, self._blocks.block_size
        if not size:
            return PromptKeys(t_ns=0, problem="no event of a stored block has come yet")
        if self._waiting is not None:
            self._own, self._num_tokens = own_keys_of(self._waiting, size), len(self._waiting)
            self._waiting = None
        if not len(index):
            problem = NO_TOKENS.format(f"{index.num_silent:,}") if index.num_silent else ORPHANS
            return PromptKeys(t_ns=0, problem=problem)
        return PromptKeys(t_ns=0, num_tokens=self._num_tokens, keys=index.hashes_of(self._own))
