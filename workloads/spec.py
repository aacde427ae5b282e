"""What a workload is called and how it is cut: plain data that crosses the process boundary. Loads no torch."""

from __future__ import annotations

import msgspec


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A built-in workload's name or the path of a trace, and how to scale and cut it.

    ``time_scale`` multiplies the gaps between arrivals (0.5: twice the rate); ``length_scale`` multiplies prompt and
    output lengths and shared-prefix blocks alike (rounded up, at least 1). ``limit`` keeps the first rows.
    """

    name: str
    format: str | None = None  # None: recognised
    limit: int | None = None
    time_scale: float = 1.0
    length_scale: float = 1.0
    too_long: str = "reject"  # reject, clip (the output) or truncate (the prompt)
    seed: int = 0
