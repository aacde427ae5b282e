"""From runs or a table to a cost model: whose work it was, which steps, and the fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from kvtop.calc import DTYPE_BYTES
from kvtop.cost.files import Basis, CostFile, cost_file
from kvtop.cost.fit import Fit, as_json, fit_machine
from kvtop.cost.presets import work_of
from kvtop.cost.steps import Steps, join, steps_of_run
from kvtop.cost.tables import read_table
from kvtop.engine.errors import UsageError
from kvtop.engine.executors.sim_cost import CostModel, Work
from kvtop.model_shape import ModelShape, find_shape
from kvtop.presets import MODELS
from kvtop.results.load import Run, find_runs, open_run

CALLED = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class Calibration:
    file: CostFile
    fit: Fit
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {**msgspec.to_builtins(self.file), "notes": self.notes}


def calibrate(sources: Sequence[Path], *, model: str | None, tp: int, dtype: str | None) -> Calibration:
    """Fit all sources together: runs of one model on one machine (or directories of them), or one table.

    Raises:
        UsageError: a source that cannot be used, runs that do not belong together, a model that is not known.
    """
    tables = [path for path in sources if path.name.endswith((".csv", ".csv.gz"))]
    if tables and len(sources) > 1:
        raise UsageError(f"{tables[0]}: a table is fitted alone, not with {len(sources) - 1} other sources")
    if tables:
        return _of_table(tables[0], model, tp, dtype or "fp16")
    if tp != 1 or dtype is not None:
        raise UsageError(f"{'--tp' if tp != 1 else '--dtype'} describes a table; a run says it itself")
    return _of_runs([open_run(run) for path in sources for run in find_runs(path) or [path]], model)


def _of_table(path: Path, model: str | None, tp: int, dtype: str) -> Calibration:
    if model is None:
        raise UsageError(f"{path}: a table does not say which model was run: give --model, e.g. --model llama-3-8b")
    shape = find_shape(model)
    work = work_of(shape, tp=tp, kv_dtype=dtype, bytes_per_param=DTYPE_BYTES[dtype])
    steps = read_table(path, tp=tp, num_layers=shape.num_layers)
    basis = Basis(
        model=shape.name, device=path.name, dtype=dtype, kv_dtype=dtype, bytes_per_param=DTYPE_BYTES[dtype], tp=tp,
        max_model_len=shape.max_model_len, runs=[path.name],
    )  # fmt: skip
    return _fitted(f"{shape.name} by {path.name}", steps, work, basis)


def _of_runs(runs: Sequence[Run], model: str | None) -> Calibration:
    manifests = [run.manifest for run in runs]
    for key in ("model", "device", "dtype", "kv_dtype", "computed_by", "gpu", "cpu"):
        values = list(dict.fromkeys(str(manifest.get(key)) for manifest in manifests))
        if len(values) > 1:
            raise UsageError(
                f"{key} is {values[0]} and {values[1]}: runs of one model on one machine are fitted together"
            )
    first = manifests[0]
    shape = _shape(first, model)
    dtype, kv_dtype = (CALLED.get(str(first.get(key)), str(first.get(key))) for key in ("dtype", "kv_dtype"))
    width = DTYPE_BYTES.get(dtype)
    if width is None or kv_dtype not in DTYPE_BYTES:
        raise UsageError(f"{runs[0].path}: dtype {dtype} and kv_dtype {kv_dtype}, expected {', '.join(DTYPE_BYTES)}")
    work = work_of(shape, kv_dtype=kv_dtype, bytes_per_param=width)
    _check_work(runs[0], work, shape)
    basis = Basis(
        model=shape.name, device=str(first.get("device")), dtype=dtype, kv_dtype=kv_dtype, bytes_per_param=width,
        max_model_len=shape.max_model_len, vocab_size=first.get("vocab_size"), runs=[run.run_id for run in runs],
    )  # fmt: skip
    where = first.get("gpu") if str(first.get("device")).startswith("cuda") else first.get("cpu")
    return _fitted(f"{shape.name} on {where or first.get('device')}", join(map(steps_of_run, runs)), work, basis)


def _shape(manifest: dict[str, Any], model: str | None) -> ModelShape:
    """Of the model named, or of the preset whose repository has the run's model's name."""
    if model is not None:
        return find_shape(model)
    name = str(manifest.get("model"))
    for preset, values in MODELS.items():
        if values.source.rpartition("/")[2].lower() == name.lower():
            return find_shape(preset)
    raise UsageError(f"the shape of {name} is not known: give --model with its directory or config.json")


def _check_work(run: Run, work: Work, shape: ModelShape) -> None:
    """The run says how many bytes a block has: a wrong --model shows."""
    found, size = run.manifest.get("kv_bytes_per_block"), run.manifest.get("block_size_tokens")
    if isinstance(found, int) and isinstance(size, int) and found != work.pool_bytes_per_token * size:
        raise UsageError(
            f"{run.path}: a block has {found:,} bytes, one of {shape.name} would have "
            f"{work.pool_bytes_per_token * size:,}: --model names another model than the one that ran"
        )


def _fitted(name: str, steps: Steps, work: Work, basis: Basis) -> Calibration:
    notes = []
    if work.num_allreduces:  # nothing measured tells them apart from what else a step and a token cost
        work = msgspec.structs.replace(work, num_allreduces=0, wire_bytes_per_token=0.0)
        notes.append(
            f"all-reduces of {basis.tp} GPUs are part of the other constants: use it with --tp {basis.tp} only"
        )
    fit = fit_machine(steps, work)
    if fit.unseen:
        notes.append(f"cost nothing that could be measured: {', '.join(fit.unseen)}")
    if fit.held_out is None:
        notes.append("too few steps to hold some out")
    cost = CostModel(name=name, work=work, machine=fit.machine)
    return Calibration(cost_file(cost, basis, as_json(fit)), fit, notes)
