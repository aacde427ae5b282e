"""Samples and KV events by hand, and what they are folded into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace

import pytest

from kvtop.attach.exposition import Exposition
from kvtop.attach.kv_decode import decode_batch, sequence_of
from kvtop.attach.kv_tracker import KvTracker
from kvtop.attach.names import WANTED, understand
from kvtop.attach.session import AttachSession
from kvtop.engine.events import Event, Sample
from kvtop.state.attached import Attached
from kvtop.state.model import RunState
from kvtop.state.reduce import reduce

S = 1_000_000_000
SERVER = "http://server"


def sample(step: int, text: str, *, t_s: float | None = None, server: str = SERVER) -> Sample:
    """Look number ``step``, at ``t_s`` (default: as many seconds), at a server that says ``text``."""
    meaning = understand(Exposition(WANTED).parse(text).series)
    return Sample(
        step=step, t_ns=int((step if t_s is None else t_s) * S), server=server, kind=meaning.kind,
        engines=meaning.engines, started=meaning.started,
    )  # fmt: skip


def silence(step: int, problem: str, *, t_s: float, server: str = SERVER) -> Sample:
    return Sample(step=step, t_ns=int(t_s * S), server=server, problem=problem)


def folded(events: Iterable[Event]) -> RunState:
    state = RunState()
    for event in events:
        reduce(state, event)
    return state


def attached(state: RunState) -> Attached:
    assert state.attached is not None
    return state.attached


def gauge(name: str, value: object, **labels: str) -> str:
    inside = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {value}\n" if labels else f"{name} {value}\n"


def histogram(name: str, buckets: dict[str, int], **labels: str) -> str:
    """Cumulative counts by upper bound."""
    return "".join(gauge(f"{name}_bucket", count, **labels, le=bound) for bound, count in buckets.items())


def take(tracker: KvTracker, frames: list[bytes], source: str = "tcp://a:1") -> None:
    tracker.take(source, sequence_of(frames[1]), decode_batch(frames[2]), 0.0)


def stored(*hashes: int, parent: int | None = None, size: int = 4, **more: object) -> dict[str, object]:
    """A BlockStored event as newer servers send it."""
    tokens = list(range(len(hashes) * size))
    return {"type": "BlockStored", "block_hashes": list(hashes), "parent_block_hash": parent, "token_ids": tokens,
            "block_size": size, "medium": "GPU", **more}  # fmt: skip


def removed(*hashes: int, **more: object) -> dict[str, object]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", **more}


def count_looks_as_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """``kvtop attach --seconds N`` ends after N looks at each server, however long they take."""
    looks, poll = Counter[str](), AttachSession.poll

    def counted(self: AttachSession, timeout_s: float = 0.0) -> list[Event]:
        looks.update({address.shown: 0 for address in self.spec.servers})
        events = poll(self, timeout_s)
        looks.update(event.server for event in events if isinstance(event, Sample))
        return events

    def least() -> float:
        return float(min(looks.values(), default=0))

    monkeypatch.setattr(AttachSession, "poll", counted)
    monkeypatch.setattr("kvtop.cli.attach.time", SimpleNamespace(monotonic=least))
