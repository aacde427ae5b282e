"""Files that are whole or absent: temp file beside the target, then rename. Disk errors become one line."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvtop.engine.errors import KvtopError

_CAUSES = {
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would exceed the size limit",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
}


class FileError(KvtopError):
    """A result file that cannot be written or read: path and cause in one line."""


def file_error(path: str | os.PathLike[str], error: OSError, doing: str = "cannot write") -> FileError:
    """One line for an ``OSError`` on a result file."""
    cause = _CAUSES.get(error.errno or 0) or (error.strerror or str(error)).lower()
    return FileError(f"{os.fspath(path)}: {doing}: {cause}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temp path beside ``path``; rename it over ``path`` when the body succeeds, remove it when it does not.

    Raises:
        FileError: the disk refuses (full, read-only, no permission); ``path`` keeps its old content.
    """
    temp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temp
        os.replace(temp, path)
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
