"""The integer arrays of one step: made on the host, all of them sent to the device in one copy."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 16  # bytes; Triton compiles a kernel anew for a pointer that is aligned otherwise
KNOWN_TABLES = 8192


@dataclass(frozen=True, slots=True)
class Padding:
    """Shapes of a step of single tokens that do not follow its rows: so many rows, tables so many blocks wide."""

    num_rows: int
    num_blocks: int


class Indices:
    """Arrays by key. All that were added before one is first looked up travel together.

    ``buffer``: what an earlier ``send`` with the same keys and shapes returned; the values go there, so that whatever
    was built on its tensors sees the new ones.
    """

    def __init__(self, device: torch.device, buffer: Tensor | None = None) -> None:
        self._device, self._buffer = device, buffer
        self._waiting: dict[Hashable, np.ndarray] = {}
        self._sent: dict[Hashable, Tensor] = {}

    def add(self, key: Hashable, values: np.ndarray) -> None:
        """Integers of 4 or 8 bytes, of any shape."""
        self._waiting[key] = values

    def __getitem__(self, key: Hashable) -> Tensor:
        """The array on the device."""
        if key not in self._sent:
            self.send()
        return self._sent[key]

    def send(self) -> Tensor:
        """Send what was added since the last time; the bytes on the device. Never waits for the device."""
        places, end = {}, 0
        for key, values in self._waiting.items():
            places[key] = slice(end, end + values.nbytes)
            end += -(-values.nbytes // ALIGNMENT) * ALIGNMENT
        # Pinned memory comes from a cache that hands it out again only after the copy from it is done.
        host = torch.empty(end, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        flat = host.numpy()
        for key, values in self._waiting.items():
            flat[places[key]].view(values.dtype)[:] = values.reshape(-1)
        if self._buffer is None:
            sent = host.to(self._device, non_blocking=True)
        else:
            sent = self._buffer.copy_(host, non_blocking=True)
        for key, values in self._waiting.items():
            dtype = torch.int32 if values.itemsize == 4 else torch.int64
            self._sent[key] = sent[places[key]].view(dtype).view(values.shape)
        self._waiting.clear()
        return sent


def padded(values: Sequence[int] | np.ndarray, length: int | None, fill: int, dtype: type = np.int64) -> np.ndarray:
    """``values`` (n, ...) with rows of ``fill`` up to ``length``; None: as many as there are."""
    values = np.asarray(values, dtype=dtype)
    if length is None:
        return values
    out = np.full((length, *values.shape[1:]), fill, dtype=dtype)
    out[: len(values)] = values
    return out


class TableRows:
    """Block tables as int32 arrays, remembered from step to step.

    Of 256 tables of 500 blocks a step changes few: comparing lists takes 1 ms, turning them into arrays 5.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[list[int], np.ndarray]] = {}

    def stack(self, tables: Sequence[Sequence[int]], used: Sequence[int], num_rows: int, width: int) -> np.ndarray:
        """(num_rows, width) int32: the first ``used`` entries of each table, -1 elsewhere."""
        if len(self._known) > KNOWN_TABLES:  # most are of sequences that are gone
            self._known.clear()
        out = np.full((num_rows, width), -1, dtype=np.int32)
        for row, table, count in zip(out, tables, used, strict=False):
            row[:count] = self._row(table)[:count]
        return out

    def _row(self, table: Sequence[int]) -> np.ndarray:
        # The id finds a table quickly; that it still holds the same blocks is seen by comparing them.
        known = self._known.get(id(table))
        if known is None or known[0] != table:
            known = self._known[id(table)] = (list(table), np.asarray(table, dtype=np.int32))
        return known[1]
