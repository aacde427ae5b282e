"""Jobs for ``jit.run_all``: what kernels are called with, kept from step to step, as rows of one table.

A row is the counter of tasks taken, the number of tasks, then the kernel's own fields; a step overwrites those that
have changed, for all layers at once. The memory that fields point to belongs to whoever made the jobs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvtop.kernels.cpu import jit
from kvtop.kernels.cpu.chain_ir import ENTRY_FIELDS

WIDTH = 24  # of a row: the counter, the number of tasks, and at most 22 fields
FIELD = 2  # column of a kernel's first field
TASKS = 1


class Jobs:
    """``groups`` times the same kernels in the same order: ``fields[group, kernel, column]``, int64."""

    def __init__(self, groups: int, kernels: Sequence[str]) -> None:
        self.kernels = tuple(kernels)
        self.fields = np.zeros((groups, len(kernels), WIDTH), np.int64)
        self.entries = np.zeros((groups * len(kernels), ENTRY_FIELDS), np.int64)
        self.entries[:, 0] = [jit.address(kernel) for kernel in kernels] * groups
        self.entries[:, 1] = self.fields.ctypes.data + 8 * WIDTH * np.arange(len(self.entries))

    def put(self, group: int, kernel: int, fields: Sequence[int]) -> None:
        """The kernel's own fields, all of them."""
        self.fields[group, kernel, FIELD : FIELD + len(fields)] = fields

    def set(self, kernel: int, field: int, value: int | np.ndarray) -> None:
        """One of the kernel's own fields in every group."""
        self.fields[:, kernel, FIELD + field] = value

    def set_tasks(self, kernel: int, tasks: int | np.ndarray) -> None:
        """Into how many tasks the kernel's work is cut, in every group."""
        self.fields[:, kernel, TASKS] = tasks

    @property
    def num_tasks(self) -> np.ndarray:
        """Of every job, in order."""
        return self.fields[:, :, TASKS].reshape(-1)

    def run(self) -> None:
        """All of them in order, by torch's threads."""
        jit.run_all(self)
