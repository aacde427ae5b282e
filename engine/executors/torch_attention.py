"""kvtop's attention as transformers sees it: one function, registered under one name, with no state of its own."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from kvtop.engine.errors import ModelError

NAME = "kvtop_paged"

# Keywords that change what attention computes and that paged attention does not honour: never ignored in silence.
UNSUPPORTED = ("s_aux", "position_bias", "head_mask", "sinks")


class Attend(Protocol):
    """What travels as the keyword ``kv``: a ``PagedBatch``, or the probe."""

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scaling: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor: ...


def register() -> None:
    """Make the function known to transformers; no mask is registered, so none is built."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, paged_attention_forward)


def paged_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    kv: Attend | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **other: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer over a packed batch: ``query`` (1, H, T, D) to (1, T, H, Dv).

    Raises:
        ModelError: the model does not pass the block tables on, or wants something that is not supported.
    """
    if kv is None:
        raise ModelError(f"{type(module).__name__} does not hand keyword arguments on to attention")
    for name in UNSUPPORTED:
        if other.get(name) is not None:
            raise ModelError(f"{type(module).__name__} passes {name!r} to attention, which kvtop does not support")
    if not getattr(module, "is_causal", True) or other.get("is_causal") is False:
        raise ModelError(f"{type(module).__name__} is not causal: only decoder-only models can be served")
    if attention_mask is not None:
        raise ModelError(f"{type(module).__name__} brings its own attention mask, which kvtop does not support")
    out = kv.attend(
        module.layer_idx,
        query[0],
        key[0],
        value[0],
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
    )
    return out[None], None
