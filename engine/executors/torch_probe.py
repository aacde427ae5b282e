"""Warm-up: learn each layer's KV shape from a real forward pass; see that paged attention is used, and right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kvtop.engine.errors import ModelError
from kvtop.engine.executors import torch_attention
from kvtop.engine.executors.quiet import one_line, quiet
from kvtop.engine.executors.torch_batch import PagedBatch, Row
from kvtop.engine.executors.torch_pool import KVPool, LayerShape

CHECK_LENGTHS = (7, 4)  # two packed sequences: a model that mixes them gives itself away
CHECK_BLOCK_SIZE = 4
# Relative L2 error of the logits. A structural fault gives about 1; rounding 1e-6 (fp32) or a few 1e-2 (half).
CHECK_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.2}


class ShapeProbe:
    """Stands in for a ``PagedBatch`` on one token, and notes the shapes attention gets."""

    def __init__(self) -> None:
        self.layers: list[LayerShape] = []

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scaling: float, window: int | None, softcap: float | None
    ) -> Tensor:
        """One token attends to itself alone: its value, repeated for the heads that share it."""
        del scaling, softcap
        self.layers.append(LayerShape(layer, k.shape[0], k.shape[2], v.shape[2], window))
        return v.repeat_interleave(q.shape[0] // v.shape[0], 0).transpose(0, 1).contiguous()


def forward(model: Any, batch: PagedBatch | ShapeProbe, input_ids: Tensor, positions: Tensor, keep: Tensor) -> Tensor:
    """Logits (len(keep), V) of the pack rows ``keep``; with none, only K and V are written."""
    out = model(input_ids=input_ids, position_ids=positions, use_cache=False, logits_to_keep=keep, kv=batch)
    return out.logits[0]


def probe_layers(model: Any, name: str) -> list[LayerShape]:
    """KV shape of every layer, from one token.

    Raises:
        ModelError: attention did not run exactly once a layer (a model that ignores the interface only warns).
    """
    probe = ShapeProbe()
    device = model.device
    one = torch.zeros(1, 1, dtype=torch.long, device=device)
    try:
        with torch.inference_mode(), quiet():
            forward(model, probe, one, one, torch.zeros(1, dtype=torch.long, device=device))
    except ModelError as error:
        raise ModelError(f"{name}: {error}") from error
    except Exception as error:  # a model of any code may fail in any way
        raise ModelError(f"{name}: cannot be run with paged attention: {one_line(error)}") from error
    expected = model.config.get_text_config().num_hidden_layers
    ran = len({layer.layer for layer in probe.layers})
    if ran != expected or len(probe.layers) != expected:
        raise ModelError(
            f"{name}: attention ran through kvtop in {ran} of {expected} layers "
            f"({len(probe.layers)} calls); only models that keep all their memory in a KV cache can be served"
        )
    return probe.layers


def check_prompts(vocab_size: int) -> list[list[int]]:
    """What ``own_logits`` and ``check_against_own`` run on."""
    stream = torch.Generator().manual_seed(0)
    return [torch.randint(vocab_size, (n,), generator=stream).tolist() for n in CHECK_LENGTHS]


def check_against_own(
    model: Any,
    layers: Sequence[LayerShape],
    vocab_size: int,
    own: Sequence[Tensor],
    name: str,
    attention: str = "auto",
) -> None:
    """Two packed sequences over a poisoned, shuffled pool must give ``own``, the model's logits as it came.

    Raises:
        ModelError: they differ: this model does something with positions or masks that paging does not carry over.
    """
    prompts = check_prompts(vocab_size)
    pool = KVPool(layers, 4, CHECK_BLOCK_SIZE, model.dtype, model.device, attention=attention)
    for tensor in (*pool.k.values(), *pool.v.values()):
        tensor.fill_(float("nan"))
    tables, paged = [[2, 0], [3]], []
    with torch.inference_mode(), quiet():
        for begin, end in ((0, 3), (3, None)):  # two chunks: the second reads the first one's blocks
            rows = [Row(i, p[begin:end], begin, tables[i]) for i, p in enumerate(prompts)]
            batch = PagedBatch(pool, rows)
            keep, order = batch.last_rows({0, 1})
            logits = forward(model, batch, batch.input_ids, batch.position_ids, keep)
            paged = [logits[order.index(i)] for i in range(len(prompts))]
    for ours, theirs in zip(paged, own, strict=True):
        error = (ours.float() - theirs.float()).norm() / theirs.float().norm()
        if not error <= CHECK_TOLERANCE[model.dtype]:
            raise ModelError(
                f"{name}: paged attention does not reproduce this model (logits differ by {error:.1%}); not supported"
            )


def own_logits(model: Any, vocab_size: int) -> list[Tensor]:
    """Last logits of every prompt of ``check_prompts``, alone, with the model's eager attention."""
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode(), quiet():
            return [
                model(input_ids=torch.tensor([prompt], device=model.device), use_cache=False).logits[0, -1]
                for prompt in check_prompts(vocab_size)
            ]
    finally:
        model.set_attn_implementation(torch_attention.NAME)
