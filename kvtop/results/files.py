"""Files that are whole or absent: temp file beside the target, then rename. Disk errors become one line.

Symbolic links are followed, and only a regular file is ever replaced: a rename over a device or a pipe destroys it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from kvtop.engine.errors import KvtopError

_CAUSES = {
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would exceed the size limit",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
}

_KINDS = {
    stat.S_ISDIR: "a directory",
    stat.S_ISFIFO: "a pipe",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
    stat.S_ISSOCK: "a socket",
}


class FileError(KvtopError):
    """A result file that cannot be written or read: path and cause in one line."""


def file_error(path: str | os.PathLike[str], error: OSError, doing: str = "cannot write") -> FileError:
    """One line for an ``OSError`` on a result file."""
    cause = _CAUSES.get(error.errno or 0) or (error.strerror or str(error)).lower()
    return FileError(f"{os.fspath(path)}: {doing}: {cause}")


def target_of(path: Path) -> Path:
    """The file that writing ``path`` means, symbolic links followed: a regular one, or nothing there yet.

    Raises:
        FileError: something else is there, or links that lead nowhere.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return Path(os.path.realpath(path))
    except OSError as error:
        raise file_error(path, error) from None
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS.items() if is_kind(mode)), "something else")
        raise FileError(f"{path}: is {kind}, expected a file name")
    return Path(os.path.realpath(path))


def check_replaceable(path: Path) -> None:
    """Find out whether ``replacing`` can work, by a temporary file in the same place, removed again.

    Raises:
        FileError: it cannot, and why.
    """
    target = target_of(path)
    if not target.parent.is_dir():
        raise FileError(f"{path}: there is no directory {target.parent if path.is_symlink() else path.parent}")
    temp = _temp(target)
    try:
        with open(temp, "wb") as probe:
            probe.write(bytes(4096))
    except OSError as error:
        raise file_error(path, error) from None
    finally:
        with suppress(OSError):
            temp.unlink(missing_ok=True)


def _temp(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.tmp")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temp path beside ``path``; rename it over ``path`` when the body succeeds, remove it when it does not.

    Where ``path`` is a symbolic link, the file that it leads to is replaced and the link stays.

    Raises:
        FileError: ``path`` is there and no regular file, or the disk refuses (full, read-only, no permission);
            ``path`` keeps its old content.
    """
    target = target_of(path)
    temp = _temp(target)
    try:
        yield temp
        os.replace(temp, target)
    except OSError as error:
        raise file_error(path, error) from None
    finally:
        with suppress(OSError):
            temp.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data`` as a whole, on disk when this returns.

    Raises:
        FileError: see ``replacing``.
    """
    with replacing(path) as temp, open(temp, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def lock_file(file: IO[bytes], *, shared: bool = False) -> bool:
    """Lock an open file until it is closed; False: another process holds it. Windows has no such lock: always True.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
