"""``kvtop calc``: the arguments, and the answer as text or JSON. The sums are in ``kvtop.calc``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from kvtop.calc import DTYPE_BYTES, QUANTISED, CacheShape, Capacity, blocks_for, capacity
from kvtop.cli.text import format_bytes, table
from kvtop.cli.values import count, fraction, one_of, positive, size_bytes
from kvtop.engine.errors import UsageError
from kvtop.model_shape import ModelShape, read_model_dir

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
    model.add_argument("-m", "--model", help="preset (`kvtop models` lists them), Hugging Face directory or config.json")
    model.add_argument("--layers", type=count, metavar="N")
    model.add_argument("--kv-heads", type=count, metavar="N")
    model.add_argument("--head-dim", type=count, metavar="N")
    load = parser.add_argument_group("what is stored")
    load.add_argument("--batch", type=count, default=1, metavar="N", help="sequences (default 1)")
    load.add_argument("--seq-len", type=count, default=4096, metavar="N", help="stored tokens a sequence (default 4096)")
    load.add_argument(
        "--dtype", type=one_of("dtype", tuple(DTYPE_BYTES)), default="fp16", help=f"of the cache: {', '.join(DTYPE_BYTES)} (default fp16)"
    )
    load.add_argument("--block-size", type=count, default=16, metavar="N", help="tokens a block (default 16)")
    gpu = parser.add_argument_group("what fits a GPU")
    where = gpu.add_mutually_exclusive_group()
    where.add_argument("--gpu", metavar="NAME", help="e.g. h100-80gb, a100-40gb, l4")
    where.add_argument("--gpu-memory", type=size_bytes, metavar="SIZE", help="e.g. 80GiB")
    gpu.add_argument("--utilisation", "--utilization", type=fraction, default=0.9, metavar="X", help="share for weights and cache (default 0.9)")
    gpu.add_argument("--params", type=count, metavar="N", help="number of parameters, e.g. 70e9, where the model does not say")
    gpu.add_argument("--bytes-per-param", type=positive, metavar="X", help="of the weights (default 2, or as stored in the directory)")
    gpu.add_argument("--max-model-len", type=count, metavar="N", help="what contiguous-max reserves for each request")
    gpu.add_argument("--tp", type=count, default=1, metavar="N", help="tensor-parallel GPUs (default 1)")
    parser.add_argument("--json", action="store_true", help="the same as JSON, all bytes exact")


def run(args: argparse.Namespace) -> int:
    """Print the answer; 1 when a GPU was given and not even one request fits it."""
    model = _model(args)
    shape = _shape(args, model)
    room = _room(args, model, shape)
    print(json.dumps(as_json(args, model, shape, room), indent=2) if args.json else as_text(args, model, shape, room))
    return 1 if room is not None and room.max_requests_paged == 0 else 0


def _model(args: argparse.Namespace) -> ModelShape | None:
    if args.model is None:
        return None
    path = Path(args.model)
    if path.exists():
        return read_model_dir(path)
    from kvtop.presets import model_preset

    if "/" in args.model:
        raise UsageError(f"{args.model}: no such directory or file (presets have names such as llama-3-8b)")
    preset = model_preset(args.model)
    return ModelShape(
        name=args.model.lower(),
        source=preset.source,
        num_layers=preset.num_layers,
        num_kv_heads=preset.num_kv_heads,
        head_dim=preset.head_dim,
        num_params=preset.num_params,
        max_model_len=preset.max_model_len,
        sliding_window=preset.sliding_window,
        num_sliding_layers=preset.num_sliding_layers,
    )


def _shape(args: argparse.Namespace, model: ModelShape | None) -> CacheShape:
    wanted = {"--layers": args.layers, "--kv-heads": args.kv_heads, "--head-dim": args.head_dim}
    if model is None:
        missing = [flag for flag, value in wanted.items() if value is None]
        if missing:
            raise UsageError(f"calc needs --model, or all of --layers, --kv-heads and --head-dim (missing: {', '.join(missing)})")
        return CacheShape(args.layers, args.kv_heads, args.head_dim, args.dtype)
    changed_layers = args.layers is not None and args.layers != model.num_layers
    if changed_layers and model.sliding_window is not None:
        raise UsageError(f"--layers cannot replace the {model.num_layers} layers of {model.name}: {model.num_sliding_layers} of them are windowed")
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


def as_json(args: argparse.Namespace, model: ModelShape | None, shape: CacheShape, room: Capacity | None) -> dict[str, Any]:
    """The answer with stable keys; every count and byte an exact integer, null where it does not apply."""
    blocks = args.batch * blocks_for(args.seq_len, args.block_size)
    windowed = shape.windowed_request_bytes(args.seq_len)
    return {
        "model": model.name if model else None,
        "source": model.source if model else None,
        "num_layers": shape.num_layers,
        "num_kv_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "dtype": shape.dtype,
        "bytes_per_element": DTYPE_BYTES[shape.dtype],
        "scales_counted": False,
        "batch": args.batch,
        "seq_len": args.seq_len,
        "num_tokens": args.batch * args.seq_len,
        "kv_bytes_per_token": shape.bytes_per_token,
        "kv_bytes_per_request": shape.request_bytes(args.seq_len),
        "kv_bytes": shape.request_bytes(args.batch * args.seq_len),
        "block_size": args.block_size,
        "kv_bytes_per_block": shape.request_bytes(args.block_size),
        "num_blocks": blocks,
        "kv_bytes_in_blocks": blocks * shape.request_bytes(args.block_size),
        "sliding_window": shape.sliding_window,
        "num_sliding_layers": shape.num_sliding_layers,
        "kv_bytes_windowed": None if windowed is None else args.batch * windowed,
        "tensor_parallel": args.tp,
        "kv_bytes_per_gpu": shape.per_gpu(args.tp).request_bytes(args.batch * args.seq_len),
        "capacity": None if room is None else _capacity_json(args, room),
    }


def _capacity_json(args: argparse.Namespace, room: Capacity) -> dict[str, Any]:
    return {
        "gpu": args.gpu.lower() if args.gpu else None,
        "gpu_memory_bytes": room.gpu_memory_bytes,
        "utilisation": room.utilisation,
        "usable_bytes": room.usable_bytes,
        "weight_bytes": room.weight_bytes,
        "kv_budget_bytes": room.kv_budget_bytes,
        "kv_bytes_per_block": room.bytes_per_block,
        "num_blocks": room.num_blocks,
        "num_tokens": room.num_tokens,
        "max_requests_paged": room.max_requests_paged,
        "max_model_len": room.max_model_len,
        "max_requests_contiguous_max": room.max_requests_contiguous,
        "batch_fits": room.max_requests_paged >= args.batch,
        "message": verdict(args, room),
    }


def as_text(args: argparse.Namespace, model: ModelShape | None, shape: CacheShape, room: Capacity | None) -> str:
    """The answer for a reader: the formula with its numbers, then sizes, then what fits."""
    width = DTYPE_BYTES[shape.dtype]
    tokens = args.batch * args.seq_len
    total = shape.request_bytes(tokens)
    lines = [f"{model.name} ({model.source})"] if model else []
    lines += [
        "KV bytes = 2 x layers x kv_heads x head_dim x bytes x tokens",
        f"         = 2 x {shape.num_layers} x {shape.num_kv_heads} x {shape.head_dim} x {width} x {tokens:,}",
        f"         = {total:,} bytes = {format_bytes(total)}   ({args.batch:,} x {args.seq_len:,} tokens, {shape.dtype})",
        "",
        table(_size_rows(args, shape)),
        *_notes(args, model, shape),
    ]
    if room is not None:
        lines += ["", table(_room_rows(args, room)), "", verdict(args, room)]
    return "\n".join(lines)


def _size_rows(args: argparse.Namespace, shape: CacheShape) -> list[list[str]]:
    blocks = args.batch * blocks_for(args.seq_len, args.block_size)
    block_bytes = shape.request_bytes(args.block_size)
    rows = [
        _row("per token", shape.bytes_per_token),
        _row(f"per block of {args.block_size} tokens", block_bytes),
        _row("per request", shape.request_bytes(args.seq_len)),
        _row(f"in {blocks:,} blocks", blocks * block_bytes),
    ]
    windowed = shape.windowed_request_bytes(args.seq_len)
    if windowed is not None:
        rows.append(_row("if windowed layers drop old tokens", args.batch * windowed))
    if args.tp > 1:
        rows.append(_row(f"per GPU of {args.tp}", shape.per_gpu(args.tp).request_bytes(args.batch * args.seq_len)))
    return rows


def _row(label: str, num_bytes: int) -> list[str]:
    return [f"  {label}", f"{num_bytes:,} bytes", format_bytes(num_bytes)]


def _notes(args: argparse.Namespace, model: ModelShape | None, shape: CacheShape) -> list[str]:
    notes = []
    if model is not None and model.max_model_len is not None and args.seq_len > model.max_model_len:
        notes.append(f"  note: {args.seq_len:,} tokens are more than {model.name} was made for ({model.max_model_len:,})")
    if shape.dtype in QUANTISED:
        notes.append(f"  {shape.dtype}: 1 byte an element; the scales of a quantised cache are not counted")
    if shape.sliding_window is not None:
        notes.append(
            f"  {shape.num_sliding_layers} of {shape.num_layers} layers look back {shape.sliding_window:,} tokens; "
            "all other figures keep every token in every layer, as kvtop's pool does"
        )
    return notes


def _room_rows(args: argparse.Namespace, room: Capacity) -> list[list[str]]:
    name = args.gpu.lower() if args.gpu else "GPU"
    rows = [
        _row(f"{name} memory", room.gpu_memory_bytes),
        _row(f"usable at utilisation {room.utilisation:g}", room.usable_bytes),
        _row("weights" if args.tp == 1 else f"weights (1/{args.tp})", room.weight_bytes),
        _row("left for KV blocks", room.kv_budget_bytes),
        ["  blocks", f"{room.num_blocks:,}", f"{room.num_tokens:,} tokens"],
        [f"  requests of {room.seq_len:,} tokens, paged", f"{room.max_requests_paged:,}"],
    ]
    if room.max_requests_contiguous is not None:
        rows.append([f"  requests, each reserving {room.max_model_len:,} (contiguous-max)", f"{room.max_requests_contiguous:,}"])
    return rows


def verdict(args: argparse.Namespace, room: Capacity) -> str:
    """One line: does the batch fit, and if not, what is missing. Activations are not part of the sum."""
    if room.kv_budget_bytes <= 0:
        return (
            f"does not fit: the weights take {format_bytes(room.weight_bytes)} of {format_bytes(room.usable_bytes)} usable, "
            f"{format_bytes(-room.kv_budget_bytes)} too much before the first block"
        )
    if room.max_requests_paged == 0:
        return (
            f"does not fit: one request of {room.seq_len:,} tokens needs {format_bytes(room.missing_bytes)} more; "
            f"the longest that fits is {room.num_tokens:,} tokens"
        )
    fits = "fits" if room.max_requests_paged >= args.batch else f"only {room.max_requests_paged:,} of {args.batch:,} fit at once"
    requests = f"a batch of {args.batch:,} x {room.seq_len:,} tokens"
    return f"{requests}: {fits} (activations are not counted; they use what utilisation {room.utilisation:g} leaves)"
