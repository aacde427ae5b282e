"""``kvtop calc``: the arguments, and which model and GPU they mean. The sums are in ``kvtop.calc``."""

from __future__ import annotations

import argparse
import json

from kvtop.calc import DTYPE_BYTES, CacheShape, Capacity, capacity
from kvtop.cli.calc_report import as_json, as_text
from kvtop.cli.values import count, fraction, one_of, positive, size_bytes
from kvtop.engine.errors import UsageError
from kvtop.model_shape import ModelShape, find_shape

DESCRIPTION = """\
Exact bytes of a KV cache, 2 x layers x kv_heads x head_dim x bytes x tokens, and with a GPU how many blocks and
concurrent requests fit beside the weights."""

EXAMPLES = """
kvtop calc --layers 80 --kv-heads 8 --head-dim 128 --batch 32 --seq-len 4096 --dtype fp16
kvtop calc --model llama-3-70b --seq-len 8192 --gpu h100-80gb --tp 4
kvtop calc --model ./my-model --gpu-memory 24GiB --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("model (a name, or the three numbers, or a name with some of them replaced)")
    model.add_argument(
        "-m", "--model", help="preset (`kvtop models` lists them), Hugging Face directory or config.json"
    )
    model.add_argument("--layers", type=count, metavar="N")
    model.add_argument("--kv-heads", type=count, metavar="N")
    model.add_argument("--head-dim", type=count, metavar="N")
    load = parser.add_argument_group("what is stored")
    load.add_argument("--batch", type=count, default=1, metavar="N", help="sequences (default 1)")
    load.add_argument(
        "--seq-len", type=count, default=4096, metavar="N", help="stored tokens a sequence (default 4096)"
    )
    load.add_argument(
        "--dtype",
        type=one_of("dtype", tuple(DTYPE_BYTES)),
        default="fp16",
        help=f"of the cache: {', '.join(DTYPE_BYTES)} (default fp16)",
    )
    load.add_argument("--block-size", type=count, default=16, metavar="N", help="tokens a block (default 16)")
    gpu = parser.add_argument_group("what fits a GPU")
    where = gpu.add_mutually_exclusive_group()
    where.add_argument("--gpu", metavar="NAME", help="e.g. h100-80gb, a100-40gb, l4")
    where.add_argument("--gpu-memory", type=size_bytes, metavar="SIZE", help="e.g. 80GiB")
    gpu.add_argument(
        "--utilisation",
        "--utilization",
        type=fraction,
        default=0.9,
        metavar="X",
        help="share for weights and cache (default 0.9)",
    )
    gpu.add_argument(
        "--params", type=count, metavar="N", help="number of parameters, e.g. 70e9, where the model does not say"
    )
    gpu.add_argument(
        "--bytes-per-param",
        type=positive,
        metavar="X",
        help="of the weights (default 2, or as stored in the directory)",
    )
    gpu.add_argument("--max-model-len", type=count, metavar="N", help="what contiguous-max reserves for each request")
    gpu.add_argument("--tp", type=count, default=1, metavar="N", help="tensor-parallel GPUs (default 1)")
    parser.add_argument("--json", action="store_true", help="the same as JSON, all bytes exact")


def run(args: argparse.Namespace) -> int:
    """Print the answer; 1 when a GPU was given and not even one request fits it."""
    model = None if args.model is None else find_shape(args.model)
    shape = _shape(args, model)
    room = _room(args, model, shape)
    print(json.dumps(as_json(args, model, shape, room), indent=2) if args.json else as_text(args, model, shape, room))
    return 1 if room is not None and room.max_requests_paged == 0 else 0


def _shape(args: argparse.Namespace, model: ModelShape | None) -> CacheShape:
    wanted = {"--layers": args.layers, "--kv-heads": args.kv_heads, "--head-dim": args.head_dim}
    if model is None:
        missing = [flag for flag, value in wanted.items() if value is None]
        if missing:
            raise UsageError(
                f"calc needs --model, or all of --layers, --kv-heads and --head-dim (missing: {', '.join(missing)})"
            )
        return CacheShape(args.layers, args.kv_heads, args.head_dim, args.dtype)
    changed_layers = args.layers is not None and args.layers != model.num_layers
    if changed_layers and model.sliding_window is not None:
        raise UsageError(
            f"--layers cannot replace the {model.num_layers} of {model.name}: {model.num_sliding_layers} are windowed"
        )
    return CacheShape(
        args.layers or model.num_layers,
        args.kv_heads or model.num_kv_heads,
        args.head_dim or model.head_dim,
        args.dtype,
        model.sliding_window,
        model.num_sliding_layers,
    )


def _room(args: argparse.Namespace, model: ModelShape | None, shape: CacheShape) -> Capacity | None:
    if args.gpu is None and args.gpu_memory is None:
        return None
    from kvtop.presets import gpu_preset

    memory = args.gpu_memory if args.gpu is None else gpu_preset(args.gpu).memory_bytes
    reserved = args.max_model_len or (model.max_model_len if model else None)
    if args.max_model_len is not None and args.max_model_len < args.seq_len:
        raise UsageError(f"--max-model-len {args.max_model_len} cannot hold --seq-len {args.seq_len}")
    return capacity(
        shape.per_gpu(args.tp),
        gpu_memory_bytes=memory,
        weight_bytes=-(-_weight_bytes(args, model) // args.tp),
        seq_len=args.seq_len,
        block_size=args.block_size,
        utilisation=args.utilisation,
        max_model_len=reserved if reserved is not None and reserved >= args.seq_len else None,
    )


def _weight_bytes(args: argparse.Namespace, model: ModelShape | None) -> int:
    if args.params is None and args.bytes_per_param is None and model is not None and model.weight_bytes is not None:
        return model.weight_bytes
    num_params = args.params or (model.num_params if model else None)
    if num_params is None:
        where = f"{model.source} has no safetensors beside it" if model else "no model is named"
        raise UsageError(f"the weights' size is unknown ({where}): give --params, e.g. --params 8e9")
    return int(num_params * (args.bytes_per_param or 2))
