"""Policies by name: a policy is one function and one decorator line. Loads no torch.

Four kinds decide four things, and each is a key function over what it orders:

    queue     who of the waiting is tried first          (sequence, context) -> tuple, smallest first
    victim    who of the running loses its blocks        (sequence, context) -> tuple, largest first
    batch     in which order a step spends its budget    a tuple of phases
    eviction  which idle block is taken away             (block, cache) -> tuple, smallest first

Queue and victim keys end in ``sequence.order``, so that ties break by (priority, arrival, submission), never by chance.
A name like ``path/to/file.py:NAME`` is a user's own policy (``policies/files.py``).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kvtop.engine.errors import ConfigError, UnknownName
from kvtop.engine.policies.tenants import TenantCounters
from kvtop.engine.sequence import Sequence

if TYPE_CHECKING:
    from kvtop.engine.published import PublishedBlocks

AGING_STEPS = 256
"""Steps after which a sequence goes ahead, under policies whose order depends on the cache (``PolicyContext.aged``)."""


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
        return self.step - seq.wait_since_step >= self.params.get("aging_steps", AGING_STEPS)


SequenceKey = Callable[[Sequence, PolicyContext], tuple[Any, ...]]
EvictionKey = Callable[[int, "PublishedBlocks"], tuple[int, ...]]
Prepare = Callable[[Iterable[Sequence], PolicyContext], None]
Rule = TypeVar("Rule")


@dataclass(frozen=True, slots=True)
class Policy(Generic[Rule]):
    """``dynamic``: the key changes while a sequence waits, so the queue is ordered anew in every step.

    ``prepare`` is called once in every step before that. ``defaults``: parameters and their default values.
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
        """The policy and its parameters, defaults filled in. ``name`` may be ``path/to/file.py:NAME``.

        Raises:
            UnknownName: no such policy, or no such parameter of it; names the nearest.
            ConfigError: a policy file that cannot be used, or a parameter of another type than its default.
        """
        policy: Policy[Any] | None
        if names_a_file(name):
            from kvtop.engine.policies.files import load_policy

            policy = load_policy(self.kind, name)
        else:
            policies = self._load()
            policy = policies.get(name)
            if policy is None:
                raise UnknownName(f"{self.kind} policy", name, policies)
        return policy, {**policy.defaults, **_checked(policy, params or {})}

    def meanings(self) -> dict[str, str]:
        """Name -> one line of meaning."""
        return {name: policy.meaning for name, policy in sorted(self._load().items())}

    def _load(self) -> dict[str, Policy[Rule]]:
        for module in self._modules:
            importlib.import_module(f"kvtop.engine.policies.{module}")
        return self._policies


def names_a_file(name: str) -> bool:
    """``path/to/file.py:NAME`` (or, by mistake, the file alone) instead of a registered name."""
    return ".py:" in name or name.endswith(".py")


def policy_label(name: str) -> str:
    """What a run's files call the policy ``name``: of one from a file, its content counts and not its folder.

    Raises:
        ConfigError: the file cannot be read.
    """
    if not names_a_file(name):
        return name
    from kvtop.engine.policies.files import read_policy

    return read_policy("", name).label


def with_labels(engine: Mapping[str, Any]) -> dict[str, Any]:
    """EngineConfig values by name, with the labels of policies from files: what identifies a run."""
    kinds = ("policy", "batch_policy", "victim", "eviction")
    return {key: policy_label(value) if key in kinds else value for key, value in engine.items()}


def _checked(policy: Policy[Any], params: dict[str, Any]) -> dict[str, Any]:
    for key, value in params.items():
        if key not in policy.defaults:
            raise UnknownName(f"parameter of policy {policy.name!r}", key, policy.defaults or ("(none)",))
        default = policy.defaults[key]
        if type(value) is not type(default) and not (type(default) is float and type(value) is int):
            raise ConfigError(
                f"policy {policy.name!r}: {key} is {value!r}, expected {type(default).__name__} (default {default!r})"
            )
    return params


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
