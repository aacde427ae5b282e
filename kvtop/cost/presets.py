"""Cost models that nobody measured: a model's shape on a GPU's published peaks, times what programs usually reach."""

from __future__ import annotations

from dataclasses import dataclass

from kvtop.calc import CacheShape
from kvtop.engine.errors import ModelError
from kvtop.engine.executors.sim_cost import CostModel, Machine, Work
from kvtop.model_shape import ModelShape
from kvtop.presets import GpuPreset

BYTES_PER_PARAM = 2  # fp16 or bf16
ACTIVATION_BYTES = 2
ALLREDUCES_PER_LAYER = 2  # after attention and after the feed-forward part


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Share of a published peak that is reached, and fixed costs. Round numbers, fitted to no run."""

    weights: float = 0.85  # of the bandwidth, reading weights
    matrices: float = 0.65  # of the arithmetic, in large matrix products
    cache: float = 0.70  # of the bandwidth, reading K and V by blocks
    attention: float = 0.40  # of the arithmetic
    link: float = 0.75
    host: float = 0.80
    step_ns: float = 2e6  # scheduling, launching and sampling around a step
    seq_ns: float = 10e3
    ingest_ns: float = 2e6  # tokenising, queueing
    allreduce_ns: float = 10e3


GENERIC = Efficiency()


def machine_of(gpu: GpuPreset, efficiency: Efficiency = GENERIC) -> Machine:
    """What programs reach on ``gpu``."""
    return Machine(
        weight_bytes_s=gpu.bandwidth_bytes_s * efficiency.weights,
        flops_s=gpu.flops_s * efficiency.matrices,
        kv_bytes_s=gpu.bandwidth_bytes_s * efficiency.cache,
        attention_flops_s=gpu.flops_s * efficiency.attention,
        step_ns=efficiency.step_ns,
        seq_ns=efficiency.seq_ns,
        ingest_ns=efficiency.ingest_ns,
        link_bytes_s=gpu.link_bytes_s * efficiency.link,
        allreduce_ns=efficiency.allreduce_ns,
        host_bytes_s=gpu.host_bytes_s * efficiency.host,
    )


def work_of(shape: ModelShape, *, tp: int = 1, kv_dtype: str = "fp16", bytes_per_param: float | None = None) -> Work:
    """What one of ``tp`` GPUs has to do for the model. ``bytes_per_param`` None: as stored, else 2.

    Every weight is read in every step: of a mixture of experts that is so once a batch reaches all of them.

    Raises:
        ModelError: the shape lacks a number, or it is a mixture of experts that does not say what a token passes.
        ConfigError: the KV heads cannot be dealt out to ``tp`` GPUs.
    """
    heads, hidden, params = shape.num_heads, shape.hidden_size, shape.num_params
    if heads is None or hidden is None or params is None:
        missing = "num_attention_heads, hidden_size or the number of parameters"
        raise ModelError(f"{shape.source}: {missing} is not known, so no step has a cost")
    active = shape.num_active_params
    if active is None:
        raise ModelError(f"{shape.source}: a mixture of experts: how many parameters a token passes is not known")
    weight_bytes = shape.weight_bytes if shape.weight_bytes and bytes_per_param is None else None
    if weight_bytes is None:
        weight_bytes = round(params * (bytes_per_param or BYTES_PER_PARAM))
    cache = CacheShape(1, shape.num_kv_heads, shape.head_dim, kv_dtype).per_gpu(tp)
    full = shape.num_layers - shape.num_sliding_layers
    pair = 4 * heads * shape.head_dim / tp  # a product with K and one with V, two operations an element
    allreduces = ALLREDUCES_PER_LAYER * shape.num_layers if tp > 1 else 0
    return Work(
        weight_bytes=-(-weight_bytes // tp),
        flops_per_token=2 * active / tp,
        kv_bytes_per_token=full * cache.bytes_per_token,
        flops_per_pair=full * pair,
        sliding_window=shape.sliding_window,
        window_kv_bytes_per_token=shape.num_sliding_layers * cache.bytes_per_token,
        window_flops_per_pair=shape.num_sliding_layers * pair,
        num_allreduces=allreduces,
        wire_bytes_per_token=allreduces * hidden * ACTIVATION_BYTES * 2 * (tp - 1) / tp,
    )


def preset_cost(shape: ModelShape, gpu_name: str, gpu: GpuPreset, *, tp: int = 1, kv_dtype: str = "fp16") -> CostModel:
    """The generic cost model of a model on ``tp`` GPUs of one kind."""
    name = f"{shape.name} on {tp} x {gpu_name}, generic"
    return CostModel(name=name, work=work_of(shape, tp=tp, kv_dtype=kv_dtype), machine=machine_of(gpu))
