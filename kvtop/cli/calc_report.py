"""The answer of ``kvtop calc`` as JSON with stable keys, and as text that states the formula."""

from __future__ import annotations

import argparse
from typing import Any

from kvtop.calc import DTYPE_BYTES, QUANTISED, CacheShape, Capacity, blocks_for
from kvtop.cli.text import format_bytes, table
from kvtop.model_shape import ModelShape
from kvtop.workloads.words import counted


def as_json(
    args: argparse.Namespace, model: ModelShape | None, shape: CacheShape, room: Capacity | None
) -> dict[str, Any]:
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
        "scales_counted": shape.dtype in QUANTISED,
        "scale_bytes_per_token": shape.scale_bytes_per_token,
        "batch": args.batch,
        "seq_len": args.seq_len,
        "num_tokens": args.batch * args.seq_len,
        "kv_bytes_per_token": shape.bytes_per_token,
        "kv_bytes_per_request": shape.request_bytes(args.seq_len),
        "kv_bytes": shape.request_bytes(args.batch * args.seq_len),
        "kv_bytes_without_scales": _without_scales(shape, args.batch * args.seq_len),
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


def _without_scales(shape: CacheShape, num_tokens: int) -> int:
    return (shape.bytes_per_token - shape.scale_bytes_per_token) * num_tokens


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
    tokens = args.batch * args.seq_len
    total = shape.request_bytes(tokens)
    lines = [f"{model.name} ({model.source})"] if model else []
    lines += [
        *_formula(shape, tokens),
        f"         = {total:,} bytes = {format_bytes(total)}   ({args.batch:,} x {counted(args.seq_len, 'token')})",
        "",
        table(_size_rows(args, shape)),
        *_notes(args, model, shape),
    ]
    if room is not None:
        lines += ["", table(_room_rows(args, room)), "", verdict(args, room)]
    return "\n".join(lines)


def _formula(shape: CacheShape, num_tokens: int) -> list[str]:
    """In words, and with the numbers."""
    heads, width = f"2 x {shape.num_layers} x {shape.num_kv_heads}", DTYPE_BYTES[shape.dtype]
    if shape.dtype not in QUANTISED:
        return [
            "KV bytes = 2 x layers x kv_heads x head_dim x bytes x tokens",
            f"         = {heads} x {shape.head_dim} x {width} x {num_tokens:,}",
        ]
    return [
        "KV bytes = 2 x layers x kv_heads x (head_dim x bytes + scale) x tokens",
        f"         = {heads} x ({shape.head_dim} x {width} + {shape.scale_bytes}) x {num_tokens:,}",
    ]


def _size_rows(args: argparse.Namespace, shape: CacheShape) -> list[list[str]]:
    blocks = args.batch * blocks_for(args.seq_len, args.block_size)
    block_bytes = shape.request_bytes(args.block_size)
    rows = [
        _row("per token", shape.bytes_per_token),
        _row(f"per block of {counted(args.block_size, 'token')}", block_bytes),
        _row("per request", shape.request_bytes(args.seq_len)),
        _row(f"in {counted(blocks, 'block')}", blocks * block_bytes),
    ]
    windowed = shape.windowed_request_bytes(args.seq_len)
    if windowed is not None:
        rows.append(_row("if windowed layers drop old tokens", args.batch * windowed))
    if args.tp > 1:
        rows.append(_row(f"per GPU of {args.tp}", shape.per_gpu(args.tp).request_bytes(args.batch * args.seq_len)))
    return rows


def _row(label: str, num_bytes: int) -> list[str]:
    return [f"  {label}", counted(num_bytes, "byte"), format_bytes(num_bytes)]


def _notes(args: argparse.Namespace, model: ModelShape | None, shape: CacheShape) -> list[str]:
    notes = []
    if model is not None and model.max_model_len is not None and args.seq_len > model.max_model_len:
        notes.append(
            f"  note: {args.seq_len:,} tokens are more than {model.name} was made for ({model.max_model_len:,})"
        )
    if shape.dtype in QUANTISED:
        bare = _without_scales(shape, args.batch * args.seq_len)
        notes.append(
            f"  {shape.dtype}: 1 byte an element, and for each token and KV head a scale of "
            f"{counted(shape.scale_bytes, 'byte')}; without scales {bare:,} bytes = {format_bytes(bare)}"
        )
    if shape.sliding_window is not None:
        notes.append(
            f"  {shape.num_sliding_layers} of {shape.num_layers} layers look back "
            f"{counted(shape.sliding_window, 'token')}; all other figures keep every token in every "
            "layer, as kvtop's pool does"
        )
    return notes


def _room_rows(args: argparse.Namespace, room: Capacity) -> list[list[str]]:
    name = args.gpu.lower() if args.gpu else "GPU"
    rows = [
        _row(f"{name} memory", room.gpu_memory_bytes),
        _row(f"usable at utilisation {room.utilisation:g}", room.usable_bytes),
        _row("weights" if args.tp == 1 else f"weights (1/{args.tp})", room.weight_bytes),
        _row("left for KV blocks", room.kv_budget_bytes),
        ["  blocks", f"{room.num_blocks:,}", counted(room.num_tokens, "token")],
        [f"  requests of {counted(room.seq_len, 'token')}, paged", f"{room.max_requests_paged:,}"],
    ]
    if room.max_requests_contiguous is not None:
        rows.append(
            [f"  requests, each reserving {room.max_model_len:,} (contiguous-max)", f"{room.max_requests_contiguous:,}"]
        )
    return rows


def verdict(args: argparse.Namespace, room: Capacity) -> str:
    """One line: does the batch fit, and if not, what is missing. Activations are not part of the sum."""
    if room.kv_budget_bytes <= 0:
        return (
            f"does not fit: the weights take {format_bytes(room.weight_bytes)} of {format_bytes(room.usable_bytes)}, "
            f"{format_bytes(-room.kv_budget_bytes)} too much before the first block"
        )
    if room.max_requests_paged == 0:
        return (
            f"does not fit: one request of {counted(room.seq_len, 'token')} needs {format_bytes(room.missing_bytes)} "
            f"more; the longest that fits is {counted(room.num_tokens, 'token')}"
        )
    fits = (
        "fits"
        if room.max_requests_paged >= args.batch
        else f"only {room.max_requests_paged:,} of {args.batch:,} fit at once"
    )
    requests = f"a batch of {args.batch:,} x {counted(room.seq_len, 'token')}"
    return f"{requests}: {fits} (activations are not counted; they use what utilisation {room.utilisation:g} leaves)"
