"""Workload specs in TOML, as docs/workloads.md has them: ``kind = "trace"`` with a path, or a generator's one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from kvtop.engine.errors import UnknownName, WorkloadError
from kvtop.workloads.files import read_text, rows_of
from kvtop.workloads.formats.base import ReadOptions
from kvtop.workloads.generators.registry import GENERATORS
from kvtop.workloads.recipe import Recipe
from kvtop.workloads.scale import check_factor, cut
from kvtop.workloads.sessions import check_replay
from kvtop.workloads.words import shorten

COMMON: dict[str, type | tuple[type, ...]] = {
    "time_scale": (int, float),
    "length_scale": (int, float),
    "limit": int,
    "sharing_only": bool,
    "seed": int,
    "replay": str,
    "about": str,
}
READING: dict[str, type | tuple[type, ...]] = {
    "hash_block_tokens": int,
    "tokenizer": str,
    "output_tokens": int,
    "start_s": (int, float),
    "end_s": (int, float),
}
TRACE: dict[str, type | tuple[type, ...]] = {
    "path": str,
    "format": str,
    "arrival_rate": (int, float),
    "tile": int,
    **READING,
}


def read_spec_file(path: Path) -> Recipe:
    """Read one TOML workload spec; a relative trace path counts from the spec's folder.

    Raises:
        UnknownName: an unknown kind or key, with the nearest valid one.
        WorkloadError: an unreadable file, bad TOML (with the row), or a value of the wrong type.
    """
    table = _parse(path)
    kind = table.pop("kind", None)
    kinds = ["trace", *GENERATORS]
    if kind is None:
        raise WorkloadError(f"key 'kind' is missing, expected one of {', '.join(kinds)}", path=path)
    if kind not in kinds:
        raise UnknownName(f"workload kind in {path}:", kind, kinds)
    own = TRACE if kind == "trace" else dict.fromkeys(GENERATORS[kind].keys(table), object)
    for key, value in table.items():
        _check(path, key, value, {**own, **COMMON})
    common = {key: table.pop(key) for key in COMMON if key in table}
    _check_scales(path, common)
    check_replay(common.get("replay", "closed"), f"replay in {path}:")
    if kind != "trace":
        return Recipe(name=path.stem, kind=kind, options=_beside(table, path), spec_path=path, **common)
    if "path" not in table:
        raise WorkloadError("key 'path' is missing, expected the trace file", path=path)
    table["path"] = path.parent / Path(table["path"]).expanduser()
    reading = ReadOptions(**{key: table.pop(key) for key in READING if key in table})
    return Recipe(name=path.stem, reading=reading, **table, **common)


def _beside(value: Any, path: Path) -> Any:
    """``value`` with every trace's ``path`` in it counted from the spec's folder."""
    if isinstance(value, list):
        return [_beside(item, path) for item in value]
    if not isinstance(value, dict):
        return value
    out = {key: _beside(item, path) for key, item in value.items()}
    if isinstance(out.get("path"), str):
        out["path"] = str(path.parent / Path(out["path"]).expanduser())
    return out


def _check_scales(path: Path, common: dict[str, Any]) -> None:
    """The checks of loading, made here, where the file can be named."""
    try:
        check_factor(common.get("time_scale", 1), "time_scale", zero=True)
        check_factor(common.get("length_scale", 1), "length_scale")
        cut([], common.get("limit"))
    except WorkloadError as error:
        raise WorkloadError(str(error), path=path) from None


def _parse(path: Path) -> dict[str, Any]:
    file = read_text(path, "workload spec")
    try:
        return tomllib.loads(file.text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        place = re.search(r"at line (\d+)", message)
        row = int(place.group(1)) if place else len(rows_of(file.text.rstrip()))  # else "at end of document"
        raise WorkloadError(f"bad TOML: {message.split(' (at ')[0]}", path=path, row=row) from None
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"bad TOML: {str(error)[:100]}", path=path) from None


def _check(path: Path, key: str, value: object, valid: dict[str, Any]) -> None:
    if key not in valid:
        raise UnknownName(f"key in {path}:", key, valid)
    expected = valid[key]
    if expected is object:
        return
    kinds = expected if isinstance(expected, tuple) else (expected,)
    if type(value) not in kinds:
        names = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}
        raise WorkloadError(f"{key} is {shorten(value)}, expected {names[kinds[-1]]}", path=path)
