"""Put kvtop's CPU modules in the place of a transformers model's own, wherever they give the same numbers.

A module is recognised by its parts and then *tried*: on random input its replacement must reproduce it, else the model
keeps its own. So a family that computes something else under familiar names stays right, only slower.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from kvtop.engine.executors.cpu_modules import (
    AttentionCall,
    FusedAttention,
    FusedLayer,
    FusedMLP,
    NativeRMSNorm,
    PackedEmbedding,
    PackedLinear,
)
from kvtop.engine.executors.cpu_stack import stack_of
from kvtop.kernels.cpu import jit, ops

TRIED_TOKENS = 3
TOLERANCE = 1e-5  # relative L2 error; another formula gives 0.01 to 1, rounding 1e-7


def rewrite(model: Any, notices: list[str]) -> str:
    """Replace what can be replaced in ``model``, on the CPU in fp32; says what was done, in one line.

    Where the kernels cannot be used ``notices`` says it too: a slow path is told, never taken in silence.
    """
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return "torch"
    if reason := jit.unusable():
        modules = f"torch (CPU kernels are off, a step takes about twice as long: {reason})"
        notices.append(f"model computed by {modules}")
        return modules
    with torch.inference_mode(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        done = Counter({"norm": _replace(model, _norm)})
        done["MLP"] = _replace(model, _mlp)
        done["attention"] = _replace(model, _attention)
        done["layer"] = _replace(model, _layer)
        done["stack"] = _replace(model, stack_of)
        packed: dict[int, ops.Packed] = {}  # by the address of the weight
        done["linear"] = _replace(model, lambda module: _linear(module, packed))
        done["embedding"] = _replace(model, lambda module: _embedding(module, packed))
    left = sum(type(m) is nn.Linear for m in model.modules())
    parts = [f"{count} {name}{'s' * (count > 1)}" for name, count in done.items() if count]
    parts += [f"torch's own linears: {left}"] * bool(left)
    return f"CPU kernels ({', '.join(parts) or 'nothing recognised'})"


def _replace(model: nn.Module, make: Callable[[nn.Module], nn.Module | None]) -> int:
    """``make(module)`` for every module, put in its place where it is not None; the number replaced.

    Nothing else keeps a module that was replaced: its weights go before the next one's are copied.
    """
    count = 0
    for name, child in list(model.named_children()):
        replacement = make(child)
        if replacement is None:
            count += _replace(child, make)
        else:
            setattr(model, name, replacement.eval())
            count += 1
    return count


def _is_linear(module: Any) -> TypeGuard[nn.Linear]:
    """Whether the kernels can compute it."""
    return type(module) is nn.Linear and jit.is_native(*module.parameters())


def _linear(module: nn.Module, packed: dict[int, ops.Packed]) -> nn.Module | None:
    """Those that nothing has taken in; ``packed`` gets what was made of their weights."""
    if not _is_linear(module):
        return None
    replacement = PackedLinear(module)
    packed[module.weight.data_ptr()] = replacement.product
    return replacement


def _embedding(module: nn.Module, packed: dict[int, ops.Packed]) -> nn.Module | None:
    """Those whose weight is a linear's too, multiplied by some factor or as it is: it is not there twice."""
    if not isinstance(module, nn.Embedding) or module.max_norm is not None:
        return None
    product = packed.get(module.weight.data_ptr())
    if product is None:
        return None
    index = torch.randint(module.num_embeddings, (1, TRIED_TOKENS))
    try:
        given, rows = module(index).double(), product.rows(index).double()
        replacement = PackedEmbedding(product, float((given * rows).sum() / rows.square().sum()))
    except Exception:  # it wants other arguments, or gives rows of another shape: not one of those this replaces
        return None
    return replacement if _same(lambda: module(index), lambda: replacement(index)) else None


def _norm(module: nn.Module) -> nn.Module | None:
    """RMS norms that multiply by their weight (Llama) or by one more (Gemma)."""
    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if "RMSNorm" not in type(module).__name__ or not isinstance(weight, nn.Parameter) or not isinstance(eps, float):
        return None
    if weight.ndim != 1 or not ops.fits(weight.shape[0]) or not jit.is_native(weight):
        return None
    x = torch.randn(1, TRIED_TOKENS, weight.shape[0])
    for offset in (0.0, 1.0):
        replacement = NativeRMSNorm(weight, eps, offset)
        if _same(lambda: module(x), lambda r=replacement: r(x)):
            return replacement
    return None


def _linears(module: nn.Module, *names: str) -> list[nn.Linear]:
    """Those attributes of ``module``, if the kernels can compute all of them; else none."""
    found = [part for name in names if _is_linear(part := getattr(module, name, None))]
    return found if len(found) == len(names) else []


def _mlp(module: nn.Module) -> nn.Module | None:
    linears, act = _linears(module, "gate_proj", "up_proj", "down_proj"), getattr(module, "act_fn", None)
    if not linears or not callable(act):
        return None
    x = torch.randn(1, TRIED_TOKENS, linears[0].in_features)
    replacement = FusedMLP(linears, act)
    return replacement if _same(lambda: module(x), lambda: replacement(x)) else None


class _Recorder:
    """Stands in for a ``PagedBatch``: notes what attention is called with; every token sees its own value alone."""

    call: AttentionCall
    seen: tuple[Tensor, Tensor, Tensor]

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scaling: float, window: int | None, softcap: float | None
    ) -> Tensor:
        self.call, self.seen = AttentionCall(layer, scaling, window, softcap), (q, k, v)
        return v.repeat_interleave(q.shape[0] // v.shape[0], 0).transpose(0, 1).contiguous()


def _attention(module: nn.Module) -> nn.Module | None:
    linears = _linears(module, "q_proj", "k_proj", "v_proj", "o_proj")
    head_dim = getattr(module, "head_dim", None)
    if not linears or not isinstance(head_dim, int) or head_dim % 2 or not ops.fits(head_dim // 2):
        return None
    norms = [norm for name in ("q_norm", "k_norm") if isinstance(norm := getattr(module, name, None), NativeRMSNorm)]
    run, recorder = _layer_input(linears[0].in_features, head_dim), _Recorder()
    try:
        expected = run(module, recorder)
        replacement = FusedAttention(linears, norms, head_dim, recorder.call)
    except Exception:  # it wants other arguments: not one of those this replaces
        return None
    return replacement if _same(lambda: expected, lambda: run(replacement, _Recorder())) else None


def _layer(module: nn.Module) -> nn.Module | None:
    norms = [getattr(module, name, None) for name in ("input_layernorm", "post_attention_layernorm")]
    attention, mlp = getattr(module, "self_attn", None), getattr(module, "mlp", None)
    if not isinstance(attention, FusedAttention) or not isinstance(mlp, FusedMLP):
        return None
    natives = [norm for norm in norms if isinstance(norm, NativeRMSNorm)]
    if len(natives) != len(norms):
        return None
    replacement = FusedLayer(natives, attention, mlp)
    if hasattr(module, "attention_type"):  # some models choose a mask by it
        replacement.attention_type = module.attention_type
    run = _layer_input(attention.product.depth, attention.head_dim)
    same = _same(lambda: run(module, _Recorder()), lambda: run(replacement, _Recorder()))
    return replacement if same else None


def _layer_input(width: int, head_dim: int) -> Callable[[nn.Module, _Recorder], tuple[Tensor, ...]]:
    """Runs a module on one random input: what it returns, and what it hands to attention."""
    x, cos, sin = (torch.randn(1, TRIED_TOKENS, n) for n in (width, head_dim, head_dim))
    positions = torch.tensor([[1, 10_000, 100_000]])  # a layer that scales by position must give itself away
    common = {"position_embeddings": (cos, sin), "position_ids": positions, "attention_mask": None}

    def run(module: nn.Module, recorder: _Recorder) -> tuple[Tensor, ...]:
        out = module(hidden_states=x, **common, kv=recorder)
        return (out[0] if isinstance(out, tuple) else out, *recorder.seen)

    return run


def _same(original: Callable[[], Any], ours: Callable[[], Any]) -> bool:
    """Whether both give the same tensors; what cannot be called this way is not the same."""
    try:
        pairs = zip(*(r if isinstance(r, tuple) else (r,) for r in (original(), ours())), strict=True)
        return all(a.shape == b.shape and (a - b).norm() <= TOLERANCE * a.norm() for a, b in pairs)
    except Exception:  # a model's own code may fail in any way
        return False
