"""A request and its branches, as the engine keeps them. Executors read a ``Sequence`` and never change it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvtop.engine.keys import Packed
from kvtop.engine.types import (
    NULL_BLOCK,
    FinishReason,
    MissReason,
    RequestSpec,
    RequestState,
    SamplingParams,
    WaitReason,
)

if TYPE_CHECKING:
    from kvtop.engine.beam import BeamState
    from kvtop.engine.text import TextStream

OrderKey = tuple[int, int, int, int]
"""(priority, arrival_ns, submission number, branch): the static order of all sequences."""


@dataclass(slots=True, eq=False)
class Request:
    """What all branches of one submission share."""

    request_id: str
    spec: RequestSpec
    submission: int
    t_sched_ns: int
    t_submit_ns: int
    extra: tuple[tuple[str, str | int], ...] = ()  # normalised extra key: sorted (tag, value) pairs
    sequences: list[Sequence] = field(default_factory=list)
    num_live: int = 0  # branches that have not finished
    num_samples: int = 1  # tokens sampled where the known ones end: n until there are n branches
    stops: frozenset[int] = frozenset()  # tokens that end an answer
    may_stop: bool = False  # it has such tokens, or stop strings
    prompt_logprobs: list[float] | None = None  # of prompt tokens 1, 2, ... so far; None: not asked for
    beams: BeamState | None = None  # of a beam request
    ranking: list[Sequence] = field(default_factory=list)  # its live beams, best first; empty before the first choice
    num_top: int = 0  # candidates that each of its rows asks for; 0: it samples
    looked_up: bool = False  # its prompt was counted in the hit rate
    # Looked up once, at first admission (a retry or a re-admission does not count again).
    cached_tokens: int | None = None
    host_hit_tokens: int = 0  # of these, from the host tier
    miss_reason: MissReason | None = None
    t_first_sched_ns: int | None = None
    t_first_token_ns: int | None = None

    @property
    def params(self) -> SamplingParams:
        return self.spec.params

    @property
    def unscored(self) -> bool:
        """Log-probabilities of its prompt are still to come: what is not computed cannot be told."""
        scores = self.prompt_logprobs
        return scores is not None and len(scores) < len(self.spec.prompt) - 1

    @property
    def live(self) -> list[Sequence]:
        """Branches that have not finished."""
        return [seq for seq in self.sequences if seq.state is not RequestState.FINISHED]


@dataclass(slots=True, eq=False)
class Sequence:
    """One branch: known tokens, how many of them are computed, and the blocks that hold them.

    ``num_computed`` chases ``num_tokens``; there is no prefill or decode state. Position ``p`` lives in slot
    ``block_table[p // block_size] * block_size + p % block_size``.
    """

    seq_id: str
    branch: int
    request: Request
    order: OrderKey
    tokens: list[int]  # prompt + output; an array (of type q) where the workload handed its numbers over packed
    num_prompt: int
    ends_at: int = 0  # known tokens at which it ends at the latest
    state: RequestState = RequestState.WAITING
    num_computed: int = 0
    block_tables: list[list[int]] = field(default_factory=lambda: [[]])  # one a KV group
    num_dropped: list[int] = field(default_factory=lambda: [0])  # leading NULL entries of each table
    host_table: list[int] = field(default_factory=list)  # host blocks of the first ``num_swapped`` tokens
    num_swapped: int = 0
    promised: int = 0  # blocks promised at admission and not allocated yet
    # Prefix keys, one a whole block, each computed once however often the sequence is retried.
    keys: list[int] = field(default_factory=list)
    key_tokens: list[Packed] = field(default_factory=list)  # of each key: the tokens of its block
    num_published: int = 0  # leading blocks of the table that are published nodes of the tree
    cache_epoch: int = -1  # epoch of the cache at admission; an older one never publishes
    high_water: int = 0  # positions below it were computed (or cached) before: computing them again is recomputation
    cached_tokens: int = 0  # taken from the cache at first admission (branch 0; others start from a fork)
    computed_tokens: int = 0  # positions computed for the first time
    restored_tokens: int = 0
    recomputed_tokens: int = 0
    num_preemptions: int = 0
    preempted_ns: int = 0  # total time between a preemption and the next admission
    t_preempted_ns: int | None = None
    t_first_token_ns: int | None = None
    t_last_token_ns: int | None = None
    t_done_ns: int | None = None
    itl_max_ns: int | None = None
    peak_blocks: int = 0
    saved_blocks: int = 0  # table entries it did not need a block of its own for: hits in use, forks, less copies
    peak_saved: int = 0
    wait_reason: WaitReason | None = None
    wait_blocker: str | None = None
    wait_since_step: int = 0
    finish_reason: FinishReason | None = None
    abort_requested: bool = False
    # A beam whose row is computed: (token, log-probability), best first, until its group has chosen. It has nothing to
    # compute meanwhile; without blocks it is set aside in the queue.
    candidates: tuple[tuple[int, float], ...] = ()
    match_memo: tuple[int, int, int] = (-1, 0, 0)  # (version of the tree, known tokens, tokens a lookup found)
    text: TextStream | None = None  # of its output, where stop strings were given

    def branch_off(self, step: int) -> Sequence:
        """A new branch of the same request with the tokens of this one, in no queue and without blocks."""
        request, branch = self.request, len(self.request.sequences)
        child = Sequence(
            seq_id=f"{request.request_id}#{branch}",
            branch=branch,
            request=request,
            order=(*self.order[:3], branch),
            tokens=list(self.tokens),
            num_prompt=self.num_prompt,
            ends_at=self.ends_at,
            keys=list(self.keys),
            key_tokens=list(self.key_tokens),
            high_water=self.high_water,
            t_first_token_ns=self.t_first_token_ns,
            t_last_token_ns=self.t_last_token_ns,
            wait_since_step=step,
            text=None if self.text is None else self.text.copy(),
        )
        request.sequences.append(child)
        request.num_live += 1
        return child

    def start_over(self, other: Sequence, now_ns: int) -> None:
        """Know what ``other`` knows, and nothing of its own: a beam in no queue and without blocks."""
        self.tokens, self.keys, self.key_tokens = list(other.tokens), list(other.keys), list(other.key_tokens)
        self.high_water, self.match_memo = other.high_water, (-1, 0, 0)
        if self.t_preempted_ns is not None:
            self.preempted_ns += now_ns - self.t_preempted_ns
            self.t_preempted_ns = None

    @property
    def block_table(self) -> list[int]:
        """The table of the first KV group: the only one of most models."""
        return self.block_tables[0]

    @block_table.setter
    def block_table(self, table: list[int]) -> None:
        self.block_tables[0] = table

    @property
    def num_held(self) -> int:
        """Blocks in all tables."""
        tables = self.block_tables
        if len(tables) == 1:
            return len(tables[0]) - self.num_dropped[0]
        return sum(map(len, tables)) - sum(self.num_dropped)

    def held_blocks(self) -> list[tuple[int, int]]:
        """(group, block) of every table entry that is not NULL, tail first."""
        held = []
        for index in range(max(map(len, self.block_tables)) - 1, -1, -1):
            for group, table in enumerate(self.block_tables):
                if index < len(table) and table[index] != NULL_BLOCK:
                    held.append((group, table[index]))
        return held

    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt + output."""
        return len(self.tokens)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def output(self) -> list[int]:
        return list(self.tokens[self.num_prompt :])

    @property
    def params(self) -> SamplingParams:
        return self.request.spec.params
