"""Whole files: what is replaced, what symbolic links lead to, and what is never touched."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from kvtop.results.files import FileError, check_replaceable, write_bytes


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_made_and_replaced_and_nothing_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    check_replaceable(path)
    assert names(tmp_path) == []
    write_bytes(path, b"one")
    check_replaceable(path)
    assert path.read_bytes() == b"one"
    write_bytes(path, b"two")
    assert path.read_bytes() == b"two"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_the_file_it_leads_to_is_written(tmp_path: Path, there: bool) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "files").mkdir()
    link, other, target = tmp_path / "links" / "a", tmp_path / "links" / "b", tmp_path / "files" / "target"
    if there:
        target.write_bytes(b"old")
    link.symlink_to("b")
    other.symlink_to(target)
    check_replaceable(link)
    write_bytes(link, b"new")
    assert link.is_symlink()
    assert other.is_symlink()
    assert not target.is_symlink()
    assert target.read_bytes() == b"new"
    assert (names(tmp_path / "links"), names(tmp_path / "files")) == (["a", "b"], ["target"])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("pipe", "is a pipe, expected a file name"),
        ("to-pipe", "is a pipe, expected a file name"),
        ("socket", "is a socket, expected a file name"),
        ("folder", "is a directory, expected a file name"),
        ("loop", "cannot write: "),
        ("to-nowhere", "there is no directory "),
        ("missing/file", "there is no directory "),
        ("n" * 250, "cannot write: "),
    ],
)
def test_what_is_no_regular_file_is_refused_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("to-pipe").symlink_to("pipe")
    Path("loop").symlink_to("loop")
    Path("to-nowhere").symlink_to("nowhere/file")
    Path("folder").mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
        before = {path.name: path.lstat() for path in Path().iterdir()}
        with pytest.raises(FileError, match=says) as caught:
            check_replaceable(Path(name))
        assert str(caught.value).startswith(f"{name}: ")
        with pytest.raises(FileError):
            write_bytes(Path(name), b"data")
        after = {path.name: path.lstat() for path in Path().iterdir()}
    kept = [{key: (found.st_ino, found.st_mode) for key, found in seen.items()} for seen in (before, after)]
    assert kept[0] == kept[1]
