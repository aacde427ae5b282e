"""Builds an engine from plain data. Imported only inside the engine's process, because it may load torch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from kvtop.engine.config import EngineConfig, with_whole_prompts
from kvtop.engine.engine import Engine
from kvtop.engine.errors import ConfigError, UnknownName
from kvtop.engine.executors.null import NullExecutor
from kvtop.engine.executors.sim import SimExecutor
from kvtop.engine.executors.sim_cost import CostModel
from kvtop.engine.policies.future import FutureUses
from kvtop.engine.policies.registry import policy_label
from kvtop.engine.recorder import AnyRecorder
from kvtop.engine.types import Executor, RequestSpec
from kvtop.engine.windows import Windows

if TYPE_CHECKING:
    from kvtop.engine.executors.torch_executor import TorchExecutor
    from kvtop.engine.executors.torch_layout import ModelGroups

Progress = Callable[[str, float | None], None]
Requests = Callable[[int, int], Iterable[RequestSpec]]

EXECUTORS = {
    "torch": "a real model, in real time",
    "sim": "no model, virtual time: a step costs what a cost model says",
    "null": "no model, virtual time: every step costs the same",
}

UTILISATION = 0.9  # of a GPU's memory, for weights, one step and blocks together
DEFAULT_KV_MEMORY_BYTES = 512 * 1024**2  # on a CPU, with neither num_blocks nor kv_memory_bytes given
# A step of 512 prompt tokens takes a 135M model over a second on two cores: nobody would see a token in between.
CPU_SIZES = {"max_batched_tokens": 128, "max_num_seqs": 32}
DEFAULT_BLOCK_SIZE = EngineConfig(num_blocks=1).block_size
NULL_NUM_BLOCKS = 1024
YOUNG_OBJECTS = 200_000  # that may be made between two collections: about 40 MB of decisions
NULL_VOCAB_SIZE = 32_000


def settle_memory() -> None:
    """Before the first step, in a process that is the engine's own: look for cyclic garbage rarely.

    The engine leaves none, and a decision lives for some ten steps: looked through by every collection meanwhile, it
    cost a sixth of the engine's time. Now most are gone before the next one. What loading left is not looked at again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)
    gc.enable()


@dataclass(frozen=True, slots=True)
class Built:
    """An engine and what run.json says about it."""

    engine: Engine
    info: dict[str, Any]
    vocab_size: int
    tokenizer: Any = None


def build_engine(
    *,
    engine: dict[str, Any],
    executor: str,
    executor_params: dict[str, Any],
    model: str,
    device: str,
    num_blocks: int | None,
    kv_memory_bytes: int | None,
    recorder: AnyRecorder,
    progress: Progress,
    requests: Requests | None = None,
) -> Built:
    """Load the model, size the pool, build the engine.

    ``requests(vocab_size, max_model_len)`` is the whole workload in order; only the eviction policy belady asks for it.

    Raises:
        UnknownName: an executor, policy, allocator or config key that does not exist.
        ConfigError: sizes that cannot work, with the numbers.
        ModelError: the model cannot be loaded.
    """
    if executor == "null":
        return _build_null(engine, executor_params, num_blocks, recorder, requests)
    if executor == "sim":
        return _build_sim(engine, executor_params, num_blocks, kv_memory_bytes, recorder, requests)
    if executor == "torch":
        sizes = (num_blocks, kv_memory_bytes)
        return _build_torch(engine, executor_params, model, device, *sizes, recorder, progress, requests)
    raise UnknownName("executor", executor, EXECUTORS)


def _build_null(
    engine: dict[str, Any],
    params: dict[str, Any],
    num_blocks: int | None,
    recorder: AnyRecorder,
    requests: Requests | None,
) -> Built:
    for key in params:
        if key not in ("step_time_ns", "vocab_size"):
            raise UnknownName("parameter of the null executor", key, ("step_time_ns", "vocab_size"))
    vocab_size = params.get("vocab_size", NULL_VOCAB_SIZE)
    executor = NullExecutor(params.get("step_time_ns", 10_000_000))
    if engine.get("kv_dtype", "auto") != "auto":
        raise ConfigError(f"kv_dtype is {engine['kv_dtype']}, but the null executor has no model: it stores no K and V")
    num_blocks = num_blocks or NULL_NUM_BLOCKS
    config = EngineConfig.from_mapping({**with_whole_prompts(engine, num_blocks), "num_blocks": num_blocks})
    built = Engine(config, executor, recorder=recorder, future=_future(config, vocab_size, requests))
    info = {
        "model": "none",
        "device": "none",
        "dtype": None,
        "kv_dtype": None,
        "computed_by": None,
        "kv_bytes_per_block": None,
    }
    return Built(built, {**describe(built, "null"), **info, "vocab_size": vocab_size}, vocab_size)


def _build_sim(
    engine: dict[str, Any],
    params: dict[str, Any],
    num_blocks: int | None,
    kv_memory_bytes: int | None,
    recorder: AnyRecorder,
    requests: Requests | None,
) -> Built:
    known = ("cost_model", "model", "device", "dtype", "kv_dtype", "max_model_len", "vocab_size")
    for key in params:
        if key not in known:
            raise UnknownName("parameter of the sim executor", key, known)
    if "cost_model" not in params:
        raise ConfigError("the sim executor needs a cost_model: what a step costs")
    cost = msgspec.convert(params["cost_model"], CostModel)
    block_size = engine.get("block_size", DEFAULT_BLOCK_SIZE)
    per_block: int = cost.work.pool_bytes_per_token * block_size
    if num_blocks is None:
        kv_memory_bytes = kv_memory_bytes or DEFAULT_KV_MEMORY_BYTES
        num_blocks = kv_memory_bytes // per_block
        if num_blocks < 1:
            raise ConfigError(f"KV memory of {kv_memory_bytes:,} bytes holds no block: one takes {per_block:,}")
    # Nobody looks back at what has finished; a thousand prompts of a long trace took 0.4 GB.
    longest = params.get("max_model_len")
    values = {"max_model_len": longest, "keep_finished": 0, **engine, "num_blocks": num_blocks}
    values.pop("kv_dtype", None)  # the cost model's bytes are those of the dtype; nothing is stored
    config = EngineConfig.from_mapping(with_whole_prompts(values, num_blocks))
    if cost.machine.host_bytes_s is None and (config.host_blocks or config.host_cache_blocks):
        raise ConfigError("cost model: blocks move to host memory, and the machine has no host_bytes_s")
    vocab_size = params.get("vocab_size", NULL_VOCAB_SIZE)
    future = _future(config, vocab_size, requests)
    built = Engine(config, SimExecutor(cost, config.block_size), recorder=recorder, future=future)
    info = {
        "simulated": True,
        "model": params.get("model"),
        "device": params.get("device"),
        "dtype": params.get("dtype"),
        "kv_dtype": params.get("kv_dtype"),
        "computed_by": None,
        "kv_bytes_per_block": per_block,
        "cost_model": cost.name,
        "cost_model_hash": cost.hash,
        "cost_model_values": msgspec.to_builtins(cost),
        "vocab_size": vocab_size,
    }
    return Built(built, {**describe(built, "sim"), **info}, vocab_size)


def _build_torch(
    engine: dict[str, Any],
    params: dict[str, Any],
    model: str,
    device: str,
    num_blocks: int | None,
    kv_memory_bytes: int | None,
    recorder: AnyRecorder,
    progress: Progress,
    requests: Requests | None,
) -> Built:
    from kvtop.engine.executors.torch_executor import TorchExecutor

    if params:
        raise UnknownName("parameter of the torch executor", next(iter(params)), ("(none)",))
    kv_dtype = engine.get("kv_dtype", "auto")
    executor = TorchExecutor.load(model, device=device, kv_dtype=kv_dtype, progress=progress)
    model_info = executor.info
    block_size = engine.get("block_size", DEFAULT_BLOCK_SIZE)
    longest = model_info.max_model_len
    asked = engine.get("max_model_len")
    if asked is not None and longest is not None and asked > longest:
        raise ConfigError(f"max_model_len is {asked}, the model {model_info.name} reaches {longest}")
    kv_groups = _kv_groups(engine, executor.groups, longest if asked is None else asked, progress)
    per_block = executor.kv_bytes_per_block(block_size, kv_groups)
    values = {"max_model_len": longest, "eos_token_ids": list(model_info.eos_token_ids), **engine}
    values["kv_groups"] = kv_groups
    values = with_whole_prompts(values, num_blocks)
    if model_info.device == "cpu":
        values = {**CPU_SIZES, **values}
    memory: dict[str, int] = {}
    if num_blocks is None:
        if kv_memory_bytes is None:
            kv_memory_bytes, memory = _measure(executor, values, progress)
        num_blocks = int(kv_memory_bytes // per_block)
        if num_blocks < 1:
            raise ConfigError(
                f"KV memory of {kv_memory_bytes:,} bytes holds no block: "
                f"one block of {block_size} tokens takes {per_block:,}"
            )
    config = EngineConfig.from_mapping({**values, "num_blocks": num_blocks})
    progress(f"allocating {num_blocks} blocks", None)
    host_blocks = config.host_blocks + config.host_cache_blocks
    executor.allocate(num_blocks, config.block_size, host_blocks, config.kv_groups, config.max_num_seqs)
    executor.prepare()
    future = _future(config, model_info.vocab_size, requests)
    built = Engine(config, as_executor(executor), recorder=recorder, future=future)
    info = {
        "model": model_info.name,
        "device": model_info.device,
        "dtype": model_info.dtype,
        "kv_dtype": executor.stored_dtype,
        "computed_by": executor.info.computed_by,
        "kv_bytes_per_block": per_block,
        "vocab_size": model_info.vocab_size,
    }
    return Built(built, {**describe(built, "torch"), **info, **memory}, model_info.vocab_size, executor.tokenizer)


def _measure(executor: TorchExecutor, values: dict[str, Any], progress: Progress) -> tuple[int, dict[str, int]]:
    """Bytes for the pool by measuring one full step, and the figures; on a CPU no more than the default.

    Raises:
        ConfigError: weights and one step leave nothing, with the numbers.
    """
    from kvtop.engine.executors.memory import profile

    progress("measuring one full step", None)
    found = profile(executor, EngineConfig.from_mapping({**values, "num_blocks": 1}))
    if found.notice:
        progress(found.notice, None)
    left = found.kv_bytes(UTILISATION)
    kv_bytes = min(left, DEFAULT_KV_MEMORY_BYTES) if executor.info.device == "cpu" else left
    figures = {"weight_bytes": found.weights, "activation_bytes": found.activation, "kv_pool_bytes": kv_bytes}
    return kv_bytes, figures


def _kv_groups(engine: dict[str, Any], groups: ModelGroups, max_len: int | None, progress: Progress) -> Windows:
    """The KV groups of the model's layers, unless the configuration names others (``(None,)``: keep every token)."""
    if "kv_groups" in engine:
        return tuple(engine["kv_groups"])
    if engine.get("allocator", "paged") != "paged":  # the contiguous baselines keep everything
        return (None,)
    kv_groups = groups.windows(max_len)
    reason = groups.reason
    if engine.get("eviction") == "belady" and kv_groups != (None,):
        reason, kv_groups = "eviction policy belady is a bound only then", (None,)
    if reason is not None:
        progress(f"sliding windows: every token is kept; {reason}", None)
    if kv_groups != (None,):
        named = ", ".join("all tokens" if w is None else f"the last {w:,}" for w in kv_groups)
        progress(f"KV groups keep {named}", None)
    return kv_groups


def _future(config: EngineConfig, vocab_size: int, requests: Requests | None) -> FutureUses | None:
    """What the workload will ask for, where the eviction policy needs to know. Rejected prompts ask for nothing."""
    if config.eviction != "belady" or requests is None:
        return None
    longest = config.effective_len
    return FutureUses(requests(vocab_size, longest), config.block_size, max_prompt=longest - 1)


def as_executor(executor: Executor) -> Executor:
    """The type checker's witness that a class satisfies the protocol."""
    return executor


def describe(engine: Engine, executor: str) -> dict[str, Any]:
    """The keys of run.json that the engine's own configuration decides."""
    config = engine.config
    return {
        "executor": executor,
        "clock": "virtual" if engine.clock.virtual else "real",
        "policy": policy_label(config.policy),
        "policy_params": config.policy_params,
        "allocator": config.allocator,
        "batch_policy": policy_label(config.batch_policy),
        "victim": policy_label(config.victim),
        "eviction": policy_label(config.eviction),
        "preemption_mode": config.preemption,
        "block_size_tokens": config.block_size,
        "num_blocks": config.num_blocks,
        "host_blocks": config.host_blocks,
        "host_cache_blocks": config.host_cache_blocks,
        "max_num_seqs": config.max_num_seqs,
        "max_batched_tokens": config.max_batched_tokens,
        "max_model_len": config.effective_len,
        "prefix_caching": config.caching,
        "chunked_prefill": config.chunked_prefill,
    }
