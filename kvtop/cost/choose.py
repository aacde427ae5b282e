"""What a simulated run simulates: from ``--gpu``, ``--tp``, ``--model``, ``--cost-model`` to plain data."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from kvtop.cost.files import Basis, CostFile, read_cost_file
from kvtop.cost.presets import preset_cost, work_of
from kvtop.engine.errors import ConfigError
from kvtop.engine.executors.sim_cost import CostModel
from kvtop.model_shape import find_shape
from kvtop.presets import gpu_name, gpu_preset

DEFAULT_GPU = "h100-80gb"
DEFAULT_MODEL = "llama-3.1-8b"
CPU_SIZES = {"max_batched_tokens": 128, "max_num_seqs": 32}  # what the torch executor takes on a CPU
GPU_SIZES = {"max_batched_tokens": 8192, "max_num_seqs": 256}  # what servers on such GPUs start with
KV_BYTES_WITHOUT_GPU = 512 * 2**20  # as the torch executor takes on a CPU


@dataclass(frozen=True, slots=True)
class Simulated:
    """``params`` are the sim executor's, what run.json says among them; ``sizes`` stand in for EngineConfig values that
    were not given."""

    model: str
    device: str
    params: dict[str, Any]
    kv_memory_bytes: int
    sizes: dict[str, int]


def choose(
    *,
    model: str,
    gpu: str | None,
    tp: int,
    utilisation: float,
    cost_model: Path | None,
    kv_dtype: str,
    kv_memory_bytes: int | None,
) -> Simulated:
    """Resolve all names. ``kv_dtype`` "auto" is that of the activations; ``model`` "default" a preset or the file's.

    Raises:
        UnknownName: no such model or GPU, with the nearest.
        UsageError, ConfigError: a cost file or a combination that does not work; weights that leave no room.
    """
    if cost_model is not None:
        file = read_cost_file(cost_model)
        return _from_file(file, model, gpu, tp, utilisation, kv_dtype, kv_memory_bytes)
    shape = find_shape(DEFAULT_MODEL if model == "default" else model)
    name = gpu_name(gpu or DEFAULT_GPU)
    stored = "fp16" if kv_dtype == "auto" else kv_dtype
    cost = preset_cost(shape, name, gpu_preset(name), tp=tp, kv_dtype=stored)
    device = name if tp == 1 else f"{tp} x {name}"
    basis = Basis(model=shape.name, device=device, dtype="bf16", kv_dtype=stored, max_model_len=shape.max_model_len)
    room = kv_memory_bytes or _room(cost, name, tp, utilisation)
    return _simulated(cost, basis, room, GPU_SIZES)


def _from_file(
    file: CostFile, model: str, gpu: str | None, tp: int, utilisation: float, kv_dtype: str, kv_memory_bytes: int | None
) -> Simulated:
    """The file's machine, with the work it was fitted on or that of another model."""
    basis, cost = file.basis, file.cost
    if model != "default" or kv_dtype != "auto" or tp != basis.tp:
        shape = find_shape(basis.model if model == "default" else model)
        stored = basis.kv_dtype if kv_dtype == "auto" else kv_dtype
        work = work_of(shape, tp=tp, kv_dtype=stored, bytes_per_param=basis.bytes_per_param)
        cost = CostModel(name=f"{shape.name} by {file.name}", work=work, machine=file.machine)
        basis = msgspec.structs.replace(basis, model=shape.name, kv_dtype=stored, max_model_len=shape.max_model_len)
    if kv_memory_bytes is None:
        kv_memory_bytes = KV_BYTES_WITHOUT_GPU if gpu is None else _room(cost, gpu, tp, utilisation)
    if gpu is not None:
        basis = msgspec.structs.replace(basis, device=gpu_name(gpu))
    if tp > 1:
        basis = msgspec.structs.replace(basis, device=f"{tp} x {basis.device}")
    return _simulated(cost, basis, kv_memory_bytes, CPU_SIZES if file.basis.device == "cpu" else GPU_SIZES)


def _room(cost: CostModel, gpu: str, tp: int, utilisation: float) -> int:
    """Bytes for K and V on each GPU: what ``kvtop calc`` says, activations not counted."""
    usable = int(gpu_preset(gpu).memory_bytes * Decimal(str(utilisation)))
    left = usable - cost.work.weight_bytes
    if left < cost.work.pool_bytes_per_token:
        raise ConfigError(
            f"{cost.name}: weights of {cost.work.weight_bytes / 1e9:,.1f} GB leave no room for K and V in "
            f"{usable / 1e9:,.1f} GB (utilisation {utilisation:g}): more GPUs (--tp, now {tp}) or a larger one (--gpu)"
        )
    return left


def _simulated(cost: CostModel, basis: Basis, kv_memory_bytes: int, sizes: dict[str, int]) -> Simulated:
    told = {
        "model": basis.model,
        "device": basis.device,
        "dtype": basis.dtype,
        "kv_dtype": basis.kv_dtype,
        "max_model_len": basis.max_model_len,
        "vocab_size": basis.vocab_size,
    }
    params = {"cost_model": msgspec.to_builtins(cost), **{k: v for k, v in told.items() if v is not None}}
    return Simulated(basis.model, basis.device, params, kv_memory_bytes, sizes)
