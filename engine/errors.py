"""Every error kvtop raises on purpose, in one tree.

    KvtopError
    ├── UsageError               a flag, a name or a combination the user can correct     (exit 2)
    │   ├── UnknownName          an unknown policy, preset, key ...: carries the nearest valid name
    │   ├── ConfigError          EngineConfig values that cannot work together, with the numbers
    │   ├── WorkloadError        a trace or workload spec: file, row, what was found, what was expected
    │   └── ModelError           a model that cannot be loaded, or is refused by name
    ├── InvalidRequest           one request is wrong; the engine and the other requests go on
    │   ├── RequestTooLong       prompt >= effective length, with both numbers
    │   └── QueueFull            max_queue is reached
    ├── EngineStalled            no request can advance; names the blocker
    └── InvariantError           a bug of ours: the pool, the tree or the tables disagree

A message is one line, and says what was found, what was expected and, for names, the nearest valid one.
Bad input raises one of these; ``assert`` is only for our own bugs.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class KvtopError(Exception):
    """Base of all errors raised on purpose; ``str(error)`` is the one line shown to the user."""

    exit_code = 1


class UsageError(KvtopError):
    """The user asked for something impossible and can correct it."""

    exit_code = 2


class UnknownName(UsageError):
    """An unknown name; the message lists the valid ones and the nearest.

    ``what`` is the kind of thing ("policy", "GPU preset", "config key"), ``name`` what was given.
    """

    def __init__(self, what: str, name: object, valid: Iterable[str]) -> None:
        self.what, self.name = what, str(name)
        self.valid = sorted(valid)
        near = difflib.get_close_matches(self.name.lower(), self.valid, n=1, cutoff=0.4)
        self.nearest = near[0] if near else None
        hint = f"; did you mean {self.nearest!r}?" if self.nearest else ""
        super().__init__(f"unknown {what} {self.name!r}{hint} (valid: {', '.join(self.valid)})")


class ConfigError(UsageError):
    """Configuration values that cannot work, with the numbers."""


class WorkloadError(UsageError):
    """A trace file or workload spec that cannot be used.

    The message is ``PATH:ROW: what was found, what was expected``; ``row`` counts from 1 as an editor does.
    """

    def __init__(self, message: str, *, path: object = None, row: int | None = None) -> None:
        self.path, self.row = path, row
        place = "" if path is None else f"{path}: " if row is None else f"{path}:{row}: "
        super().__init__(place + message)


class ModelError(UsageError):
    """A model that cannot be found, read or served."""


class InvalidRequest(KvtopError):
    """One request cannot be accepted; nothing else is affected."""


class RequestTooLong(InvalidRequest):
    """The prompt reaches the effective length, so not even one token could be emitted."""

    def __init__(self, prompt_tokens: int, effective_len: int, request_id: str) -> None:
        self.prompt_tokens, self.effective_len, self.request_id = prompt_tokens, effective_len, request_id
        super().__init__(
            f"request {request_id!r}: prompt of {prompt_tokens} tokens, but this engine serves prompts of "
            f"at most {effective_len - 1} (effective length {effective_len})"
        )


class QueueFull(InvalidRequest):
    """The waiting queue has reached ``max_queue``."""


class EngineStalled(KvtopError):
    """Requests wait, none can advance, and nothing outside is due to change that."""


class InvariantError(KvtopError):
    """A broken invariant: always a bug in kvtop, never the user's input."""
