"""Options that ``live``, ``bench`` and ``compare -w`` share, and the checks made before a model is loaded."""

from __future__ import annotations

import argparse
from typing import Any

from kvtop.cli.sim_options import add_sim_options, predicted_by, simulated
from kvtop.cli.values import count, count_or_zero, not_negative, one_of, positive, size_bytes
from kvtop.engine.config import ALLOCATORS, KV_DTYPES, EngineConfig, with_whole_prompts
from kvtop.engine.errors import UnknownName, UsageError
from kvtop.run.spec import RunSpec
from kvtop.workloads.spec import REPLAYS, WorkloadSpec

EXECUTORS = ("torch", "sim", "null")
TOO_LONG = ("reject", "clip", "truncate")
DEVICES = ("auto", "cpu", "cuda")


def add_workload_options(parser: argparse.ArgumentParser) -> None:
    """How the workload is scaled and cut."""
    group = parser.add_argument_group("workload")
    group.add_argument("--limit", type=count, metavar="N", help="only the first N requests")
    group.add_argument(
        "--time-scale", type=not_negative, default=1.0, metavar="X",
        help="multiplies the gaps between arrivals (0.5: twice the rate, 0: everything at once)",
    )  # fmt: skip
    group.add_argument(
        "--length-scale", type=positive, default=1.0, metavar="X",
        help="multiplies prompt, output and shared-prefix lengths",
    )  # fmt: skip
    group.add_argument(
        "--too-long", type=one_of("rule for too long requests", TOO_LONG), default="reject",
        help="a request longer than the model: reject it (default), clip its output or truncate its prompt",
    )  # fmt: skip
    group.add_argument(
        "--replay", type=one_of("replay", REPLAYS),
        help="a turn is sent when the one before has ended and the user has thought (closed, default), or at its "
        "recorded time (open)",
    )  # fmt: skip
    group.add_argument("--format", metavar="F", help="trace format, where it is not recognised")
    group.add_argument(
        "--arrival-rate", type=float, metavar="R",
        help="Poisson arrivals per second, of a trace that records none of its requests or sessions (inf: all at once)",
    )  # fmt: skip
    group.add_argument(
        "--seed", type=count_or_zero, default=0, metavar="S", help="of token ids, arrivals and sampling (default 0)"
    )


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Model, memory and scheduler."""
    model = parser.add_argument_group("model and memory")
    model.add_argument(
        "-m", "--model", default="default",
        help="default, tiny, a Hugging Face directory or a GGUF file (simulated: a preset of `kvtop models`, or a "
        "config.json)",
    )  # fmt: skip
    model.add_argument(
        "--executor", type=one_of("executor", EXECUTORS), default="torch",
        help="torch: a real model in real time (default); sim: no model, a virtual clock and steps that cost what a "
        "GPU would take; null: no model, a fixed step time on a virtual clock",
    )  # fmt: skip
    model.add_argument("--device", type=one_of("device", DEVICES), default="auto", help="auto (default), cpu or cuda")
    memory = model.add_mutually_exclusive_group()
    memory.add_argument("--num-blocks", type=count, metavar="N", help="blocks in the pool")
    memory.add_argument("--kv-memory", type=size_bytes, metavar="SIZE", help="memory for the pool, e.g. 2GiB")
    model.add_argument(
        "--kv-dtype", type=one_of("KV dtype", KV_DTYPES), default="auto",
        help="how K and V are stored: auto (as computed, default), or one byte an element: int8 or fp8",
    )  # fmt: skip
    model.add_argument("--block-size", type=count, default=16, metavar="N", help="tokens a block (default 16)")
    engine = parser.add_argument_group("engine")
    engine.add_argument("--preemption", metavar="MODE", help="recompute (default), or swap to host memory")
    engine.add_argument(
        "--host-blocks", metavar="N", type=count_or_zero, help="blocks in host memory, for --preemption swap"
    )
    engine.add_argument(
        "--host-cache-blocks", metavar="N", type=count_or_zero,
        help="further blocks in host memory, for prefixes evicted from the cache (default 0: they are lost)",
    )  # fmt: skip
    engine.add_argument(
        "--policy-param", action="append", default=[], metavar="NAME=VALUE",
        help="a parameter of the queue policy, e.g. aging_steps=64 (may be repeated)",
    )  # fmt: skip
    engine.add_argument("--eviction", metavar="NAME", help="eviction policy (default lru)")
    engine.add_argument("--victim", metavar="NAME", help="who is preempted (default last-arrived)")
    engine.add_argument(
        "--batch-policy", metavar="NAME", help="what a step's budget goes to first (default decode-first)"
    )
    engine.add_argument(
        "--max-num-seqs", type=count, metavar="N", help="sequences that run at once (64; 32 on a CPU, 256 simulated)"
    )
    engine.add_argument(
        "--max-batched-tokens",
        type=count,
        metavar="N",
        help="token budget of a step (512; 128 on a CPU, 8192 simulated)",
    )
    engine.add_argument(
        "--max-model-len", type=count, metavar="N", help="longest prompt + output (default: what model and pool hold)"
    )
    engine.add_argument(
        "--prefix-caching", action=argparse.BooleanOptionalAction,
        help="take known prefixes from the cache, or compute every prompt in full (default: on where blocks are paged)",
    )  # fmt: skip
    engine.add_argument(
        "--chunked-prefill", action=argparse.BooleanOptionalAction,
        help="compute long prompts piece by piece (default), or each in one step, with a budget that holds it",
    )  # fmt: skip
    add_sim_options(parser)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def workload_spec(args: argparse.Namespace, name: str) -> WorkloadSpec:
    """The workload as asked for."""
    return WorkloadSpec(
        name=name,
        format=args.format,
        limit=args.limit,
        time_scale=args.time_scale,
        length_scale=args.length_scale,
        too_long=args.too_long,
        seed=args.seed,
        replay=args.replay,
        arrival_rate=args.arrival_rate,
    )


def engine_values(args: argparse.Namespace, policy: str, allocator: str = "paged") -> dict[str, Any]:
    """EngineConfig values as asked for, checked together as far as that goes without the model.

    Raises:
        UnknownName: no such policy or allocator.
        ConfigError: values that cannot work together.
    """
    check_policies(policy, eviction=args.eviction, victim=args.victim, batch=args.batch_policy)
    if allocator not in ALLOCATORS:
        raise UnknownName("allocator", allocator, ALLOCATORS)
    given = {
        "eviction": args.eviction,
        "preemption": args.preemption,
        "host_blocks": args.host_blocks or None,  # 0 is the default: the same run, whether it is written or not
        "host_cache_blocks": args.host_cache_blocks or None,
        "victim": args.victim,
        "batch_policy": args.batch_policy,
        "kv_dtype": None if args.kv_dtype == "auto" else args.kv_dtype,
        "max_num_seqs": args.max_num_seqs,
        "max_batched_tokens": args.max_batched_tokens,
        "max_model_len": args.max_model_len,
        "prefix_caching": args.prefix_caching,
        "chunked_prefill": args.chunked_prefill,
    }
    values: dict[str, Any] = {"policy": policy, "allocator": allocator, "block_size": args.block_size}
    if params := policy_params(args, policy):
        values["policy_params"] = params
    values |= {key: value for key, value in given.items() if value is not None}
    # Without a number the pool is sized when the model is known; one block lets every other check run now.
    num_blocks = args.num_blocks or 1
    EngineConfig.from_mapping({**with_whole_prompts(values, num_blocks), "num_blocks": num_blocks})
    return values


def run_spec(args: argparse.Namespace, workload: str, policy: str, allocator: str = "paged", **more: Any) -> RunSpec:
    """Everything the engine's process needs, all names but the workload's checked (``check_workload``).

    Raises:
        UsageError: something in it cannot work; see the parts.
    """
    sim = simulated(args)
    check_model(args.model, args.executor)
    if args.executor == "null" and args.kv_memory is not None:
        raise UsageError("--kv-memory: the null executor has no model, so a block has no size; give --num-blocks")
    if args.executor == "null" and args.kv_dtype != "auto":
        raise UsageError(f"--kv-dtype {args.kv_dtype}: the null executor has no model, so it stores no K and V")
    engine = engine_values(args, policy, allocator)
    if sim is not None:
        engine = sim.sizes | engine
        more = {"executor_params": sim.params, **more}
    elif args.cost_model is not None:
        more = {"predicted_by": predicted_by(args), **more}
    return RunSpec(
        workload=workload_spec(args, workload),
        engine=engine,
        executor=args.executor,
        model=args.model if sim is None else sim.model,
        device=args.device if sim is None else sim.device,
        num_blocks=args.num_blocks,
        kv_memory_bytes=args.kv_memory if sim is None or args.num_blocks else sim.kv_memory_bytes,
        seed=args.seed,
        **more,
    )


def policy_params(args: argparse.Namespace, policy: str) -> dict[str, Any]:
    """What --policy-param says about ``policy``. Of several policies each takes those parameters that it has.

    Raises:
        UsageError: no NAME=VALUE, a parameter that none of the policies has, a value of another type than the default.
    """
    from kvtop.engine.policies.registry import QUEUE

    asked = args.policy if isinstance(args.policy, list) else [policy]
    known = {name: default for each in asked for name, default in QUEUE.get(each)[0].defaults.items()}
    own = QUEUE.get(policy)[0].defaults
    params: dict[str, Any] = {}
    for text in args.policy_param:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--policy-param {text!r}: expected NAME=VALUE")
        if name not in known:
            raise UnknownName(f"parameter of {' and '.join(asked)}", name, known or ("(none)",))
        if name in own:
            params[name] = _typed(text, value, own[name])
    return params


def _typed(text: str, value: str, default: Any) -> Any:
    """``value`` as the type that ``default`` has."""
    if isinstance(default, bool):
        if value.lower() in ("true", "false"):
            return value.lower() == "true"
    elif isinstance(default, int | float | str):
        try:
            return type(default)(value)
        except ValueError:
            pass
    raise UsageError(f"--policy-param {text!r}: expected {type(default).__name__}, such as {default!r}")


def check_policies(
    policy: str, *, eviction: str | None = None, victim: str | None = None, batch: str | None = None
) -> None:
    """Raise UnknownName, naming the nearest, for a policy that does not exist."""
    from kvtop.engine.policies import registry

    registry.QUEUE.get(policy)
    for kind, name in ((registry.EVICTION, eviction), (registry.VICTIM, victim), (registry.BATCH, batch)):
        if name is not None:
            kind.get(name)


def check_workload(spec: WorkloadSpec) -> None:
    """Read the whole workload once, so that a broken row is reported before a model is loaded.

    The default one as it comes has none: reading it takes a seventh of the way to the first paint.

    Raises:
        UnknownName, WorkloadError: no such workload, or one that cannot be used (file, row, reason).
    """
    if spec == WorkloadSpec(name="default", seed=spec.seed):
        return
    from kvtop.workloads.load import load_workload

    load_workload(spec, vocab_size=1 << 15)  # any size: only the token ids, made later, depend on it


def check_model(name: str, executor: str) -> None:
    """Raise ModelError for a name that stands for no model; without a real one there is none to look for.

    The default one is never missing: to look up which it is takes a tenth of the way to the first paint.
    """
    if executor == "torch" and name != "default":
        from kvtop.engine.executors.models import resolve

        resolve(name)
