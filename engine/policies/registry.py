"""Policies by name: a policy is one function and one decorator line. Loads no torch.

Four kinds decide four things, and each is a key function over what it orders:

    queue     who of the waiting is tried first          (sequence, context) -> tuple, smallest first
    victim    who of the running loses its blocks        (sequence, context) -> tuple, largest first
    batch     in which order a step spends its budget    a tuple of phases
    eviction  which idle block is taken away             (block, cache) -> tuple, smallest first

Queue and victim keys end in ``sequence.order``, so that ties break by (priority, arrival, submission), never by chance.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from kvtop.engine.errors import ConfigError, UnknownName
from kvtop.engine.policies.tenants import TenantCounters
from kvtop.engine.sequence import Sequence

if TYPE_CHECKING:
    from kvtop.engine.prefix_cache import PrefixCache


@dataclass(slots=True)
class PolicyContext:
    """What a policy may look at besides the sequence itself."""

    step: int
    cached_tokens: Callable[[Sequence], int]  # tokens a lookup would find now
    cached_path: Callable[[Sequence], list[int]]  # the blocks of that lookup
    block_size: int
    tenants: TenantCounters = field(default_factory=TenantCounters)
    params: dict[str, Any] = field(default_factory=dict)
    memo: dict[Any, Any] = field(default_factory=dict)  # what ``prepare`` leaves for the key function

    def aged(self, seq: Sequence) -> bool:
        """Has ``seq`` waited ``aging_steps`` steps? Then it goes ahead, in order of arrival: starvation is bounded."""
        return self.step - seq.wait_since_step >= self.params["aging_steps"]


SequenceKey = Callable[[Sequence, PolicyContext], tuple[Any, ...]]
EvictionKey = Callable[[int, "PrefixCache"], tuple[int, ...]]
Prepare = Callable[[Iterable[Sequence], PolicyContext], None]
Rule = TypeVar("Rule")


@dataclass(frozen=True, slots=True)
class Policy(Generic[Rule]):
    """``dynamic``: the key changes while a sequence waits, so the queue is ordered anew in every step.

    ``prepare`` is called once before each such ordering. ``defaults``: parameters and their default values.
    """

    name: str
    meaning: str
    rule: Rule
    dynamic: bool = False
    prepare: Prepare | None = None
    defaults: dict[str, Any] = field(default_factory=dict)


class Registry(Generic[Rule]):
    """Policies of one kind. ``modules`` are those whose functions register themselves."""

    def __init__(self, kind: str, *modules: str) -> None:
        self.kind = kind
        self._modules = modules
        self._policies: dict[str, Policy[Rule]] = {}

    def add(
        self, name: str, meaning: str, *, dynamic: bool = False, prepare: Prepare | None = None, **defaults: Any
    ) -> Callable[[Rule], Rule]:
        """Decorator: register a rule under ``name``; ``meaning`` is one line for ``kvtop policies``."""

        def register(rule: Rule) -> Rule:
            self._policies[name] = Policy(name, meaning, rule, dynamic, prepare, defaults)
            return rule

        return register

    def get(self, name: str, params: dict[str, Any] | None = None) -> tuple[Policy[Rule], dict[str, Any]]:
        """The policy and its parameters, defaults filled in. ``name`` may be ``path/to/file.py:function``.

        Raises:
            UnknownName: no such policy, or no such parameter of it; names the nearest.
            ConfigError: a policy file that cannot be loaded.
        """
        policies = self._load()
        policy = self._from_file(name) if ".py:" in name else policies.get(name)
        if policy is None:
            raise UnknownName(f"{self.kind} policy", name, policies)
        for key in params or {}:
            if key not in policy.defaults:
                raise UnknownName(f"parameter of policy {name!r}", key, policy.defaults or ("(none)",))
        return policy, {**policy.defaults, **(params or {})}

    def meanings(self) -> dict[str, str]:
        """Name -> one line of meaning."""
        return {name: policy.meaning for name, policy in sorted(self._load().items())}

    def _load(self) -> dict[str, Policy[Rule]]:
        for module in self._modules:
            importlib.import_module(f"kvtop.engine.policies.{module}")
        return self._policies

    def _from_file(self, name: str) -> Policy[Rule]:
        """A user's own policy: a key function in a Python file, ordered anew in every step."""
        file, _, function = name.rpartition(":")
        path = Path(file).expanduser()
        if not path.is_file():
            raise ConfigError(f"policy {name!r}: no file {file}")
        spec = importlib.util.spec_from_file_location(f"kvtop_policy_{path.stem}", path)
        assert spec is not None, f"{path} is a .py file"
        assert spec.loader is not None, f"{path} is a .py file"
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # whatever the user's file raises is told in one line
            raise ConfigError(f"policy {name!r}: {file} does not load: {type(error).__name__}: {error}") from error
        rule = getattr(module, function, None)
        if not callable(rule):
            names = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
            raise UnknownName(f"function in {file}", function, names)
        meaning = (rule.__doc__ or "a policy from a file").strip().splitlines()[0]
        defaults = dict(getattr(module, "PARAMS", {}))
        prepare = getattr(module, "prepare", None)
        return Policy(name, meaning, cast("Rule", rule), True, prepare, defaults)


QUEUE: Registry[SequenceKey] = Registry("queue", "queue", "fair", "dfs_weight")
VICTIM: Registry[SequenceKey] = Registry("victim", "victim")
BATCH: Registry[tuple[str, ...]] = Registry("batch", "batch")
EVICTION: Registry[EvictionKey] = Registry("eviction", "eviction")


def queue_policies() -> dict[str, str]:
    """Name -> one line of meaning."""
    return QUEUE.meanings()


def eviction_policies() -> dict[str, str]:
    """Name -> one line of meaning."""
    return EVICTION.meanings()
