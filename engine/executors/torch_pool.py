"""The KV memory: one K and one V tensor a layer, each (num_blocks, kv_heads, block_size, head_dim).

Quantised, each has a tensor of scales beside it, (num_blocks, kv_heads, block_size), that goes wherever its blocks go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kvtop.engine.errors import ConfigError
from kvtop.engine.executors.attention_paths import choose_attention
from kvtop.engine.executors.indices import Indices, TableRows
from kvtop.engine.windows import Windows
from kvtop.kernels.dispatch import kernel
from kvtop.kernels.paged_torch import Pool
from kvtop.kernels.quant import SCALE_DTYPE, QuantisedPool

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class LayerShape:
    """KV heads, head sizes and window of one layer, as its attention really gets them (K and V may differ)."""

    layer: int
    kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None = None  # tokens it looks back on; None: all

    @property
    def elements_per_token(self) -> int:
        return self.kv_heads * (self.k_dim + self.v_dim)


@dataclass(frozen=True, slots=True)
class KVLayout:
    """KV groups by window, and for each layer its group and its slot in that group's blocks.

    ``slots`` are the shapes a block has room for. A group with fewer layers than slots leaves the others empty.
    """

    windows: Windows
    group_of: dict[int, int]
    slot_of: dict[int, int]
    slots: tuple[LayerShape, ...]


def one_group(layers: Sequence[LayerShape]) -> KVLayout:
    """Every layer has a slot of its own in every block, and keeps every token."""
    numbers = [layer.layer for layer in layers]
    return KVLayout((None,), dict.fromkeys(numbers, 0), {n: i for i, n in enumerate(numbers)}, tuple(layers))


class KVPool:
    """Blocks of all layers, zeroed (so that the memory is really there from the start).

    ``k`` and ``v`` are by layer; layers of different KV groups that have the same slot share its tensors. ``dtype`` is
    the precision attention computes in. With ``kv_dtype`` int8 or fp8 the tensors hold values to be scaled, and only
    ``stores`` says everything; ``tensors`` are all there are, scales included. ``attention`` names what reads and
    writes them (see ``attention_paths``). ``pinned``: host memory that a CUDA device reads and writes itself.

    Raises:
        ConfigError: attention that cannot be had for these blocks.
    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        layout: KVLayout | None = None,
        kv_dtype: str = "auto",
        attention: str = "auto",
        pinned: bool = False,
    ) -> None:
        self.num_blocks, self.block_size, self.dtype, self.device = num_blocks, block_size, dtype, device
        self.layout = layout = layout or one_group(layers)
        self.layers, self.kv_dtype, self.pinned = tuple(layers), kv_dtype, pinned
        self.attention = choose_attention(attention, device, dtype, layout.slots, kv_dtype)
        self.tables = TableRows()
        self.tensors: list[Tensor] = []

        stores = [(self._store(s.kv_heads, s.k_dim), self._store(s.kv_heads, s.v_dim)) for s in layout.slots]
        self.slots = [(_values(k), _values(v)) for k, v in stores]
        self.stores = {layer: stores[slot] for layer, slot in layout.slot_of.items()}
        self.k = {layer: self.slots[slot][0] for layer, slot in layout.slot_of.items()}
        self.v = {layer: self.slots[slot][1] for layer, slot in layout.slot_of.items()}

    @property
    def quantised(self) -> bool:
        return self.kv_dtype != "auto"

    def _store(self, heads: int, dim: int) -> Pool:
        """K or V of one slot."""
        values = self._zeros(heads, self.block_size, dim, dtype=torch.int8 if self.quantised else self.dtype)
        if not self.quantised:
            return values
        return QuantisedPool(values, self._zeros(heads, self.block_size, dtype=SCALE_DTYPE), self.kv_dtype, self.dtype)

    def _zeros(self, *shape: int, dtype: torch.dtype) -> Tensor:
        shape = (self.num_blocks, *shape)
        self.tensors.append(torch.zeros(shape, dtype=dtype, device=self.device, pin_memory=self.pinned))
        return self.tensors[-1]

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, destination), with the effect of doing them one after the other."""
        if not copies:
            return
        copy_blocks = kernel("copy_blocks", self._backend)
        runs = independent_runs(copies)
        ids = self._ids(*(blocks for run in runs for blocks in run))
        for i in range(len(runs)):
            for tensor in self.tensors:
                copy_blocks(tensor, ids[2 * i], ids[2 * i + 1])

    def swap_to(self, other: KVPool, moves: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (block here, block there) into another pool of the same layers: device to host, or back.

        On CUDA nothing waits: the copies are in the order of the device's stream, as is every step that reads the
        blocks afterwards, here or on their way back. The host itself never looks at them.
        """
        if not moves:
            return
        at = self if other.device.type == "cpu" else other  # the pool on the device, if one of them is
        swap_blocks = kernel("swap_blocks", at._backend)
        ids = at._ids(*zip(*moves, strict=True))
        for tensor, elsewhere in zip(self.tensors, other.tensors, strict=True):
            swap_blocks(tensor, ids[0], elsewhere, ids[1])

    @property
    def _backend(self) -> str:
        """Whose operations move whole blocks."""
        return "triton" if self.attention == "triton" else "torch"

    def _ids(self, *lists: Sequence[int]) -> list[Tensor]:
        """Block ids on the device, all of them in one copy."""
        indices = Indices(self.device)
        for i, blocks in enumerate(lists):
            indices.add(i, np.asarray(blocks, dtype=np.int64))
        return [indices[i] for i in range(len(lists))]


def independent_runs(copies: Sequence[tuple[int, int]]) -> list[tuple[list[int], list[int]]]:
    """Cut copies into runs that may each be done at once: no destination is read or written again in its run."""
    runs: list[tuple[list[int], list[int]]] = []
    written: set[int] = set()
    for source, destination in copies:
        if not runs or source in written or destination in written:
            runs.append(([], []))
            written = set()
        runs[-1][0].append(source)
        runs[-1][1].append(destination)
        written.add(destination)
    return runs


def _values(store: Pool) -> Tensor:
    return store.values if isinstance(store, QuantisedPool) else store


def bytes_per_block(layers: Sequence[LayerShape], block_size: int, dtype: torch.dtype, kv_dtype: str = "auto") -> int:
    """Exact bytes of one block: K and V of all layers (or slots) in it, and their scales."""
    num_elements = sum(layer.elements_per_token for layer in layers) * block_size
    if kv_dtype == "auto":
        return num_elements * dtype.itemsize
    num_scales = sum(2 * layer.kv_heads for layer in layers) * block_size
    return num_elements + num_scales * SCALE_DTYPE.itemsize


def free_memory_bytes(device: torch.device) -> int:
    """Memory that can be allocated now on ``device``; on the CPU within this process's memory limit (cgroup)."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    import psutil

    available = psutil.virtual_memory().available
    limit = _cgroup_free_bytes(Path("/sys/fs/cgroup"))
    return available if limit is None else min(available, limit)


def check_fits(need_bytes: int, free_bytes: int, num_blocks: int, block_size: int, device: torch.device) -> None:
    """Refuse a pool that does not fit, with the numbers and what would fit.

    Raises:
        ConfigError: more is needed than is free.
    """
    if need_bytes <= free_bytes:
        return
    fits = free_bytes * num_blocks // need_bytes
    raise ConfigError(
        f"{num_blocks} blocks of {block_size} tokens need {need_bytes / MIB:.1f} MiB of KV memory, but "
        f"{device.type} has {free_bytes / MIB:.1f} MiB free: at most {fits} blocks fit ({fits * block_size} tokens)"
    )


def _cgroup_free_bytes(root: Path) -> int | None:
    """Bytes left below a cgroup v2 limit; cached file pages count as free. None without a limit."""
    try:
        limit = int((root / "memory.max").read_text())
        current = int((root / "memory.current").read_text())
        stat = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return max(0, limit - current + int(stat.get("inactive_file", 0)))
