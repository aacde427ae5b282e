"""All layers of a model as one list of jobs for the CPU kernels: between two kernels of a step there is no Python.

A step of one token makes some three hundred calls of kernels and as many small torch operations: a third of its time.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kvtop.engine.executors.cpu_attention import InPlaceAttention
from kvtop.engine.executors.cpu_modules import FusedLayer
from kvtop.engine.executors.torch_batch import PagedBatch
from kvtop.engine.executors.torch_pool import KVPool
from kvtop.kernels.cpu import ops
from kvtop.kernels.cpu.jobs import Jobs

KERNELS = (
    "add_norm",
    "packed",
    "rotary",
    "scatter",
    "scatter",
    "attention",
    "packed",
    "add_norm",
    "packed",
    "gate",
    "packed",
)
NORM_IN, QKV, ROTARY, WRITE_K, WRITE_V, ATTEND, OUT, NORM_MLP, GATE_UP, GATE, DOWN = range(len(KERNELS))
ROWS = 2  # the field that says how many rows there are, of every kernel but attention
STRIP = 3  # the field of a product that says how many rows pass the weights together
PER_TASK = 6  # the field of a product that says how much of it is a task: less for more threads
CAPACITY_STEP = 64  # rows that the workspace grows by


class FusedStack(nn.ModuleList):
    """The layers of a model, which run as one: a slice of them is this module itself.

    transformers' models loop over ``self.layers[:n]``; parameters keep their names. Where K and V are not read in place
    (a probe, quantised blocks) the layers are called one by one.
    """

    def __init__(self, layers: Sequence[FusedLayer]) -> None:
        super().__init__(layers)
        self._layers = tuple(layers)
        kinds = {getattr(layer, "attention_type", None) for layer in layers}
        if len(kinds) == 1 and None not in kinds:
            self.attention_type = kinds.pop()  # some models choose a mask by it
        self._kept = _Kept()

    def __getitem__(self, index: Any) -> Any:
        return (self,) if isinstance(index, slice) else super().__getitem__(index)

    def forward(
        self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], *, kv: Any, **_: Any
    ) -> Tensor:
        """As ``FusedLayer.forward``, through all layers."""
        if not isinstance(kv, PagedBatch) or not isinstance(kv.attention, InPlaceAttention):
            for layer in self._layers:
                hidden_states = layer.forward(hidden_states, position_embeddings, kv=kv)
            return hidden_states
        work = self._kept.workspace(self._layers, kv.pool, hidden_states.shape[1])
        return work.run(hidden_states, position_embeddings, kv)


def stack_of(layers: nn.Module) -> FusedStack | None:
    """``layers`` as one, if every one is fused, of one shape, gated by SiLU and without norms per head."""
    if type(layers) is not nn.ModuleList:
        return None
    fused = [layer for layer in layers if isinstance(layer, FusedLayer)]
    shapes = {_shape(layer) for layer in fused}
    return FusedStack(fused) if len(fused) == len(layers) and len(shapes) == 1 and None not in shapes else None


def _shape(layer: FusedLayer) -> tuple[int, ...] | None:
    attention, mlp = layer.self_attn, layer.mlp
    if attention.norms or type(mlp.act_fn) is not nn.SiLU or not ops.fits(mlp.width):
        return None
    return attention.head_dim, *attention.sizes, attention.out_features, mlp.width


class _Kept:
    """The workspace of the last step, made anew for another pool or more rows; a copied model makes its own."""

    def __init__(self) -> None:
        self._workspace: _Workspace | None = None

    def workspace(self, layers: Sequence[FusedLayer], pool: KVPool, rows: int) -> _Workspace:
        found = self._workspace
        if found is None or found.pool() is not pool or found.capacity < rows:
            least = rows if found is None or found.pool() is not pool else max(rows, found.capacity)
            self._workspace = found = _Workspace(layers, pool, -(-least // CAPACITY_STEP) * CAPACITY_STEP)
        return found

    def __deepcopy__(self, memo: dict) -> _Kept:
        return _Kept()


class _Workspace:
    """What passes between the kernels, for up to ``capacity`` rows, and the jobs that point to it."""

    def __init__(self, layers: Sequence[FusedLayer], pool: KVPool, capacity: int) -> None:
        self.pool, self.capacity, self.layers = weakref.ref(pool), capacity, layers
        attention, mlp = layers[0].self_attn, layers[0].mlp
        self.head_dim, (self.q_width, self.kv_width, _) = attention.head_dim, attention.sizes
        self.heads, self.kv_heads = self.q_width // self.head_dim, self.kv_width // self.head_dim
        width = attention.out_features
        self.x, self.y, self.normed = torch.empty(3, capacity, width).unbind()
        self.packed = torch.empty(capacity, sum(attention.sizes))
        self.attended = torch.empty(capacity, self.heads, self.head_dim)
        self.gate, self.up = torch.empty(2, capacity, mlp.width).unbind()
        self.calls = [layer.self_attn.call for layer in layers]
        self.jobs, self._tables = Jobs(len(layers), KERNELS), []
        for group, layer in enumerate(layers):
            self._put(group, layer, pool)
        self._products = {QKV: attention.product, OUT: attention.out, GATE_UP: mlp.product, DOWN: mlp.down}
        self._widths = {NORM_IN: width, NORM_MLP: width, GATE: mlp.width}
        self._widths |= {ROTARY: self.q_width + self.kv_width, WRITE_K: self.kv_width, WRITE_V: self.kv_width}

    def _put(self, group: int, layer: FusedLayer, pool: KVPool) -> None:
        attention, mlp, put = layer.self_attn, layer.mlp, self.jobs.put
        call = attention.call
        heads = self.packed.view(self.capacity, -1, self.head_dim)
        q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads], 1)
        pools = pool.k[call.layer], pool.v[call.layer]
        norms = layer.input_layernorm, layer.post_attention_layernorm
        for kernel, norm in zip((NORM_IN, NORM_MLP), norms, strict=True):
            put(group, kernel, ops.norm_job(self.x, norm.factor, norm.eps, self.normed, self.y))
        products = {
            QKV: (attention.product, self.normed, self.packed.split(attention.sizes, 1)),
            OUT: (attention.out, self.attended.view(self.capacity, -1), (self.y,)),
            GATE_UP: (mlp.product, self.normed, (self.gate, self.up)),
            DOWN: (mlp.down, self.gate, (self.y,)),
        }
        for kernel, (product, x, outs) in products.items():
            fields, table = product.job(x, outs)
            self._tables.append(table)
            put(group, kernel, fields)
        put(group, GATE, ops.gate_job(self.gate, self.up))
        put(group, ROTARY, [*ops.rotary_job(heads[:, : self.heads + self.kv_heads]), 0, 0])
        for kernel, new, where in ((WRITE_K, k, pools[0]), (WRITE_V, v, pools[1])):
            put(group, kernel, [*ops.scatter_job(new), 0, where.data_ptr()])
        scores = (call.scaling, call.window, call.softcap)
        put(group, ATTEND, [0, 0, *ops.attention_job(q.transpose(0, 1), *pools, self.attended, *scores), 0, 0])

    def run(self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], kv: PagedBatch) -> Tensor:
        """``hidden_states`` (1, T, C) after all layers."""
        rows, jobs = hidden_states.shape[1], self.jobs
        for kernel, product in self._products.items():
            jobs.set(kernel, ROWS, rows)
            jobs.set(kernel, STRIP, product.strip(rows))
            jobs.set(kernel, PER_TASK, product.per_task())
            jobs.set_tasks(kernel, product.num_tasks(rows))
        for kernel, width in self._widths.items():
            jobs.set(kernel, ROWS, rows)
            jobs.set_tasks(kernel, ops.num_tasks(rows, width))
        cos, sin = (table[0].contiguous() for table in position_embeddings)
        jobs.set(ROTARY, 7, cos.data_ptr())
        jobs.set(ROTARY, 8, sin.data_ptr())
        scratch = self._set_attention(kv)
        self.x[:rows].copy_(hidden_states[0])
        self.y[:rows].zero_()
        jobs.run()
        del cos, sin, scratch  # the kernels read them until now
        kv.layers_seen += len(self.layers)
        return torch.add(self.x[:rows], self.y[:rows])[None]

    def _set_attention(self, kv: PagedBatch) -> Tensor:
        """Point the jobs of every layer to the slots and the items of its KV group and window; the threads' scratch."""
        attention, jobs = kv.attention, self.jobs
        assert isinstance(attention, InPlaceAttention)
        works = [attention.work(call.layer, self.heads, self.kv_heads, call.window) for call in self.calls]
        slots = np.array([kv.slots(call.layer, self.kv_heads).data_ptr() for call in self.calls])
        longest = max(longest for _, _, longest in works)
        per_thread = ops.attention_scratch(self.heads, self.kv_heads, self.head_dim, self.head_dim, longest)
        scratch = torch.empty(torch.get_num_threads() * per_thread)
        jobs.set(WRITE_K, 7, slots)
        jobs.set(WRITE_V, 7, slots)
        jobs.set(ATTEND, 0, np.array([items.data_ptr() for items, _, _ in works]))
        jobs.set(ATTEND, 1, np.array([tables.data_ptr() for _, tables, _ in works]))
        jobs.set(ATTEND, 16, scratch.data_ptr())
        jobs.set(ATTEND, 17, per_thread)
        jobs.set_tasks(ATTEND, np.array([len(items) * self.kv_heads for items, _, _ in works]))
        return scratch
