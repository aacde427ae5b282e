"""Workload specs in TOML, as docs/workloads.md has them: ``kind = "trace"`` with a path, or a generator's one."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvtop.engine.errors import UnknownName, WorkloadError
from kvtop.workloads.files import read_text, rows_of
from kvtop.workloads.formats.base import MAX_TIME_NS, NS_PER_S, ReadOptions
from kvtop.workloads.generators.options import integer, number
from kvtop.workloads.generators.registry import GENERATORS
from kvtop.workloads.recipe import Recipe
from kvtop.workloads.rows import MAX_LENGTH_TOKENS
from kvtop.workloads.scale import check_factor, cut
from kvtop.workloads.sessions import check_replay
from kvtop.workloads.shape import MAX_ROWS
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

MAX_SEED = 10**15  # that of --seed
MAX_NESTED = 32  # a distribution in a stream in a list is 4

BOUNDS: dict[str, Callable[[dict[str, Any], str], object]] = {
    "time_scale": lambda table, key: check_factor(table[key], key, zero=True),
    "length_scale": lambda table, key: check_factor(table[key], key),
    "limit": lambda table, key: cut([], table[key]),
    "seed": lambda table, key: integer(table, key, 0, MAX_SEED),
    "hash_block_tokens": lambda table, key: integer(table, key, 1, MAX_LENGTH_TOKENS),
    "output_tokens": lambda table, key: integer(table, key, 1, MAX_LENGTH_TOKENS),
    "start_s": lambda table, key: number(table, key, 0, MAX_TIME_NS / NS_PER_S),
    "end_s": lambda table, key: number(table, key, 0, math.inf, above=True),
    "arrival_rate": lambda table, key: number(table, key, 0, math.inf, above=True),
    "tile": lambda table, key: integer(table, key, 1, MAX_ROWS),
}
"""Every number that is not a generator's, which checks its own."""


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
    _check_bounds(path, {key: value for key, value in table.items() if kind == "trace" or key in COMMON})
    common = {key: table.pop(key) for key in COMMON if key in table}
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


def _check_bounds(path: Path, table: dict[str, Any]) -> None:
    """The checks of loading, made here, where the file can be named."""
    try:
        for key in BOUNDS.keys() & table.keys():
            BOUNDS[key](table, key)
        if table.get("end_s", math.inf) <= table.get("start_s", 0):
            found = f"end_s is {table['end_s']:g} and start_s {table.get('start_s', 0):g}"
            raise WorkloadError(f"{found}, expected an end after the start")
    except WorkloadError as error:
        raise WorkloadError(str(error), path=path) from None


def _parse(path: Path) -> dict[str, Any]:
    file = read_text(path, "workload spec")
    try:
        table = tomllib.loads(file.text.replace("\r\n", "\n"))
        _check_sizes(table)
        return table
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        place = re.search(r"at line (\d+)", message)
        row = int(place.group(1)) if place else len(rows_of(file.text.rstrip()))  # else "at end of document"
        raise WorkloadError(f"bad TOML: {message.split(' (at ')[0]}", path=path, row=row) from None
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"bad TOML: {str(error)[:100]}", path=path) from None


def _check_sizes(value: Any, place: str = "", depth: int = 0) -> None:
    """Raise ValueError for what is nested without end, and for an integer that TOML itself has no room for: neither
    arithmetic nor ``float`` need look out for them then.
    """
    if depth > MAX_NESTED:
        raise ValueError(f"tables and lists in each other, more than {MAX_NESTED} deep")
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise ValueError(f"{place} is an integer of more than 64 bits")
    for name, item in value.items() if isinstance(value, dict) else ():
        _check_sizes(item, f"{place}.{name}" if place else name, depth + 1)
    for index, item in enumerate(value) if isinstance(value, list) else ():
        _check_sizes(item, f"{place}[{index}]", depth + 1)


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
