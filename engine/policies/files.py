"""A user's own policy: a function, or a class with ``__call__``, in a Python file that need not be installed.

Whatever is wrong with the file or its answers is told in one line that names the policy. Keys are checked as they come,
and end in the static order without the author's help. The file is executed: it may do what its user may do.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from kvtop.engine.errors import ConfigError, UnknownName
from kvtop.engine.policies.registry import Policy, PolicyContext, Prepare

PHASES = ("decodes", "chunks", "running", "admit")
ROUNDS = (["admit", "chunks", "decodes"], ["admit", "running"])  # what a batch policy may put in order

Kind = str | tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class PolicySource:
    """A policy file as read. ``label`` names its content: ``my_policy.py:Shortest@1a2b3c4d``."""

    what: str  # how errors call it
    path: Path
    attribute: str
    content: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()[:8]

    @property
    def label(self) -> str:
        return f"{self.path.name}:{self.attribute}@{self.digest}"


def read_policy(kind: str, name: str) -> PolicySource:
    """The file behind ``path/to/file.py:NAME``, not yet executed.

    Raises:
        ConfigError: no such file, or one that cannot be read.
    """
    file, _, attribute = name.rpartition(":") if not name.endswith(".py") else (name, "", "")
    what = f"{kind} policy {name!r}".strip()
    path = Path(file).expanduser()
    try:
        return PolicySource(what, path, attribute, path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{what}: no such file {file}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{what}: cannot read {file}: {getattr(error, 'strerror', None) or error}") from None


def load_policy(kind: str, name: str) -> Policy[Any]:
    """Execute the file and take NAME out of it: a key function, a class that is one, or (batch) a tuple of phases.

    Parameters and their defaults are ``PARAMS`` of the object or of the file; ``prepare`` likewise. ``dynamic = False``
    on the object says that a key never changes while a sequence waits.

    Raises:
        UnknownName: the file has no such policy; names the nearest.
        ConfigError: a file that does not load, or something in it that is no policy.
    """
    source = read_policy(kind, name)
    module = _execute(source)
    found = getattr(module, source.attribute, None)
    if found is None:
        raise UnknownName(f"policy in {source.path}", source.attribute, _policies_in(module, kind))
    meaning = (getattr(found, "__doc__", None) or "a policy from a file").strip().splitlines()[0]
    if kind == "batch":
        return Policy(source.label, "a policy from a file", _phases(source, found))
    if isinstance(found, type):
        try:
            found = found()
        except Exception as error:
            raise ConfigError(f"{source.what}: {source.attribute}() fails: {_told(error)}") from error
    if not callable(found):
        raise ConfigError(f"{source.what}: {source.attribute} is a {type(found).__name__}, expected a key function")
    prepare = getattr(found, "prepare", None) or getattr(module, "prepare", None)
    params = getattr(found, "PARAMS", None) or getattr(module, "PARAMS", {})
    if not isinstance(params, dict):
        raise ConfigError(f"{source.what}: PARAMS is {params!r}, expected a dict of names and default values")
    rule: Any = UserKey(source.what, found) if kind == "eviction" else UserSequenceKey(source.what, found)
    dynamic = bool(getattr(found, "dynamic", True))
    return Policy(source.label, meaning, rule, dynamic, _guarded(source, prepare), dict(params))


class UserKey:
    """A key function that is checked at every call, so that a queue never has to sort what has no order.

    Raises (when called):
        ConfigError: the function raised, or answered something that cannot be compared with its answers before.
    """

    def __init__(self, what: str, rule: Callable[..., Any]) -> None:
        self._what = what
        self._rule = rule
        self._kinds: Kind = None  # of the elements of all answers so far

    def __call__(self, block: int, cache: Any) -> tuple[Any, ...]:
        return self._key(f"block {block}", block, cache)

    def _key(self, about: str, *args: Any) -> tuple[Any, ...]:
        try:
            key = self._rule(*args)
        except Exception as error:
            raise ConfigError(f"{self._what} fails at {about}: {_told(error)}") from error
        if not isinstance(key, tuple):
            raise ConfigError(f"{self._what} answers {key!r} for {about}, expected a tuple")
        try:
            self._kinds = _merged(self._kinds, _kind(key))
        except TypeError as error:
            raise ConfigError(f"{self._what} answers {key!r} for {about}: {error}") from None
        return key


class UserSequenceKey(UserKey):
    """As ``UserKey``, for sequences: ties break by the static order."""

    def __call__(self, seq: Any, context: Any) -> tuple[Any, ...]:
        return (self._key(f"request {seq.seq_id}", seq, context), seq.order)


def _kind(value: Any) -> Kind:
    """What ``value`` can be compared with. Raises TypeError for what has no order of its own."""
    if isinstance(value, tuple):
        return tuple(map(_kind, value))
    if isinstance(value, int | float) and value == value:
        return "a number"
    if isinstance(value, str):
        return "a text"
    raise TypeError(f"{value!r} has no place in an order (numbers, texts and tuples of them have)")


def _merged(known: Kind, new: Kind) -> Kind:
    if known is None or known == new:
        return new
    if isinstance(known, tuple) and isinstance(new, tuple):
        longer = max(known, new, key=len)
        return tuple(_merged(a, b) for a, b in zip(known, new, strict=False)) + longer[min(len(known), len(new)) :]
    names = ["a tuple" if isinstance(kind, tuple) else kind for kind in (new, known)]
    raise TypeError(f"{names[0]} where another answer has {names[1]}")


def _phases(source: PolicySource, found: Any) -> tuple[str, ...]:
    if not isinstance(found, tuple | list) or sorted(map(str, found)) not in ROUNDS:
        rounds = " or ".join(", ".join(phases) for phases in ROUNDS)
        raise ConfigError(f"{source.what}: {found!r} is no order of {rounds}")
    return tuple(found)


def _guarded(source: PolicySource, prepare: Prepare | None) -> Prepare | None:
    if prepare is None:
        return None

    def told(waiting: Iterable[Any], context: PolicyContext) -> None:
        try:
            prepare(waiting, context)
        except Exception as error:
            raise ConfigError(f"{source.what} fails in prepare: {_told(error)}") from error

    return told


def _execute(source: PolicySource) -> ModuleType:
    """Compiled from the very bytes that name the policy; leaves no ``__pycache__`` beside the user's file."""
    if not source.attribute:
        raise ConfigError(f"{source.what}: names a file only, expected {source.path}:NAME")
    module = ModuleType(f"kvtop_policy_{source.digest}")
    module.__file__ = str(source.path)
    sys.modules[module.__name__] = module  # dataclasses and typing look a class's module up
    try:
        exec(compile(source.content, str(source.path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{source.what}: {source.path} does not load: {_told(error)}") from error
    return module


def _policies_in(module: ModuleType, kind: str) -> list[str]:
    """Public names that the file itself defines."""
    if kind == "batch":
        names = [name for name, value in vars(module).items() if isinstance(value, tuple | list)]
    else:
        names = [n for n, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return [name for name in names if not name.startswith("_") and name != "prepare"] or ["(none)"]


def _told(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
