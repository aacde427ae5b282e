"""What one step computes, and who computes it: chunks, the plan, the samples, the executor's contract.

What a step makes by the hundred is a msgspec struct: as a frozen dataclass it takes five times as long to make. With
``gc=False`` the garbage collector does not look at it: it never is part of a cycle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from kvtop.engine.sequence import Sequence

NULL_BLOCK = -1
"""Entry of a block table whose block fell out of the group's window: nothing is there and nobody reads it."""


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
