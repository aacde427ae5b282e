"""Which keys each sequence of a launch attends to: block tables, lengths and rows, as tensors on the device.

Kernels read them there; a launch depends on shapes only, so it can be captured in a CUDA graph and replayed after the
tensors were filled anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvtop.kernels.gpu.launch import NO_WINDOW


@dataclass(frozen=True, slots=True)
class PagedTables:
    """``num_seqs`` sequences of one KV group, for layers of one ``window``.

    ``block_tables`` (num_seqs, max_blocks) int32: block of tokens j*B .. j*B + B - 1 in column j. Entries beyond a
    sequence's length, or wholly before what its queries see, are never looked up and may hold anything.
    ``lengths`` (num_seqs,) int32: keys of each sequence, this step's included. A padding row has length 0.
    ``starts`` (num_seqs + 1,) int32: queries ``starts[i] .. starts[i + 1] - 1`` are the last tokens of sequence i.
    None: one query a sequence, its last token.
    """

    block_tables: Tensor
    lengths: Tensor
    starts: Tensor | None = None
    window: int | None = None

    @property
    def num_seqs(self) -> int:
        return self.block_tables.shape[0]

    @property
    def window_or_all(self) -> int:
        """Tokens a query looks back on, itself included; more than there can be where there is no window."""
        return NO_WINDOW if self.window is None else self.window

    def check(self) -> None:
        """Raises ValueError: shapes or types a kernel would misread."""
        if self.block_tables.dim() != 2 or self.block_tables.stride(1) != 1:
            raise ValueError(f"block_tables: expected contiguous rows, found {tuple(self.block_tables.shape)}")
        wanted = {"lengths": (self.lengths, self.num_seqs)}
        if self.starts is not None:
            wanted["starts"] = (self.starts, self.num_seqs + 1)
        for name, (tensor, count) in wanted.items():
            if tensor.shape != (count,) or not tensor.is_contiguous():
                raise ValueError(f"{name}: expected contiguous ({count},), found {tuple(tensor.shape)}")
        for tensor in (self.block_tables, *(tensor for tensor, _ in wanted.values())):
            if tensor.dtype != torch.int32:
                raise ValueError(f"tables, lengths and starts must be int32, found {tensor.dtype}")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window: expected at least 1 token, found {self.window}")


def pack(
    tables: Sequence[Sequence[int]],
    lengths: Sequence[int],
    counts: Sequence[int] | None,
    *,
    block_size: int,
    device: torch.device,
    window: int | None = None,
) -> PagedTables:
    """Tensors from each sequence's blocks, keys and, unless each has one, new tokens (``counts``).

    Entries of a table beyond its length are dropped: they may be of any size.
    """
    pages = [-(-length // block_size) for length in lengths]
    padded = np.full((len(tables), max([1, *pages])), -1, dtype=np.int32)
    for row, table, used in zip(padded, tables, pages, strict=True):
        row[:used] = table[:used]
    starts = None if counts is None else _int32(np.cumsum([0, *counts]), device)
    return PagedTables(_int32(padded, device), _int32(np.asarray(lengths), device), starts, window)


def _int32(values: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(values.astype(np.int32)).to(device)
