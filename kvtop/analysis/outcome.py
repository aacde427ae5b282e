"""How a request ended, in one word: the status that tables, objectives and screens go by."""

from __future__ import annotations

from kvtop.engine.events import RequestEvent


def status_of(event: RequestEvent) -> str:
    """ok, empty, rejected, failed or aborted, from the finish reason of an ended request."""
    reason = event.finish_reason or "failed"
    if reason in ("rejected", "failed", "aborted"):
        return reason
    return "ok" if event.output_tokens else "empty"
