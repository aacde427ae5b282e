"""What a generator is: named options, and a function from them and a seed to rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from kvtop.workloads.rows import RowSet


class Generator(msgspec.Struct, frozen=True, kw_only=True):
    """``options`` names every key with its default (None: required); ``generate(options, seed)`` checks and makes rows.

    ``generate`` raises WorkloadError for a value out of range; the key is in the message.
    """

    name: str
    options: dict[str, Any]
    generate: Callable[[dict[str, Any], int], RowSet]
