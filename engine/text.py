"""Text of an answer as its tokens come: whole characters only, and nothing of a stop string.

A stop string ends an answer with the token that completes it. Where several occur, the one that is complete first
counts (of two that are complete with the same character, the longer one), so that the text does not depend on how it is
split into tokens. Text that may still turn out to be the beginning of a stop string is held back until it cannot be.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

Decode = Callable[[list[int]], str]

REPLACEMENT = "\ufffd"  # what stands for bytes that are no character (yet)
LONGEST_CHARACTER = 32
"""Tokens after which an unfinished character is taken as it is. UTF-8 needs four bytes; a model may emit rubbish."""


def decoder_of(executor: object) -> Decode | None:
    """``executor.decode``; None for an executor without a tokenizer."""
    return None if getattr(executor, "tokenizer", None) is None else getattr(executor, "decode", None)


class Detokenizer:
    """Characters of a growing list of tokens. ``decode(ids)`` gives their text, U+FFFD for what is no character yet.

    Decodes the tokens since the last-but-one whole character again, never one alone: some tokenizers treat the first
    token of a text in its own way. Complexity: O(1) a token.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._num_context = 0  # leading tokens of the window that are told, and only there for the others' sake
        self._num_told = 0  # characters told of the tokens after them

    def push(self, token: int) -> str:
        """The characters that ``token`` completes; "" while one is unfinished."""
        window = self._window
        window.append(token)
        before, text = self._texts()
        num_pending = len(window) - self._num_context
        whole = text.rstrip(REPLACEMENT) if num_pending <= LONGEST_CHARACTER else text
        new = whole[len(before) + self._num_told :]
        if len(whole) < len(text):
            self._num_told += len(new)
        elif text == before:  # no text of its own (a special token): the next one keeps its context
            window.pop()
        else:
            self._window, self._num_context, self._num_told = window[self._num_context :], num_pending, 0
        return new

    def flush(self) -> str:
        """What an unfinished character at the end comes to: U+FFFD, once."""
        before, text = self._texts()
        rest = text[len(before) + self._num_told :]
        return rest.rstrip(REPLACEMENT) + REPLACEMENT if rest.endswith(REPLACEMENT) else rest

    def copy(self) -> Detokenizer:
        twin = Detokenizer(self._decode)
        twin._window, twin._num_context, twin._num_told = list(self._window), self._num_context, self._num_told
        return twin

    def _texts(self) -> tuple[str, str]:
        """Text of the context, and of the whole window."""
        context = self._window[: self._num_context]
        return self._decode(context) if context else "", self._decode(self._window)


class TextStream:
    """The text of one branch, and the stop string that ends it.

    ``text`` is what has been returned so far. Once ``stopped``, nothing more comes.
    """

    def __init__(self, decode: Decode, stop: Seq[str]) -> None:
        self.text = ""
        self.stopped = False
        self._characters = Detokenizer(decode)
        self._stop = tuple(stop)
        self._held = ""  # decoded, and perhaps the beginning of a stop string
        self._num_passed = 0  # leading characters of it with which no stop string may end any more

    def push(self, token: int, *, may_stop: bool = True) -> str:
        """Text that is safe now. ``may_stop``: a stop string that is complete with this token ends the answer."""
        self._held += self._characters.push(token)
        if not may_stop:
            self._num_passed = len(self._held)
        found = self._first_stop()
        self.stopped = found is not None
        return self._release(len(self._held) - self._num_open() if found is None else found)

    def flush(self) -> str:
        """The answer has ended: what was held back is no stop string, unless its last character completes one."""
        if self.stopped:
            return ""
        self._held += self._characters.flush()
        found = self._first_stop()
        return self._release(len(self._held) if found is None else found)

    def copy(self) -> TextStream:
        """For a branch: the same text so far."""
        twin = TextStream(self._characters._decode, self._stop)
        twin.text, twin._held, twin._num_passed = self.text, self._held, self._num_passed
        twin._characters = self._characters.copy()
        return twin

    def _first_stop(self) -> int | None:
        """Where the stop string that is complete first begins in what is held."""
        ends = [
            (at + len(stop), at)
            for stop in self._stop
            if (at := self._held.find(stop, max(0, self._num_passed + 1 - len(stop)))) >= 0
        ]
        return min(ends)[1] if ends else None

    def _num_open(self) -> int:
        """Length of the longest end of what is held that begins a stop string."""
        held = self._held
        for size in range(min(len(held), max(map(len, self._stop)) - 1), 0, -1):
            end = held[-size:]
            if any(len(stop) > size and stop.startswith(end) for stop in self._stop):
                return size
        return 0

    def _release(self, count: int) -> str:
        """The first ``count`` characters of what is held."""
        safe, self._held = self._held[:count], self._held[count:]
        self._num_passed = max(0, self._num_passed - count)
        self.text += safe
        return safe
