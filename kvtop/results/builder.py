"""One Parquet table, built row by row or frame by frame in bounded memory, and written whole or not at all."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import polars as pl

from kvtop.results.files import file_error, replacing
from kvtop.results.schema import OPTIONAL, SCHEMAS, file_metadata

ROW_GROUP = 131_072
CHUNK_ROWS = 65_536  # Python rows held at once before they become columns on disk
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


class TableBuilder:
    """Rows of ``<name>.parquet`` in ``run_dir``. Whole chunks wait in nameless files: a kill leaves none behind.

    Raises (``add`` and ``write``):
        FileError: the disk refuses; an old table stays.
    """

    def __init__(self, name: str, run_dir: Path) -> None:
        self.path, self.schema = run_dir / f"{name}.parquet", (SCHEMAS | OPTIONAL)[name]
        self._rows: list[tuple[Any, ...]] = []
        self._frame: pl.DataFrame | None = None
        self._chunks: list[IO[bytes]] = []

    def __enter__(self) -> TableBuilder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for chunk in self._chunks:
            chunk.close()

    def add(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Each row has the schema's columns in order."""
        self._rows.extend(rows)
        if len(self._rows) >= CHUNK_ROWS:
            with disk_errors(self.path):
                self._seal()

    def add_frame(self, frame: pl.DataFrame) -> None:
        """Rows that are columns already, at best CHUNK_ROWS of them; to this table all rows are added in this way."""
        if self._frame is not None:
            with disk_errors(self.path):
                self._seal()
        self._frame = frame

    def _seal(self) -> None:
        self._keep(self._waiting())
        self._rows, self._frame = [], None

    def _keep(self, frame: pl.DataFrame) -> None:
        chunk = tempfile.TemporaryFile(dir=self.path.parent)  # noqa: SIM115 (closed by __exit__)
        self._chunks.append(chunk)
        frame.write_parquet(chunk, compression="lz4")
        chunk.flush()
        chunk.seek(0)

    def _waiting(self) -> pl.DataFrame:
        """What is in no chunk yet."""
        return pl.DataFrame(self._rows, schema=self.schema, orient="row") if self._frame is None else self._frame

    def write(self, run_id: str) -> None:
        """Replace the table as a whole: the chunks, row group by row group."""
        with replacing(self.path) as temp, disk_errors(self.path):
            if self._chunks and (self._rows or self._frame is not None):
                self._seal()
            table = pl.scan_parquet(self._chunks) if self._chunks else self._waiting().lazy()
            write_table(table, temp, run_id)


def write_table(table: pl.LazyFrame, path: Path, run_id: str) -> None:
    """The one way in which kvtop writes Parquet, as a stream; the bytes depend on the rows alone."""
    table.sink_parquet(
        path, compression="zstd", row_group_size=ROW_GROUP, metadata=file_metadata(run_id), maintain_order=True
    )


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Polars wraps what the disk refuses into errors of its own: the cause comes out again as one line.

    Raises:
        FileError: the disk refused.
    """
    try:
        yield
    except OSError as error:
        raise file_error(path, error) from None
    except pl.exceptions.PolarsError as error:
        found = _OS_ERROR.search(str(error))
        if found is None:
            raise
        number = int(found[1])
        raise file_error(path, OSError(number, os.strerror(number))) from None
