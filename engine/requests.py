"""What a request asks for, and where requests come from. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

from kvtop.engine.checks import LARGEST, SMALLEST, check_flag, check_ids, check_integer, check_number
from kvtop.engine.errors import InvalidRequest

GREEDY_BELOW = 1e-5
"""A temperature below it is greedy: logits divided by it would leave the numbers that fp64 tells apart."""

MAX_BRANCHES = 1024
"""Most branches or beams of one request. More than there are seats may be asked for (they wait), but all begin in one
step, and a step of any length would hold up everybody else."""

ExtraKey = Mapping[str, str | int]
"""Tagged extra key of a request, e.g. ``{"adapter": "x@rev2", "salt": "tenant-7"}``."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled.

    ``temperature`` 0 is greedy, and so is one below ``GREEDY_BELOW`` (1e-5). ``n`` branches (at most
    ``MAX_BRANCHES``) share the prompt. ``forced_output`` makes any executor emit these tokens (a recorded answer), so
    that the next turn of a recorded conversation has the same prompt under every policy.

    ``stop`` are texts that end an answer with the token that completes one of them; its text is cut before it, its
    tokens are not. They need an executor with a tokenizer. Stop ids outside the vocabulary never count.
    ``prompt_logprobs`` asks for the log-probability of every prompt token but the first: such a prompt is computed
    whole, and nothing of it is taken from the cache.

    ``num_beams`` above 1 is beam search, with the meaning of transformers' ``generate(do_sample=False)``: ``n`` is then
    the number of answers returned, at most ``num_beams`` (``num_return_sequences`` there), best first under the ids
    ``a``, ``a#1``, ...; ``length_penalty`` is the exponent of the length that divides an answer's score, and
    ``early_stopping`` (True, False or "never") says when enough answers have finished. Which answer is best is known at
    the end only, so nothing is emitted before. With ``num_beams`` 1 the other two mean nothing.

    Raises:
        InvalidRequest: a value of another type, or out of its range.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    n: int = 1
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = True
    prompt_logprobs: bool = False
    forced_output: tuple[int, ...] | None = None
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False

    def __post_init__(self) -> None:
        if not isinstance(self.stop, tuple | list) or not all(isinstance(text, str) and text for text in self.stop):
            raise InvalidRequest(f"stop is {self.stop!r}, expected a tuple of texts, none of them empty")
        for name, low in (("max_tokens", 1), ("min_tokens", 0), ("n", 1), ("top_k", 0), ("num_beams", 1)):
            check_integer(InvalidRequest, name, getattr(self, name), low)
        for name in ("n", "num_beams"):
            if getattr(self, name) > MAX_BRANCHES:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, expected at most {MAX_BRANCHES} branches")
        check_number(InvalidRequest, "temperature", self.temperature, 0.0, LARGEST, "a finite number >= 0")
        check_number(InvalidRequest, "top_p", self.top_p, SMALLEST, 1.0, "0 < top_p <= 1")
        check_number(InvalidRequest, "length_penalty", self.length_penalty, -10, 10, "a number from -10 to 10")
        if self.seed is not None and type(self.seed) is not int:
            raise InvalidRequest(f"seed is {self.seed!r}, expected an integer or None")
        check_flag(InvalidRequest, "ignore_eos", self.ignore_eos)
        check_flag(InvalidRequest, "prompt_logprobs", self.prompt_logprobs)
        if self.min_tokens > self.max_tokens:
            raise InvalidRequest(f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}")
        check_ids(InvalidRequest, "stop_token_ids", self.stop_token_ids)
        if (forced := self.forced_output) is not None:
            check_ids(InvalidRequest, "forced_output", forced)
            if len(forced) < self.max_tokens:
                raise InvalidRequest(f"forced_output has {len(forced)} tokens, max_tokens is {self.max_tokens}")
            if min(forced) < 0:
                raise InvalidRequest(f"forced_output has the token id {min(forced)}, expected ids >= 0")
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise InvalidRequest(f"early_stopping is {self.early_stopping!r}, expected True, False or 'never'")
        if self.num_beams > 1:
            self._check_beams()
        for name in ("stop", "stop_token_ids", "forced_output"):
            value = getattr(self, name)
            if value is not None and type(value) is not tuple:
                object.__setattr__(self, name, tuple(value))

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    def _check_beams(self) -> None:
        if self.stop:
            raise InvalidRequest(f"num_beams is {self.num_beams}: stop strings end no beam; use stop_token_ids")
        if not self.greedy:
            raise InvalidRequest(f"num_beams is {self.num_beams} at temperature {self.temperature:g}, expected 0")
        if self.forced_output is not None:
            raise InvalidRequest(f"num_beams is {self.num_beams}: beams choose their tokens, forced_output cannot")
        if self.n > self.num_beams:
            raise InvalidRequest(f"n is {self.n}, expected at most num_beams ({self.num_beams})")


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One request as a workload hands it over. ``arrival_ns`` is the intended time (``t_sched``)."""

    prompt: Seq[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    request_id: str | None = None
    arrival_ns: int | None = None
    priority: int = 0  # lower is more important
    extra_key: ExtraKey | None = None
    block_keys: Mapping[int, str | int] | None = None  # per-block extra keys (block index -> key), e.g. image ids
    tenant: str = ""
    klass: str = ""
    session_id: str = ""
    turn: int = 0
    parent_request_id: str = ""


class Source(Protocol):
    """Where requests come from. Lives in the engine's process, so that closed loops need no round trip."""

    def next_due(self) -> int | None:
        """Time (ns) of the next arrival; None when none is known now (finished, or waiting for a completion)."""
        ...

    def pop_due(self, now_ns: int) -> list[RequestSpec]:
        """Remove and return, in order, every request due at or before ``now_ns``."""
        ...

    def on_finished(self, request_id: str, now_ns: int) -> None:
        """A request ended (whatever its reason): a closed loop may schedule its next turn."""
        ...

    @property
    def exhausted(self) -> bool:
        """True when no further request will ever come, whatever finishes."""
        ...
