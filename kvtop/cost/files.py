"""Cost models on disk: one JSON object, written by ``kvtop calibrate`` and read by ``--cost-model``.

    {"format": "kvtop-cost-model", "version": 1, "name": "...", "machine": {...}, "work": {...}, "basis": {...},
     "fit": {...}}

``machine`` and ``work`` are the fields of ``kvtop.engine.executors.sim_cost``; ``basis`` is what they were fitted on,
``fit`` how well they fit (null in a file written by hand).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from kvtop.engine.errors import ConfigError, UsageError
from kvtop.engine.executors.sim_cost import CostModel, Machine, Work
from kvtop.results.files import write_bytes

FORMAT, VERSION = "kvtop-cost-model", 1


class Basis(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a cost model was fitted on."""

    model: str
    device: str  # cpu, cuda, or a GPU's name
    dtype: str  # of weights and activations
    kv_dtype: str  # as ``kvtop calc --dtype`` has it
    bytes_per_param: float = 2.0
    tp: int = 1
    max_model_len: int | None = None
    vocab_size: int | None = None
    runs: list[str] = []  # ids of the runs, or the table


class CostFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cost model and where it comes from."""

    format: str
    version: int
    name: str
    machine: Machine
    work: Work
    basis: Basis
    fit: dict[str, Any] | None = None

    @property
    def cost(self) -> CostModel:
        return CostModel(name=self.name, work=self.work, machine=self.machine)


def cost_file(cost: CostModel, basis: Basis, fit: dict[str, Any] | None) -> CostFile:
    return CostFile(
        format=FORMAT, version=VERSION, name=cost.name, machine=cost.machine, work=cost.work, basis=basis, fit=fit
    )


def write_cost_file(path: Path, file: CostFile) -> None:
    """Replace ``path`` as a whole.

    Raises:
        FileError: the disk refuses.
    """
    text = json.dumps(msgspec.to_builtins(file), indent=2, allow_nan=False)
    write_bytes(path, (text + "\n").encode())


def read_cost_file(path: Path) -> CostFile:
    """Read and check a cost model.

    Raises:
        UsageError: missing, no cost model, a field that is missing, unknown or of another type.
    """
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"{path}: is not JSON ({error})") from None
    found = value.get("format") if isinstance(value, dict) else type(value).__name__
    if found != FORMAT:
        raise UsageError(
            f"{path}: is no cost model: format is {found!r}, expected {FORMAT!r} (kvtop calibrate makes one)"
        )
    if value.get("version") != VERSION:
        raise UsageError(f"{path}: version is {value.get('version')!r}, this kvtop reads {VERSION}")
    try:
        return msgspec.convert(value, CostFile)
    except (msgspec.ValidationError, ConfigError) as error:
        raise UsageError(f"{path}: {error}") from None
