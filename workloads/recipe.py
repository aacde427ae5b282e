"""Where a workload's rows come from, with its own scales: what a built-in name or a TOML file stands for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from kvtop.engine.errors import UnknownName, WorkloadError
from kvtop.workloads.formats.base import ReadOptions
from kvtop.workloads.formats.registry import read_trace
from kvtop.workloads.generators.registry import generate
from kvtop.workloads.rows import RowSet


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """A trace file or a generator, and its own scales.

    The user's WorkloadSpec comes on top: scales multiply, the smaller limit holds, seeds add up.
    """

    name: str
    kind: str = "trace"  # or a generator's name
    path: Path | None = None  # of the trace
    format: str | None = None
    reading: ReadOptions = ReadOptions()  # of the trace
    arrival_rate: float | None = None  # of a trace that records no arrivals
    tile: int = 1  # copies of the trace, one after the other
    options: dict[str, Any] = {}  # of the generator
    spec_path: Path | None = None  # the TOML file the options stand in
    time_scale: float = 1.0
    length_scale: float = 1.0
    limit: int | None = None
    sharing_only: bool = False  # keep the rows that have a prefix in common with some, not all, of the others
    seed: int = 0
    replay: str | None = None  # closed or open
    about: str = ""  # one line for those who choose

    def options_by(self, content: Callable[[Path], str]) -> dict[str, Any]:
        """The options, with what ``content`` says of each trace file in them instead of its place."""
        return _by_content(self.options, content)

    def rows(self, seed: int, arrival_rate: float | None = None) -> RowSet:
        """Read or generate the rows, unscaled. ``seed`` is the sum of both seeds; a recorded arrival depends on none.

        ``arrival_rate`` replaces the recipe's own; only a trace that records no arrivals takes one.
        """
        if self.path is not None:
            rate = self.arrival_rate if arrival_rate is None else arrival_rate
            options = msgspec.structs.replace(self.reading, seed=seed)
            return read_trace(self.path, self.format, options=options, arrival_rate=rate, tile=self.tile)
        if arrival_rate is not None:
            raise WorkloadError(f"arrival_rate is given, but {self.name!r} is generated, not a trace")
        try:
            return generate(self.kind, self.options, seed)
        except UnknownName as error:
            what = error.what if self.spec_path is None else f"{error.what} in {self.spec_path}:"
            raise UnknownName(what, error.name, error.valid) from None
        except WorkloadError as error:
            raise WorkloadError(str(error), path=self.spec_path) from None


def _by_content(value: Any, content: Callable[[Path], str]) -> Any:
    if isinstance(value, list):
        return [_by_content(item, content) for item in value]
    if not isinstance(value, dict):
        return value
    out = {key: _by_content(item, content) for key, item in value.items()}
    if isinstance(out.get("path"), str):
        out["path"] = content(Path(out["path"]))
    return out
