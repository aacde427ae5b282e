"""Reading lists by block id, many blocks at once."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from operator import itemgetter
from typing import Any

Reader = Callable[[Seq[Any]], tuple[Any, ...]]


def reader(blocks: Seq[int]) -> Reader:
    """Reads list after list at ``blocks``: a third of what ``map`` takes, without a bytecode a block."""
    if len(blocks) > 1:
        return itemgetter(*blocks)
    return lambda values: tuple([values[block] for block in blocks])
