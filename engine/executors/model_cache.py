"""Converted models in the user's cache directory: one folder each, whole or not there at all. Loads no torch."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

FORMAT = 1  # part of the folder's name: raise it when the conversion changes
MANIFEST = "kvtop.json"
STALE_S = 3600.0  # a temporary folder older than this belongs to a process that died


def cache_dir() -> Path:
    """``$XDG_CACHE_HOME/kvtop/models``, or below ``~/.cache``; not created here."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvtop" / "models"


def entry(key: str) -> Path:
    """The folder of ``key`` in the cache."""
    return cache_dir() / f"{key}-v{FORMAT}"


def is_whole(folder: Path) -> bool:
    """Whether every file the manifest lists is there with its size and checksum (0.3 s for 540 MB)."""
    try:
        files = json.loads((folder / MANIFEST).read_text())["files"]
        return bool(files) and all(_fingerprint(folder / name) == tuple(want) for name, want in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def publish(key: str, write: Callable[[Path], None]) -> Path:
    """Fill a temporary folder with ``write``, then rename it into place; returns the folder to read.

    Two processes may do so at once: the first one wins, the other uses its result. A damaged entry is replaced.

    Raises:
        OSError: the cache cannot be written (read-only, full); nothing is left behind.
    """
    final = entry(key)
    final.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(final)
    temporary = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    try:
        write(temporary)
        _seal(temporary)
        return _rename(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _rename(temporary: Path, final: Path) -> Path:
    for _ in range(3):
        try:
            temporary.rename(final)
            return final
        except OSError:
            if not final.exists():
                raise
        if is_whole(final):
            return final
        # Moved aside first: a folder cannot be replaced in one go, and a reader must not see half of one.
        aside = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
        try:
            final.rename(aside / "damaged")
        except FileNotFoundError:
            pass  # another process was faster
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    raise OSError(f"{final} is being replaced by other processes")


def _seal(folder: Path) -> None:
    """Write the manifest last, and see that everything has reached the disk before the rename."""
    files = {p.name: _fingerprint(p) for p in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": files}, indent=1))
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _fingerprint(path: Path) -> tuple[int, int]:
    """(size in bytes, CRC-32)."""
    size = path.stat().st_size
    if size == 0:
        return 0, 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        return size, zlib.crc32(view)


def _remove_stale(final: Path) -> None:
    for path in final.parent.glob(f".{final.name}.*"):
        try:
            stale = time.time() - path.stat().st_mtime > STALE_S
        except OSError:
            continue
        if stale:
            shutil.rmtree(path, ignore_errors=True)
