"""Decode steps as CUDA graphs: a step of single tokens is padded to one of few shapes, captured once and replayed.

Launching a step's kernels one by one takes the host longer than a small step takes the device; a replay is one call.
All graphs read the step from a static buffer of index tensors and leave the logits in one static tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvtop.engine.executors.indices import Padding
from kvtop.engine.executors.quiet import one_line, quiet
from kvtop.engine.executors.torch_batch import PagedBatch
from kvtop.engine.executors.torch_pool import KVPool, free_memory_bytes
from kvtop.engine.executors.torch_probe import forward
from kvtop.engine.executors.torch_rows import Row

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes what computes a step and returns what computes it again from the same tensors, filled anew."""

LEAST_WIDTH, WIDTH_FACTOR = 256, 4  # blocks: a wider table costs its copy to the device, and every width its graphs


class NotCapturable(Exception):
    """The model waits for the device within a step."""


@dataclass(frozen=True, slots=True)
class _Step:
    buffer: Tensor
    replay: Callable[[], None]


class DecodeGraphs:
    """Graphs of ``forward(batch)`` over one pool, for at most ``max_num_seqs`` single tokens a step.

    They share memory, so the largest is captured first, here, and the smallest, to see what one more takes. The others
    follow when they are first needed, unless ``capture_all`` was called. ``bytes`` is what all of them will take at the
    most: there are never more than ``limit``. Call everything within ``torch.inference_mode``.

    Raises:
        NotCapturable: the model's steps cannot be captured, with the reason.
    """

    def __init__(
        self, pool: KVPool, forward: Callable[[PagedBatch], Tensor], capture: Capture, max_num_seqs: int
    ) -> None:
        self._pool, self._forward, self._capture = pool, forward, capture
        self._steps: dict[Padding, _Step] = {}
        self._logits: Tensor | None = None
        self._sizes = sizes = padded_sizes(max_num_seqs)
        self.max_num_rows, self.limit = sizes[-1], 2 * len(sizes)
        taken = [self._taken(Padding(num_rows, LEAST_WIDTH)) for num_rows in (sizes[-1], sizes[0])]
        self.bytes = taken[0] + taken[1] * (self.limit - 1)

    @property
    def captured(self) -> tuple[Padding, ...]:
        """Shapes that have a graph, the oldest first."""
        return tuple(self._steps)

    def capture_all(self) -> None:
        """Capture every size now, with the narrowest tables: no step has to wait for it."""
        for num_rows in reversed(self._sizes):
            padding = Padding(num_rows, LEAST_WIDTH)
            if padding not in self._steps:
                self._add(padding)

    def fits(self, rows: Sequence[Row]) -> bool:
        """Whether ``rows`` are single tokens, and not too many."""
        return 0 < len(rows) <= self.max_num_rows and all(row.count == 1 for row in rows)

    def logits(self, rows: Sequence[Row]) -> tuple[Tensor, list[int]]:
        """Logits (len(rows), V) of ``rows``, and their keys in that order; the next call overwrites them."""
        width = LEAST_WIDTH
        while width * self._pool.block_size <= max(row.last for row in rows):
            width *= WIDTH_FACTOR
        padding = Padding(padded_size(len(rows)), width)
        step = self._steps.get(padding) or self._add(padding)
        batch = PagedBatch(self._pool, rows, padding, step.buffer)
        batch.send()
        step.replay()
        assert self._logits is not None
        return self._logits[: len(rows)], [row.key for row in batch.rows]

    def _add(self, padding: Padding) -> _Step:
        """Capture a step of nothing but padding: it writes no K or V, and what it reads is filled in later."""
        batch = PagedBatch(self._pool, [], padding)
        buffer = batch.send()
        if self._logits is None:
            self._logits = torch.empty_like(self._forward(batch))
        out = self._logits[: padding.num_rows]

        def run() -> None:
            out.copy_(self._forward(batch))  # into one tensor for all sizes: every graph would keep logits of its own

        if len(self._steps) == self.limit:
            del self._steps[self.captured[0]]
        self._steps[padding] = _Step(buffer, self._capture(run))
        return self._steps[padding]

    def _taken(self, padding: Padding) -> int:
        """Bytes of device memory that capturing takes."""
        if self._pool.device.type != "cuda":
            self._add(padding)
            return 0
        before = free_memory_bytes(self._pool.device)
        self._add(padding)
        torch.cuda.empty_cache()
        return max(0, before - free_memory_bytes(self._pool.device))


def capture_decodes(model: Any, pool: KVPool, capture: Capture, max_num_seqs: int) -> tuple[DecodeGraphs | None, str]:
    """Graphs of the model's decode steps over ``pool``, if they can be captured; and what to say about it."""

    def logits(batch: PagedBatch) -> Tensor:
        return forward(model, batch, batch.input_ids, batch.position_ids, batch.all_rows)

    try:
        with torch.inference_mode():
            return DecodeGraphs(pool, logits, capture, max_num_seqs), ", decode steps captured"
    except NotCapturable as reason:
        return None, f", decode steps not captured ({reason})"


def padded_size(num_rows: int) -> int:
    """1, 2, 4, 8, then multiples of 8, and of an eighth of their own size: at most an eighth of a step is padding."""
    if num_rows <= 8:
        return 1 << (num_rows - 1).bit_length()
    step = max(8, 1 << (num_rows - 1).bit_length() - 4)
    return -(-num_rows // step) * step


def padded_sizes(max_num_rows: int) -> list[int]:
    """All values of ``padded_size`` up to that of ``max_num_rows``, ascending."""
    return sorted({padded_size(n) for n in range(1, max_num_rows + 1)})


class CudaCapture:
    """Captures into CUDA graphs that share one pool of memory."""

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        """Raises NotCapturable: ``run`` waits for the device."""
        run()  # whatever is compiled or allocated at the first use must be there already
        try:
            with _waiting_is_an_error():
                run()
        except RuntimeError as error:
            raise NotCapturable(one_line(error)) from error
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            run()
        return graph.replay


@contextmanager
def _waiting_is_an_error():
    """Within, torch raises RuntimeError where it would wait for the device: better than a capture that breaks off."""
    before = torch.cuda.get_sync_debug_mode()
    with quiet():  # torch calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
