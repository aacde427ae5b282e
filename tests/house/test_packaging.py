"""What an installed kvtop consists of: built from a copy of this tree with setuptools alone, no network."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from import_graph import LINKED, ROOT

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "kvtop", "engine", "kernels", "workloads")
BUILD = "import sys, setuptools.build_meta as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"


def build(kind: str, tree: Path, out: Path) -> Path:
    """Run one build hook (sdist or wheel) in ``tree``."""
    out.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, kind, str(out)], cwd=tree, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return out / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the build reads, links kept as links, so that building leaves no trace in this one."""
    target = tmp_path_factory.mktemp("tree")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(ROOT / name, target / name)
    return target


@pytest.fixture(scope="module")
def wheel_names(tree: Path) -> list[str]:
    with zipfile.ZipFile(build("wheel", tree, tree / "out")) as wheel:
        return wheel.namelist()


@pytest.fixture(scope="module")
def sdist(tree: Path) -> Path:
    """The unpacked source distribution."""
    archive = build("sdist", tree, tree / "out")
    with tarfile.open(archive) as tar:
        tar.extractall(tree / "unpacked", filter="data")
    return next((tree / "unpacked").iterdir())


def product_files() -> list[str]:
    """Every file of the product by its name in the wheel."""
    files = []
    for top in ("kvtop", *LINKED):
        for path in (ROOT / top).rglob("*"):
            inside_link = any(path.is_relative_to(ROOT / "kvtop" / name) for name in LINKED)
            if path.is_file() and "__pycache__" not in path.parts and not inside_link:
                name = path.relative_to(ROOT).as_posix()
                files.append(name if top == "kvtop" else f"kvtop/{name}")
    return sorted(files)


def contents(names: list[str]) -> list[str]:
    return sorted(name for name in names if ".dist-info/" not in name)


def test_the_wheel_holds_every_file_of_the_product_exactly_once(wheel_names: list[str]) -> None:
    assert contents(wheel_names) == product_files()


def test_nothing_but_kvtop_lands_in_site_packages(wheel_names: list[str]) -> None:
    tops = {name.split("/")[0] for name in contents(wheel_names)}
    assert tops == {"kvtop"}


def test_the_wheel_carries_the_licence_and_the_command(wheel_names: list[str]) -> None:
    metadata = {name.split(".dist-info/")[1] for name in wheel_names if ".dist-info/" in name}
    assert {"licenses/LICENSE", "entry_points.txt"} <= metadata


def test_a_wheel_from_the_source_distribution_is_the_same(sdist: Path, wheel_names: list[str]) -> None:
    with zipfile.ZipFile(build("wheel", sdist, sdist / "out")) as wheel:
        assert contents(wheel.namelist()) == contents(wheel_names)
