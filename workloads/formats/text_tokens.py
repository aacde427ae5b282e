"""How many tokens a text has: counted by a tokenizer, or approximated by a rule that is stated with the result."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.words import shorten

BYTES_PER_TOKEN = 4
"""Of UTF-8 text: what English prose has with today's vocabularies, and Chinese about 1.3 characters a token."""
APPROXIMATED = f"an approximation: one token for each {BYTES_PER_TOKEN} bytes of UTF-8 text, rounded up"
BLOCK_TOKENS = 16


class TokenCounter:
    """Counts tokens and cuts texts into token-sized pieces. ``name`` says how."""

    def __init__(self, tokenizer: str | None) -> None:
        self._tokenizer = None if tokenizer is None else _load(tokenizer)
        self.name = APPROXIMATED if tokenizer is None else f"the tokenizer {tokenizer}"

    def count(self, text: str) -> int:
        """Tokens of a text, no special tokens."""
        return len(self.pieces(text))

    def pieces(self, text: str) -> Sequence[Hashable]:
        """One value a token: equal where the texts are equal from the start up to there."""
        if self._tokenizer is not None:
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        raw = text.encode("utf-8", "surrogatepass")
        return [raw[i : i + BYTES_PER_TOKEN] for i in range(0, len(raw), BYTES_PER_TOKEN)]


class PrefixIds:
    """Ids of whole blocks of tokens, each standing for the block and everything before it, by order of appearance."""

    def __init__(self, block_tokens: int = BLOCK_TOKENS) -> None:
        self.block_tokens = block_tokens
        self._known: dict[tuple[int, tuple[Hashable, ...]], int] = {}

    def of(self, pieces: Sequence[Hashable]) -> tuple[int, ...]:
        """One id for each full block of the pieces."""
        ids: list[int] = []
        previous = -1
        for start in range(0, len(pieces) - self.block_tokens + 1, self.block_tokens):
            key = previous, tuple(pieces[start : start + self.block_tokens])
            previous = self._known.setdefault(key, len(self._known))
            ids.append(previous)
        return tuple(ids)


def message_text(content: object, place: str) -> str:
    """The text of a chat message: a string, or the text parts of a list; null is none.

    Raises:
        WorkloadError: content of another kind, of which the tokens cannot be counted.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part_text(part, place) for part in content)
    raise WorkloadError(f"content is of type {type(content).__name__}, expected a text or a list of parts", path=place)


def _part_text(part: object, place: str) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return part["text"]
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise WorkloadError(f"a part of type {shorten(kind)} has no text, so its tokens cannot be counted", path=place)


def _load(tokenizer: str) -> Any:
    path = Path(tokenizer).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise WorkloadError("no such tokenizer, expected a tokenizer.json or its directory", path=path)
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise WorkloadError(f"is no tokenizer: {str(error)[:100]}", path=path) from None
