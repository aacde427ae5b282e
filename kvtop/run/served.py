"""The workload of a run that has none: requests come from outside, for as long as it goes on."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from kvtop.engine.types import RequestSpec
from kvtop.workloads.rows import Row

NAME = "serve-api"


class OutsideSource:
    """Has no request of its own, and never runs dry."""

    exhausted = False

    def next_due(self) -> int | None:
        return None

    def pop_due(self, now_ns: int) -> list[RequestSpec]:
        return []

    def on_finished(self, request_id: str, now_ns: int) -> None:
        pass


@dataclass(frozen=True, slots=True)
class ServedWorkload:
    """As ``kvtop.workloads.load.Workload``. Its hash is never that of another run: nobody sent the same twice."""

    name: str = NAME
    rows: list[Row] = field(default_factory=list)
    hash: str = field(default_factory=lambda: f"served-{secrets.token_hex(8)}")
    trace_sha256: str | None = None
    notices: list[str] = field(default_factory=list)
    replay: str = "open"
    num_chained: int = 0
    num_requests: int | None = None

    def source(self) -> OutsideSource:
        return OutsideSource()
