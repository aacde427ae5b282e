"""The KV memory: one K and one V tensor a layer, each (num_blocks, kv_heads, block_size, head_dim)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kvtop.engine.errors import ConfigError
from kvtop.kernels.paged_torch import copy_blocks, swap_blocks

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class LayerShape:
    """KV heads and head sizes of one layer, as its attention really gets them (K and V may differ)."""

    layer: int
    kv_heads: int
    k_dim: int
    v_dim: int

    @property
    def elements_per_token(self) -> int:
        return self.kv_heads * (self.k_dim + self.v_dim)


class KVPool:
    """Blocks of all layers, zeroed (so that the memory is really there from the start)."""

    def __init__(
        self, layers: Sequence[LayerShape], num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_blocks, self.block_size, self.dtype, self.device = num_blocks, block_size, dtype, device

        def pool(heads: int, dim: int) -> Tensor:
            return torch.zeros(num_blocks, heads, block_size, dim, dtype=dtype, device=device)

        self.k = {layer.layer: pool(layer.kv_heads, layer.k_dim) for layer in layers}
        self.v = {layer.layer: pool(layer.kv_heads, layer.v_dim) for layer in layers}

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, destination), with the effect of doing them one after the other."""
        for sources, destinations in independent_runs(copies):
            src = torch.tensor(sources, device=self.device)
            dst = torch.tensor(destinations, device=self.device)
            for pool in (*self.k.values(), *self.v.values()):
                copy_blocks(pool, src, dst)

    def swap_to(self, other: KVPool, moves: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (block here, block there) into another pool of the same layers: device to host, or back."""
        if not moves:
            return
        here, there = (torch.tensor(ids) for ids in zip(*moves, strict=True))
        for layer in self.k:
            swap_blocks(self.k[layer], here, other.k[layer], there)
            swap_blocks(self.v[layer], here, other.v[layer], there)


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
    """Exact bytes of one block: K and V of all layers."""
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
