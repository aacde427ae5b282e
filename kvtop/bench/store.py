"""Results under a URL (``s3://bucket/folder``, ``file:///share/folder``): whatever fsspec can write to.

A run is made in a local folder and uploaded when it has ended, ``run.json`` last: a run without it is no run. Objects
of a store appear whole or not at all; on a file system every file is written under another name and renamed.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from kvtop.bench.points import already_complete
from kvtop.engine.errors import KvtopError, UsageError
from kvtop.results.files import write_bytes
from kvtop.results.manifest import MANIFEST_NAME
from kvtop.results.rundir import PARQUET_END, TABLE_NAMES, run_dir_name
from kvtop.run.spec import RunSpec

WITHOUT_FOLDERS = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "r2")
"""Objects have no folders: making one would make the bucket, of a mistyped name too."""


class StoreError(KvtopError):
    """A store that cannot be reached, written or read: URL and cause in one line."""


def is_url(text: str) -> bool:
    """``protocol://...``; a Windows path or a plain folder is none."""
    protocol, separator, _ = text.partition("://")
    return bool(separator) and protocol.isascii() and protocol.replace("+", "").isalnum()


class Store:
    """A folder of runs at ``url``.

    Raises:
        UsageError: no such protocol, or its package is not installed.
    """

    def __init__(self, url: str) -> None:
        import fsspec
        from fsspec.implementations.local import LocalFileSystem

        self.url = url.rstrip("/")
        try:
            self._files, self._root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise UsageError(f"-o {url}: {' '.join(str(error).split())}") from None
        self._renames = isinstance(self._files, LocalFileSystem)
        self._has_folders = url.partition("://")[0] not in WITHOUT_FOLDERS

    def check_writable(self) -> None:
        """Write a small file and remove it, before anything is run.

        Raises:
            StoreError: it cannot be done.
        """
        probe = f"{self._root}/.kvtop-{uuid.uuid4().hex}"
        try:
            self._make_folder(self._root)
            self._files.pipe_file(probe, b"probe")
            self._files.rm_file(probe)
        except Exception as error:  # every file system has its own
            raise self._error("", error, "cannot write") from None

    def is_complete(self, name: str) -> bool:
        """Whether a run of that name is there, ended, with all its tables whole.

        Raises:
            StoreError: the store cannot be asked.
        """
        folder = f"{self._root}/{name}"
        try:
            manifest = json.loads(self._files.cat_file(f"{folder}/{MANIFEST_NAME}"))
            tails = [self._files.tail(f"{folder}/{table}", len(PARQUET_END)) for table in TABLE_NAMES]
        except (FileNotFoundError, ValueError):
            return False
        except Exception as error:
            raise self._error(name, error, "cannot read") from None
        complete = isinstance(manifest, dict) and manifest.get("status") == "complete"
        return complete and all(tail == PARQUET_END for tail in tails)

    def upload(self, run_dir: Path, name: str) -> None:
        """Put the files of ``run_dir`` below ``name``, its manifest last. What was there stops being a run first.

        Raises:
            StoreError: the store refuses; then there is no run of that name.
        """
        folder = f"{self._root}/{name}"
        files = sorted((path for path in run_dir.iterdir() if path.is_file()), key=lambda path: path.name)
        files.sort(key=lambda path: path.name == MANIFEST_NAME)
        try:
            self._make_folder(folder)
            if self._files.exists(f"{folder}/{MANIFEST_NAME}"):
                self._files.rm_file(f"{folder}/{MANIFEST_NAME}")
            for path in files:
                self._put(path, f"{folder}/{path.name}")
        except Exception as error:
            raise self._error(name, error, "cannot write") from None

    def download(self, name: str, run_dir: Path) -> None:
        """Copy a run into the local ``run_dir``.

        Raises:
            StoreError: it cannot be read.
        """
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            for path in self._files.ls(f"{self._root}/{name}", detail=False):
                if not (file_name := path.rpartition("/")[2]).startswith("."):
                    self._files.get_file(path, str(run_dir / file_name))
        except Exception as error:
            raise self._error(name, error, "cannot read") from None

    def write(self, name: str, data: bytes) -> None:
        """Replace the file ``name`` beside the runs as a whole.

        Raises:
            StoreError: the store refuses.
        """
        with tempfile.TemporaryDirectory(prefix="kvtop-") as folder:
            (local := Path(folder) / "file").write_bytes(data)
            try:
                self._put(local, f"{self._root}/{name}")
            except Exception as error:
                raise self._error(name, error, "cannot write") from None

    def write_runs(self) -> None:
        """Replace ``runs.parquet`` by a row for each run of the store, whoever made it.

        Raises:
            StoreError: the store refuses; the old file stays.
            FileError: there is no room for a temporary file.
        """
        from kvtop.results.runs_table import RUNS_NAME, write_runs

        with tempfile.TemporaryDirectory(prefix="kvtop-") as folder:
            for name, manifest in self._manifests():
                (run_dir := Path(folder) / name).mkdir()
                write_bytes(run_dir / MANIFEST_NAME, manifest)
            write_runs(folder)
            self.write(RUNS_NAME, (Path(folder) / RUNS_NAME).read_bytes())

    def _manifests(self) -> Iterator[tuple[str, bytes]]:
        """Name and manifest of each run; what has none is no run."""
        try:
            self._files.invalidate_cache()  # others write here too
            for path in self._files.ls(self._root, detail=False):
                name = str(path).rstrip("/").rpartition("/")[2]
                if name.startswith("."):
                    continue
                with suppress(FileNotFoundError, NotADirectoryError):
                    yield name, self._files.cat_file(f"{self._root}/{name}/{MANIFEST_NAME}")
        except Exception as error:
            raise self._error("", error, "cannot read") from None

    def _make_folder(self, path: str) -> None:
        if self._has_folders:
            self._files.makedirs(path, exist_ok=True)

    def _put(self, local: Path, remote: str) -> None:
        if not self._renames:
            self._files.put_file(str(local), remote)
            return
        target = Path(remote)
        temp = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
        try:
            shutil.copyfile(local, temp)
            os.replace(temp, target)
        finally:
            temp.unlink(missing_ok=True)

    def _error(self, name: str, error: Exception, doing: str) -> StoreError:
        cause = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
        return StoreError(f"{self.url}{f'/{name}' if name else ''}: {doing}: {cause}")


def plan_in_store(
    specs: Sequence[RunSpec], store: Store, mirror: Path, *, resume: bool, force: bool
) -> list[tuple[RunSpec, bool]]:
    """As ``plan_points``, of runs that are made or copied below the local folder ``mirror`` and belong in ``store``.

    Raises:
        UsageError: a complete run of a point without ``resume`` or ``force``.
        StoreError: the store cannot be used.
    """
    store.check_writable()
    by_name: dict[str, RunSpec] = {}
    for spec in specs:
        name = run_dir_name(spec)
        by_name.setdefault(name, msgspec.structs.replace(spec, run_dir=str(mirror / name)))
    done = [name for name in by_name if store.is_complete(name)]
    if done and not resume and not force:
        raise UsageError(already_complete(f"{store.url}/{done[0]}", len(done)))
    kept = set() if force else set(done)
    for name in kept:
        store.download(name, mirror / name)
    return [(spec, name in kept) for name, spec in by_name.items()]
