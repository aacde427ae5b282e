"""The KV memory: one K and one V tensor a layer, each (num_blocks, kv_heads, block_size, head_dim)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kvtop.engine.errors import ConfigError
from kvtop.engine.windows import Windows
from kvtop.kernels.paged_torch import copy_blocks, swap_blocks

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

    ``k`` and ``v`` are by layer; layers of different KV groups that have the same slot share its tensors.
    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        layout: KVLayout | None = None,
    ) -> None:
        self.num_blocks, self.block_size, self.dtype, self.device = num_blocks, block_size, dtype, device
        self.layout = layout = layout or one_group(layers)

        def pool(heads: int, dim: int) -> Tensor:
            return torch.zeros(num_blocks, heads, block_size, dim, dtype=dtype, device=device)

        self.slots = [(pool(s.kv_heads, s.k_dim), pool(s.kv_heads, s.v_dim)) for s in layout.slots]
        self.k = {layer: self.slots[slot][0] for layer, slot in layout.slot_of.items()}
        self.v = {layer: self.slots[slot][1] for layer, slot in layout.slot_of.items()}

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, destination), with the effect of doing them one after the other."""
        for sources, destinations in independent_runs(copies):
            src = torch.tensor(sources, device=self.device)
            dst = torch.tensor(destinations, device=self.device)
            for k, v in self.slots:
                copy_blocks(k, src, dst)
                copy_blocks(v, src, dst)

    def swap_to(self, other: KVPool, moves: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (block here, block there) into another pool of the same layers: device to host, or back."""
        if not moves:
            return
        here, there = (torch.tensor(ids) for ids in zip(*moves, strict=True))
        for (k, v), (other_k, other_v) in zip(self.slots, other.slots, strict=True):
            swap_blocks(k, here, other_k, there)
            swap_blocks(v, here, other_v, there)


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


def bytes_per_block(layers: Sequence[LayerShape], block_size: int, dtype: torch.dtype) -> int:
    """Exact bytes of one block: K and V of all layers (or slots) in it."""
    return sum(layer.elements_per_token for layer in layers) * block_size * dtype.itemsize


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
