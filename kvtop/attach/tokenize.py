"""A prompt's tokens, as the model of an attached server takes them: told by the server, or by a tokenizer.json."""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import msgspec

from kvtop.attach.address import Address, without_user
from kvtop.attach.scrape import Fetcher, headers_for
from kvtop.engine.errors import KvtopError, UsageError

FILE_NAME = "tokenizer.json"
MAX_BODY_BYTES = 64 << 20
MAX_TOKEN = 1 << 63


class NoTokens(KvtopError):
    """A prompt that could not be tokenized; one line, without the prompt."""


def tokenizer_file(path: Path) -> Path:
    """The file meant by ``path``, a model's folder or the file itself.

    Raises:
        UsageError: there is none.
    """
    file = path / FILE_NAME if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"--tokenizer {path}: there is no {FILE_NAME}, expected a model's folder or that file")
    return file


def tokens_by_file(file: Path, text: str) -> list[int]:
    """With the tokens that the model's tokenizer puts at the beginning.

    Raises:
        NoTokens: the file is no tokenizer, or the library is missing.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise NoTokens("--tokenizer needs the library tokenizers: pip install tokenizers") from None
    try:
        return list(Tokenizer.from_file(str(file)).encode(text).ids)
    except Exception as error:  # the library raises plain Exceptions
        raise NoTokens(f"{file}: no tokenizer ({type(error).__name__})") from None


def tokens_by_server(address: Address, model: str, text: str, *, api_key: str | None, timeout_s: float) -> list[int]:
    """``POST /tokenize``, as vLLM and SGLang have it.

    Raises:
        NoTokens: the server has no such page, refuses, or says something else.
    """
    url = _page_of(without_user(address.url))
    headers = {"Content-Type": "application/json", **headers_for(address, api_key)}
    body = msgspec.json.encode({"prompt": text, **({"model": model} if model else {})})
    request = urllib.request.Request(url, body, headers, method="POST")
    try:
        data, problem = Fetcher(address).fetch(request, timeout_s, MAX_BODY_BYTES)
    except urllib.error.HTTPError as error:
        problem, data = f"HTTP {error.code}", b""
    if problem:
        raise NoTokens(f"{address.shown}/tokenize: {problem}")
    try:
        tokens = msgspec.json.decode(data)["tokens"]
        if not isinstance(tokens, list) or not all(type(token) is int and 0 <= token < MAX_TOKEN for token in tokens):
            raise TypeError
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError, IndexError):
        raise NoTokens(f'{address.shown}/tokenize: bad response, expected JSON with "tokens"') from None
    return tokens


def _page_of(url: str) -> str:
    """/tokenize beside the metrics."""
    parts = urllib.parse.urlsplit(url)
    base = parts.path.removesuffix("/metrics").rstrip("/")
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc, f"{base}/tokenize", "", ""))
