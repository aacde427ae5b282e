"""Modules that compute on the CPU what transformers' own do, by kvtop's kernels.

They have copies of the linears' weights, rearranged for the kernel; the originals go with the modules replaced. An
embedding that shares its weight with a linear reads the copy too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kvtop.kernels.cpu import ops


def joined(linears: Sequence[nn.Linear]) -> ops.Packed:
    """Several linears of one input as one product, their weights copied; one without bias adds zeros."""
    shifts = [torch.zeros(m.out_features) if m.bias is None else m.bias.detach() for m in linears]
    return ops.Packed([m.weight.detach() for m in linears], shifts)


class PackedLinear(nn.Module):
    """``nn.Linear`` by itself."""

    def __init__(self, original: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = original.in_features, original.out_features
        self.product = joined([original])

    def forward(self, input: Tensor) -> Tensor:
        rows = _rows(input)
        out = torch.empty(rows.shape[0], self.out_features)
        if rows.shape[0]:  # a chunk whose logits nobody wants keeps no rows
            self.product(rows, (out,))
        return out.view(*input.shape[:-1], self.out_features)


class PackedEmbedding(nn.Module):
    """``nn.Embedding`` over the weight of a ``PackedLinear``, times ``factor`` (1 in most models)."""

    def __init__(self, product: ops.Packed, factor: float) -> None:
        super().__init__()
        self.product, self.factor = product, factor

    def forward(self, input: Tensor) -> Tensor:
        rows = self.product.rows(input)
        return rows if self.factor == 1.0 else rows.mul_(self.factor)


def _rows(x: Tensor) -> Tensor:
    """(rows, depth), the elements of a row side by side."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


class NativeRMSNorm(nn.Module):
    """Root mean square norm over the last dimension, times ``offset`` + weight (0 in most models, 1 in Gemma)."""

    factor: Tensor

    def __init__(self, weight: nn.Parameter, eps: float, offset: float) -> None:
        super().__init__()
        self.weight, self.eps = weight, eps
        self.register_buffer("factor", weight + offset if offset else weight.detach(), persistent=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return ops.rms_norm(hidden_states, self.factor, self.eps)


class FusedMLP(nn.Module):
    """down(act(gate(x)) * up(x)), with gate and up in one call."""

    def __init__(self, linears: Sequence[nn.Linear], act: Any) -> None:
        super().__init__()
        self.product, self.down = joined(linears[:2]), joined(linears[2:])
        self.width, self.out_features = linears[0].out_features, linears[2].out_features
        # By name: torch's and transformers' own. The whole module is tried before it is used.
        self.act_fn = nn.SiLU(inplace=True) if type(act).__name__ in ("SiLU", "SiLUActivation") else act

    def forward(self, x: Tensor) -> Tensor:
        rows = _rows(x)
        gate, up = torch.empty(2, rows.shape[0], self.width).unbind()
        self.product(rows, (gate, up))
        out = torch.empty(rows.shape[0], self.out_features)
        self.down(self.act_fn(gate).mul_(up), (out,))
        return out.view(x.shape)


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What a layer hands to attention beside q, k and v: the same at every call."""

    layer: int
    scaling: float
    window: int | None
    softcap: float | None


class FusedAttention(nn.Module):
    """q, k and v in one call, norms per head where there are any, rotation in place, kvtop's attention, o."""

    def __init__(
        self, linears: Sequence[nn.Linear], norms: Sequence[nn.Module], head_dim: int, call: AttentionCall
    ) -> None:
        super().__init__()
        self.q_norm, self.k_norm = norms or (None, None)
        self.norms = tuple(norms)
        self.head_dim, self.call = head_dim, call
        self.product, self.out = joined(linears[:3]), joined(linears[3:])
        self.sizes, self.out_features = [linear.out_features for linear in linears[:3]], linears[3].out_features

    def forward(
        self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], *, kv: Any, **_: Any
    ) -> tuple[Tensor, None]:
        """``hidden_states`` (1, T, C); ``position_embeddings``: cos and sin, (1, T, head_dim) each."""
        rows, dim, sizes = hidden_states.shape[1], self.head_dim, self.sizes
        packed = torch.empty(rows, sum(sizes))
        self.product(_rows(hidden_states), packed.split(sizes, 1))
        heads = packed.view(rows, -1, dim)
        num_rotated = (sizes[0] + sizes[1]) // dim
        cos, sin = (table[0].contiguous() for table in position_embeddings)
        q, k, v = (part for part in heads.split([size // dim for size in sizes], 1))
        if not self.norms:
            ops.rotary_(heads[:, :num_rotated], cos, sin)
        else:
            q, k = (norm(part) for norm, part in zip(self.norms, (q, k), strict=True))
            ops.rotary_(q, cos, sin)
            ops.rotary_(k, cos, sin)
        call = self.call
        attended = kv.attend(
            call.layer,
            q.transpose(0, 1),
            k.transpose(0, 1),
            v.transpose(0, 1),
            scaling=call.scaling,
            window=call.window,
            softcap=call.softcap,
        )
        out = torch.empty(rows, self.out_features)
        self.out(_rows(attended.reshape(rows, -1)), (out,))
        return out[None], None


class FusedLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): the parts are called without a module's call machinery.

    A step of one token spends a third of its time there otherwise.
    """

    def __init__(self, norms: Sequence[NativeRMSNorm], attention: FusedAttention, mlp: FusedMLP) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = norms
        self.self_attn, self.mlp = attention, mlp

    def forward(
        self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], *, kv: Any, **_: Any
    ) -> Tensor:
        normed = self.input_layernorm.forward(hidden_states)
        x = self.self_attn.forward(normed, position_embeddings, kv=kv)[0].add_(hidden_states)
        return self.mlp.forward(self.post_attention_layernorm.forward(x)).add_(x)
