"""Reads a whole trace file, plain or gzip, and explains in one line why it cannot."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvtop.engine.errors import WorkloadError

GZIP_MAGIC = b"\x1f\x8b"
MAX_TEXT_BYTES = 2 << 30
"""Bound on the text of one trace, so that a small gzip file cannot fill the memory."""


class TextFile(msgspec.Struct, frozen=True):
    """A text file in memory. ``sha256`` is of the bytes on disk, so that ``sha256sum`` shows the same."""

    path: str
    text: str
    sha256: str


def read_text(path: Path, what: str = "trace") -> TextFile:
    """Return the file's text, decompressed if it is gzip, without a byte order mark. ``what`` is expected to be in it.

    Raises:
        WorkloadError: missing, unreadable, not a regular file, empty, broken gzip, binary, or not UTF-8 (with the row).
    """
    raw = _read_bytes(path, what)
    data = _decompress(raw, path, what)
    return TextFile(str(path), _decode(data, path, what), hashlib.sha256(raw).hexdigest())


def combined_sha256(hashes: list[tuple[str, str]]) -> str:
    """One hash of several files, from (name, sha256) of each: what ``sha256sum *`` prints, hashed, in order of name."""
    lines = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(hashes))
    return hashlib.sha256(lines.encode()).hexdigest()


def rows_of(text: str) -> list[str]:
    """Split into rows exactly as an editor counts them: at ``\\n``, or ``\\r\\n``, and at nothing else."""
    return list(each_row(text))


def each_row(text: str) -> Iterator[str]:
    """The rows of ``rows_of`` one by one: a large trace is not held twice."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start : end - 1] if text[start:end].endswith("\r") else text[start:end]
        start = end + 1
    yield text[start:].removesuffix("\r")


def _read_bytes(path: Path, what: str) -> bytes:
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise WorkloadError(f"is a directory, expected a {what} file", path=path)
        if not stat.S_ISREG(mode):
            raise WorkloadError(f"is not a regular file, expected a {what} file", path=path)
        raw = path.read_bytes()
    except FileNotFoundError:
        raise WorkloadError("no such file", path=path) from None
    except PermissionError:
        raise WorkloadError("permission denied", path=path) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise WorkloadError(f"cannot be read: {reason}", path=str(path).replace("\0", "\\0")) from None
    if not raw:
        raise WorkloadError(f"the file is empty, expected a {what}", path=path)
    return raw


def _decompress(raw: bytes, path: Path, what: str) -> bytes:
    if not raw.startswith(GZIP_MAGIC):
        if path.suffix == ".gz":
            raise WorkloadError(f"is named .gz but is not gzip: it starts with {raw[:2].hex(' ')}", path=path)
        return _bounded(raw, path)
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
            data = file.read(MAX_TEXT_BYTES + 1)
    except EOFError:
        raise WorkloadError("truncated gzip: the file ends before its compressed data does", path=path) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise WorkloadError(f"corrupt gzip: {error}", path=path) from None
    if not data:
        raise WorkloadError(f"the gzip file holds no data, expected a {what}", path=path)
    return _bounded(data, path)


def _bounded(data: bytes, path: Path) -> bytes:
    if len(data) > MAX_TEXT_BYTES:
        raise WorkloadError(f"holds more than {MAX_TEXT_BYTES >> 30} GiB of text, expected less", path=path)
    return data


def _decode(data: bytes, path: Path, what: str) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise WorkloadError("is UTF-16 text, expected UTF-8", path=path)
    if (nul := data.find(b"\0")) >= 0:
        raise WorkloadError(f"is binary (a zero byte at offset {nul:,}), expected the text of a {what}", path=path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # utf-8-sig reports offsets after the mark; a mark holds no newline, so rows are not affected.
        row = error.object.count(b"\n", 0, error.start) + 1
        found = error.object[error.start]
        raise WorkloadError(f"byte 0x{found:02x} is not UTF-8 text", path=path, row=row) from None
