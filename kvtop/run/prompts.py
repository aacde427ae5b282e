"""Under which keys a prompt that somebody asks about would be cached. Lives where the tokenizer is; keeps nothing."""

from __future__ import annotations

from collections.abc import Callable

from kvtop.engine.engine import Engine
from kvtop.engine.events import Event, FindPrompt, PromptKeys
from kvtop.engine.keys import prompt_keys
from kvtop.run.answers import Text


class PromptFinder:
    """Answers ``FindPrompt`` with ``PromptKeys`` through ``send``: to the parent alone, past every recording."""

    def __init__(self, engine: Engine, text: Text, send: Callable[[list[Event]], None]) -> None:
        self._engine, self._text, self._send = engine, text, send

    def find(self, command: FindPrompt) -> None:
        """Whatever is wrong with the prompt is the answer."""
        now_ns = self._engine.clock.now_ns()
        try:
            tokens = self._text.encode(command.text) if command.tokens is None else command.tokens
            keys = [[key] for key in prompt_keys(tokens, self._engine.config.block_size)]
        except Exception as error:  # a tokenizer given hostile text may raise anything; the text is not repeated
            self._send([PromptKeys(t_ns=now_ns, problem=f"the tokenizer refuses it: {type(error).__name__}")])
            return
        self._send([PromptKeys(t_ns=now_ns, num_tokens=len(tokens), keys=keys)])
