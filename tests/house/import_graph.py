"""Reads the import statements of the product from its source, without importing it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("engine", "kernels", "workloads")  # folders that kvtop/ holds as links


@dataclass(frozen=True)
class Import:
    """One imported module: where it is written, and its absolute name."""

    path: str  # of the importing file, from the root
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name}"


def source_files(top: str) -> list[Path]:
    """The Python files of one top-level folder; links inside kvtop/ are not followed."""
    files = (ROOT / top).rglob("*.py")
    linked = [ROOT / "kvtop" / name for name in LINKED]
    return sorted(f for f in files if not any(f.is_relative_to(link) for link in linked))


def module_name(path: Path) -> str:
    """``engine/types.py`` -> ``kvtop.engine.types``."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] != "kvtop":
        parts.insert(0, "kvtop")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> list[Import]:
    """Every import of one file, at any depth: in functions, classes and under TYPE_CHECKING as well."""
    return list(
        imports_in(path.read_text(), str(path.relative_to(ROOT)), module_name(path), path.name == "__init__.py")
    )


def imports_in(source: str, path: str, module: str, is_package: bool = False) -> Iterator[Import]:
    """Imports of a source text that stands for ``module``; relative ones are made absolute."""
    for node in ast.walk(ast.parse(source)):
        for name in _names(node, module, is_package):
            yield Import(path, getattr(node, "lineno", 0), name)


def _names(node: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = _base(node, module, is_package)
        for alias in node.names:
            # "from kvtop.engine import worker" imports a module, "from kvtop.engine.types import Plan" a name in one.
            yield f"{base}.{alias.name}" if is_module(f"{base}.{alias.name}") else base
    elif isinstance(node, ast.Call):
        yield from _called(node)


def _base(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    package = module.split(".") if is_package else module.split(".")[:-1]
    anchor = package[: len(package) - node.level + 1]
    return ".".join([*anchor, *([node.module] if node.module else [])])


def _called(node: ast.Call) -> Iterator[str]:
    """``import_module("x")`` and ``__import__("x")`` with a literal name."""
    function = node.func
    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if called in ("import_module", "__import__") and node.args and isinstance(node.args[0], ast.Constant):
        yield str(node.args[0].value)


def is_module(name: str) -> bool:
    """Is ``kvtop.engine.policies`` (a file or a folder of ours) a module?"""
    parts = name.split(".")
    if parts[0] != "kvtop":
        return False
    target = ROOT.joinpath(*parts)
    return target.with_suffix(".py").is_file() or target.is_dir()


def within(name: str, allowed: frozenset[str] | set[str]) -> bool:
    """Is a module one of ``allowed``, or below one of them?"""
    return any(name == entry or name.startswith(f"{entry}.") for entry in allowed)
