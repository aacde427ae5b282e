"""What a workload is called and how it is cut: plain data that crosses the process boundary. Loads no torch."""

from __future__ import annotations

import msgspec

REPLAYS = ("closed", "open")


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A built-in workload's name or the path of a trace, and how to scale and cut it.

    ``time_scale`` multiplies the gaps between arrivals (0.5: twice the rate); ``length_scale`` multiplies prompt and
    output lengths and shared-prefix blocks alike (rounded up, at least 1). ``limit`` keeps the first rows.
    ``replay``: "closed" sends a turn when the one before has ended and the user has thought, "open" at its recorded
    time, whatever became of the one before; None: what the workload says, else closed. Think times scale with the gaps.
    """

    name: str
    format: str | None = None  # None: recognised
    limit: int | None = None
    time_scale: float = 1.0
    length_scale: float = 1.0
    too_long: str = "reject"  # reject, clip (the output) or truncate (the prompt)
    seed: int = 0
    replay: str | None = None
    arrival_rate: float | None = None  # requests or sessions per second, for a trace that records no arrivals
