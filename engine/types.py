"""The words of the engine: plain data shared by engine, workloads and front ends. Loads no torch.

What a step makes by the hundred is a msgspec struct: as a frozen dataclass it takes five times as long to make. With
``gc=False`` the garbage collector does not look at it: it never is part of a cycle.

Times are int64 nanoseconds from one monotonic or virtual clock that starts at 0 with the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import repeat
from typing import TYPE_CHECKING, Protocol

import msgspec

from kvtop.engine.checks import LARGEST, SMALLEST, check_flag, check_ids, check_integer, check_number
from kvtop.engine.errors import InvalidRequest

if TYPE_CHECKING:
    from kvtop.engine.sequence import Sequence

NULL_BLOCK = -1
"""Entry of a block table whose block fell out of the group's window: nothing is there and nobody reads it."""

GREEDY_BELOW = 1e-5
"""A temperature below it is greedy: logits divided by it would leave the numbers that fp64 tells apart."""

MAX_BRANCHES = 1024
"""Most branches or beams of one request. More than there are seats may be asked for (they wait), but all begin in one
step, and a step of any length would hold up everybody else."""

ExtraKey = Mapping[str, str | int]
"""Tagged extra key of a request, e.g. ``{"adapter": "x@rev2", "salt": "tenant-7"}``."""


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"  # an end-of-sequence token, stop id or stop string
    LENGTH = "length"  # max_tokens, or max_model_len
    CAPACITY = "capacity"  # alone in the pool and still cannot grow
    ABORTED = "aborted"
    REJECTED = "rejected"  # never entered the queue
    FAILED = "failed"  # the executor raised
    DROPPED = "dropped"  # a beam that is none of the answers its request returns


class RequestState(StrEnum):
    WAITING = "waiting"  # never admitted yet
    RUNNING = "running"
    PREEMPTED = "preempted"  # admitted before, lost its blocks, waits again
    FINISHED = "finished"


class BlockState(StrEnum):
    FRESH = "fresh"  # refcount 0, nothing published
    IDLE = "idle"  # refcount 0, published, evictable
    USED = "used"  # refcount > 0
    IN_TRANSFER = "in_transfer"  # refcount 0, but a deferred free or copy still needs it


class WaitReason(StrEnum):
    """Why a waiting sequence was not admitted in a step."""

    NO_BLOCKS = "no_blocks"  # need > fresh + idle - promised - reserve
    PINNED = "pinned"  # would fit if pinned blocks could be taken
    NO_HOLE = "no_hole"  # contiguous: enough blocks, no hole large enough
    SEATS = "seats"  # max_num_seqs sequences run already
    BUDGET = "budget"  # the step's token budget is spent
    PREEMPTING = "preempting"  # a step that preempted admits nobody
    HEAD_OF_LINE = "head_of_line"  # somebody ahead in the queue does not fit
    FAULT = "fault"  # an injected allocator fault
    BEAMS = "beams"  # it has its candidates; other beams of its request do not yet, so nothing is chosen


class MissReason(StrEnum):
    """Why the prefix match of an admission ended where it did."""

    LAST_TOKEN = "last_token"  # everything that may be cached was: one token is always computed
    NEVER_SEEN = "never_seen"
    EVICTED = "evicted"  # it was published once; the event names the step and the cause
    OTHER_SALT = "other_salt"  # same tokens, published under another extra key
    NOT_YET_COMPUTED = "not_yet_computed"  # a running request is computing this very block
    PROMPT_LOGPROBS = "prompt_logprobs"  # it asked for those of its prompt: all of it is computed
    CACHE_OFF = "cache_off"


class ResetResult(StrEnum):
    DONE = "done"  # nothing published was in use
    PARTIAL = "partial"  # blocks in use were unpublished but stay with their owners


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled.

    ``temperature`` 0 is greedy, and so is one below ``GREEDY_BELOW`` (1e-5). ``n`` branches share the prompt, ``MAX_BRANCHES`` at most.
    ``forced_output`` makes any executor emit these tokens (a recorded answer), so that the next turn of a recorded
    conversation has the same prompt under every policy.

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


class Chunk(msgspec.Struct, gc=False):
    """``count`` tokens of one sequence from position ``start``: prefill, hit remainder and decode alike.

    ``num_samples`` is 0 for a chunk that does not reach the end of the known tokens, else the number of tokens to
    sample from the logits of its last position (n when a parallel request's prompt ends here, otherwise 1). A beam
    asks for ``num_top`` candidates instead.
    ``sequence`` is the engine's own object; an executor reads it and never changes it.
    """

    request_id: str  # the sequence's id: a, a#1, ...
    start: int
    count: int
    num_samples: int
    sequence: Sequence

    @property
    def tokens(self) -> list[int]:
        """The ``count`` token ids to compute."""
        return self.sequence.tokens[self.start : self.start + self.count]

    @property
    def scored(self) -> range:
        """Positions of this chunk from which the next prompt token's log-probability is asked for."""
        request = self.sequence.request
        if request.prompt_logprobs is None:
            return range(0)
        end = min(self.start + self.count, self.sequence.num_prompt - 1)
        return range(max(self.start, len(request.prompt_logprobs)), end)

    @property
    def num_top(self) -> int:
        """Best next tokens to return with their log-probabilities, where it samples at all; 0: a token is sampled."""
        return self.sequence.request.num_top


@dataclass(slots=True)
class Plan:
    """What one step computes. Falsy when it has no chunks.

    In this order: ``swap_out`` (block, host block), ``copies`` (source, destination), ``swap_in`` (host block, block),
    then the chunks.
    """

    step: int
    chunks: list[Chunk] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    moved: bool = False  # set by the executor when these are made: a step that fails later is repeated without them

    def __bool__(self) -> bool:
        return bool(self.chunks)

    def __len__(self) -> int:
        return len(self.chunks)

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self.chunks)

    @property
    def num_tokens(self) -> int:
        return sum([c.count for c in self.chunks])


class Sample(msgspec.Struct, frozen=True, gc=False):
    """What an executor returns for one chunk that samples.

    ``tokens`` has ``num_samples`` ids, one a branch. With ``num_top`` it is empty, and ``top`` holds ``num_top`` pairs
    (token, log-probability over the whole vocabulary), best first, without tokens that ``min_tokens`` forbids as yet.
    """

    tokens: tuple[int, ...]
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class ExecuteResult:
    """``samples`` by sequence id; ``device_ns`` is the time the step took on the device, or costs in virtual time.

    ``prompt_logprobs``, by sequence id: for each position of ``Chunk.scored`` the log-probability (natural, over the
    whole vocabulary) of the prompt token after it.
    """

    samples: dict[str, Sample]
    device_ns: int = 0
    prompt_logprobs: dict[str, list[float]] = field(default_factory=dict)


class Executor(Protocol):
    """Computes plans. Holds the KV memory; never decides anything.

    Optional: ``vocab_size``; ``tokenizer`` (not None) with ``decode(ids) -> str``, for stop strings; ``scores_prompts``
    (True), when it answers ``Chunk.scored``.
    """

    name: str
    eos_token_ids: tuple[int, ...]

    def execute(self, plan: Plan) -> ExecuteResult:
        """Move and copy blocks in the plan's order (then set ``moved``), compute every chunk, sample where asked.

        Chunk ``c`` writes K and V of positions ``start .. start+count-1`` into the slots that
        the sequence's block tables name (each layer that of its KV group), and attends to all positions from 0 on,
        or to those inside the group's window: entries before it may be NULL_BLOCK. Called once a non-empty step.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why an admission or a growth is refused now, in blocks. ``largest_hole``: contiguous allocators only."""

    reason: WaitReason
    need: int
    have: int
    largest_hole: int | None = None


class Eviction(msgspec.Struct, frozen=True, gc=False):
    """One published block that was taken away, and on whose account."""

    block: int
    key: int
    parent_key: int
    cause: str  # sequence id that needed the room
    step: int
    age_steps: int  # since it was published
    idle_steps: int  # since its last use
    uses: int  # times it was handed out as a hit


class EvictedRun(msgspec.Struct, frozen=True, gc=False):
    """Blocks evicted together, as columns: an ``Eviction`` of each is made for those who ask only."""

    cause: str
    step: int
    blocks: Seq[int]
    keys: Seq[int]
    parent_keys: Seq[int]
    ages: Seq[int]
    idle: Seq[int]
    uses: Seq[int]

    def evictions(self) -> Iterator[Eviction]:
        ids, times = (self.blocks, self.keys, self.parent_keys), (self.ages, self.idle, self.uses)
        return map(Eviction, *ids, repeat(self.cause), repeat(self.step), *times)


@dataclass(frozen=True, slots=True)
class Stall:
    """Nothing can advance: which sequence is stuck, why, and on what."""

    request_id: str
    reason: WaitReason
    need: int
    have: int


@dataclass(slots=True)
class StepOutput:
    """What one step did. Ids are sequence ids (``a``, ``a#1``).

    ``tokens`` are those emitted: one a branch that sampled; of a beam request all of its answers in the step in which
    it ends, and nothing before. Beams that are no answer are among ``finished`` too, with the reason ``dropped``.
    ``texts`` is there for requests with stop strings: the text that is safe to show since the last one.
    """

    step: int
    tokens: dict[str, list[int]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    finished: dict[str, FinishReason] = field(default_factory=dict)
    preempted: list[str] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    evicted_runs: list[EvictedRun] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)  # request ids all of whose sequences have finished
    plan: Plan = field(default_factory=lambda: Plan(0))
    stalled: Stall | None = None

    @property
    def evicted(self) -> list[Eviction]:
        """Blocks taken out of the cache, in order. Made anew with every call."""
        return [eviction for run in self.evicted_runs for eviction in run.evictions()]


@dataclass(frozen=True, slots=True)
class KVCounters:
    """Monotone totals, and the pool's state now. used + idle + fresh + in_transfer = N, always."""

    used: int
    idle: int
    fresh: int
    in_transfer: int
    query_tokens: int  # prompt tokens looked up, once a request
    hit_tokens: int  # of those, cached on the device at first admission
    restored_tokens: int  # taken from the cache after a preemption
    recomputed_tokens: int  # computed again after a preemption
    computed_tokens: int  # positions computed for the first time
    preemptions: int
    evictions: int
    copies: int
    host_used: int = 0  # host blocks that hold swapped-out sequences
    host_cached: int = 0  # host blocks that hold evicted prefixes
    host_hit_tokens: int = 0  # of the query tokens, found there at first admission


class RequestTimes(msgspec.Struct, frozen=True):
    """Section 7 of the design; None where it has not happened."""

    t_sched_ns: int
    t_submit_ns: int
    t_first_sched_ns: int | None = None
    t_first_token_ns: int | None = None
    t_last_token_ns: int | None = None
    t_done_ns: int | None = None


class RequestView(msgspec.Struct, frozen=True):
    """A copy of one sequence's state; changing it changes nothing."""

    request_id: str
    state: RequestState
    tokens: Seq[int]
    num_prompt: int
    block_table: tuple[int, ...]
    num_computed: int
    cached_tokens: int
    computed_tokens: int
    restored_tokens: int
    recomputed_tokens: int
    preemptions: int
    times: RequestTimes
    finish_reason: FinishReason | None
    wait_reason: WaitReason | None
    wait_blocker: str | None
    miss_reason: MissReason | None
    block_tables: tuple[tuple[int, ...], ...] = ()  # one a KV group; ``block_table`` is the first
    text: str | None = None  # of the output so far, cut before a stop string; None without stop strings
    host_hit_tokens: int = 0  # of ``cached_tokens``, from the host tier
    prompt_logprobs: tuple[float, ...] | None = None  # of prompt tokens 1, 2, ... as far as computed; None: not asked

    @property
    def prompt(self) -> tuple[int, ...]:
        return tuple(self.tokens[: self.num_prompt])

    @property
    def output(self) -> tuple[int, ...]:
        return tuple(self.tokens[self.num_prompt :])


@dataclass(frozen=True, slots=True)
class BlockView:
    """A copy of one block's state."""

    block: int
    state: BlockState
    refcount: int
    owners: tuple[str, ...]  # sequence ids whose table holds it, once a table entry
    pins: int
    tokens_filled: int
    published_key: int | None
    last_use_step: int
    uses: int
