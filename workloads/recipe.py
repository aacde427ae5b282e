"""Where a workload's rows come from, with its own scales: what a built-in name or a TOML file stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from kvtop.engine.errors import WorkloadError
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
    hash_block_tokens: int | None = None
    options: dict[str, Any] = {}  # of the generator
    spec_path: Path | None = None  # the TOML file the options stand in
    time_scale: float = 1.0
    length_scale: float = 1.0
    limit: int | None = None
    sharing_only: bool = False  # keep the rows that have a prefix in common with some, not all, of the others
    seed: int = 0

    def rows(self, seed: int) -> RowSet:
        """Read or generate the rows, unscaled. ``seed`` is the sum of both seeds; a trace does not depend on it."""
        if self.path is not None:
            return read_trace(self.path, self.format, hash_block_tokens=self.hash_block_tokens)
        try:
            return generate(self.kind, self.options, seed)
        except WorkloadError as error:
            raise WorkloadError(str(error), path=self.spec_path) from None
