"""How much memory is left for blocks: what one full step needs besides the weights is measured, not guessed.

    kv = utilisation * total - weights - peak activation - captured steps

On CUDA the figures are the allocator's; on a CPU they are this process's resident memory, and ``total`` is what the
machine has available now plus what the process holds already.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from kvtop.engine.config import EngineConfig
from kvtop.engine.errors import ConfigError
from kvtop.engine.executors.torch_executor import TorchExecutor
from kvtop.engine.sequence import Request, Sequence
from kvtop.engine.types import Chunk, Plan, RequestSpec

MIB = 1024**2
WORTH_TELLING = 0.05  # of the total


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """Bytes. ``activation`` is what a step of the largest size took at its peak, the pool and the weights aside.

    ``graphs`` is what captured decode steps take at the most; 0 where none are.
    """

    total: int
    weights: int
    activation: int
    graphs: int = 0
    freed: int = 0  # by which the free memory grew meanwhile: another program gave it back

    @property
    def notice(self) -> str:
        """One line where so much was given back that the pool could be larger; "" where not."""
        if self.freed <= self.total * WORTH_TELLING:
            return ""
        return (
            f"free memory grew by {self.freed / MIB:,.0f} MiB while a step was measured: another program gave it back, "
            f"and the KV pool is as small as if it had not"
        )

    def kv_bytes(self, utilisation: float) -> int:
        """What is left for blocks; never negative.

        Raises:
            ConfigError: nothing is left, with the numbers.
        """
        kv = int(utilisation * self.total) - self.weights - self.activation - self.graphs
        if kv <= 0:
            graphs = f", captured steps {self.graphs / MIB:,.0f} MiB" if self.graphs else ""
            raise ConfigError(
                f"no memory is left for KV blocks: {utilisation:g} of {self.total / MIB:,.0f} MiB, less weights "
                f"{self.weights / MIB:,.0f} MiB{graphs} and a step's peak {self.activation / MIB:,.0f} MiB, "
                f"is {kv / MIB:,.0f} MiB"
            )
        return kv


def profile(executor: TorchExecutor, config: EngineConfig) -> MemoryProfile:
    """Run one step of the largest size (``max_batched_tokens`` of one prompt) and see what it takes.

    ``config.num_blocks`` does not matter. Leaves the executor with a pool of one block.
    """
    num_tokens = min(config.max_batched_tokens, (config.max_model_len or config.max_batched_tokens + 1) - 1)
    num_blocks = -(-num_tokens // config.block_size)
    executor.allocate(num_blocks, config.block_size, 0, config.kv_groups)
    for tensor in executor.pool.tensors:
        tensor.zero_()  # memory that was never written is not resident yet, and would count as activation
    chunk = _largest_chunk(num_tokens, num_blocks, len(config.kv_groups))
    weights = executor.info.weight_bytes
    pool = num_blocks * executor.kv_bytes_per_block(config.block_size, config.kv_groups)
    meter = _CudaMeter() if executor.device.type == "cuda" else _CpuMeter()
    available = meter.available()
    meter.start()
    # The very first step of this size: the C library keeps what it frees, so a second one would show no growth.
    executor.execute(Plan(0, [chunk]))
    activation = max(0, meter.peak())
    freed = max(0, meter.available() - available)
    executor.allocate(1, config.block_size, 0, config.kv_groups, config.max_num_seqs)  # measures captured steps too
    return MemoryProfile(available + weights + pool, weights, activation, executor.graph_bytes, freed)


def _largest_chunk(num_tokens: int, num_blocks: int, num_groups: int) -> Chunk:
    spec = RequestSpec(prompt=[0] * num_tokens)
    request = Request("profile", spec, 0, 0, 0)
    tables = [list(range(num_blocks)) for _ in range(num_groups)]
    seq = Sequence("profile", 0, request, (0, 0, 0, 0), [0] * num_tokens, num_tokens, block_tables=tables)
    return Chunk("profile", 0, num_tokens, 1, seq)


class _CudaMeter:
    def available(self) -> int:
        return torch.cuda.mem_get_info()[0]

    def start(self) -> None:
        torch.cuda.reset_peak_memory_stats()
        self._before = torch.cuda.memory_allocated()

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated() - self._before


class _CpuMeter:
    """Linux can reset a process's peak resident size; elsewhere the growth that remains is all that can be seen."""

    _status, _clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")

    def available(self) -> int:
        return psutil.virtual_memory().available

    def start(self) -> None:
        _give_back_freed()
        try:
            self._clear.write_text("5")
        except OSError:
            self._clear = Path()
        self._before = psutil.Process().memory_info().rss

    def peak(self) -> int:
        if self._clear == Path() or not self._status.exists():
            return psutil.Process().memory_info().rss - self._before
        line = next(x for x in self._status.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 - self._before


def _give_back_freed() -> None:
    """Memory that the C library keeps for reuse would hide what a step takes; only glibc can be asked for it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
