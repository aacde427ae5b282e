"""The workloads that come with kvtop: every spec in ``gallery``, real slices of published traces and generated ones."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvtop.workloads.recipe import Recipe
from kvtop.workloads.spec_file import read_spec_file

HERE = Path(__file__).parent
GALLERY = HERE / "gallery"
DATA = HERE / "data"
MOONCAKE_SLICE = DATA / "mooncake-conversation-first1000.jsonl.gz"
AZURE_CONV_SLICE = DATA / "azure-2023-conv-first1000.csv.gz"
FIRST = "default"


class Builtin(msgspec.Struct, frozen=True):
    """A workload with a name; ``path`` is its spec, to be read and changed."""

    summary: str
    recipe: Recipe
    path: Path


def _gallery() -> dict[str, Builtin]:
    paths = sorted(GALLERY.glob("*.toml"), key=lambda path: (path.stem != FIRST, path.stem))
    recipes = [read_spec_file(path) for path in paths]
    return {recipe.name: Builtin(recipe.about, recipe, path) for recipe, path in zip(recipes, paths, strict=True)}


BUILTINS: dict[str, Builtin] = _gallery()


def builtin_workloads() -> dict[str, str]:
    """Name and one line of every built-in workload."""
    return {name: builtin.summary for name, builtin in BUILTINS.items()}
