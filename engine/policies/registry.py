"""Policies by name: a policy is one function and one ``@queue_policy`` line. Loads no torch.

A queue policy is a key function ``(sequence, context) -> sortable tuple``: the smallest key is admitted first. Every
key ends in ``sequence.order``, so that ties break by (priority, arrival, submission) and never by chance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvtop.engine.errors import UnknownName
from kvtop.engine.sequence import Sequence


@dataclass(slots=True)
class PolicyContext:
    """What a policy may look at besides the sequence itself."""

    step: int
    cached_tokens: Callable[[Sequence], int]  # tokens a lookup would find now
    params: dict[str, Any] = field(default_factory=dict)


QueueKey = Callable[[Sequence, PolicyContext], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """``dynamic``: the key changes while a sequence waits, so the queue is ordered anew in every step."""

    name: str
    meaning: str
    key: QueueKey
    dynamic: bool
    defaults: dict[str, Any]


_QUEUE: dict[str, QueuePolicy] = {}


def queue_policy(name: str, meaning: str, *, dynamic: bool = False, **defaults: Any) -> Callable[[QueueKey], QueueKey]:
    """Register a key function under ``name``. ``defaults`` are its parameters with their default values."""

    def register(key: QueueKey) -> QueueKey:
        _QUEUE[name] = QueuePolicy(name, meaning, key, dynamic, defaults)
        return key

    return register


def get_queue_policy(name: str, params: dict[str, Any] | None = None) -> tuple[QueuePolicy, dict[str, Any]]:
    """The policy and its parameters, defaults filled in.

    Raises:
        UnknownName: no such policy, or no such parameter of it; names the nearest.
    """
    _load()
    if name not in _QUEUE:
        raise UnknownName("policy", name, _QUEUE)
    policy = _QUEUE[name]
    for key in params or {}:
        if key not in policy.defaults:
            raise UnknownName(f"parameter of policy {name!r}", key, policy.defaults)
    return policy, {**policy.defaults, **(params or {})}


def queue_policies() -> dict[str, str]:
    """Name -> one line of meaning."""
    _load()
    return {name: policy.meaning for name, policy in sorted(_QUEUE.items())}


def eviction_policies() -> dict[str, str]:
    """Name -> one line of meaning."""
    from kvtop.engine.evictors import EVICTORS

    return {name: meaning for name, (_, meaning) in sorted(EVICTORS.items())}


def _load() -> None:
    """Import the modules whose functions register themselves."""
    from kvtop.engine.policies import queue  # noqa: F401
