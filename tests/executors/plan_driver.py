"""Plans made by hand, without the engine: shuffled blocks in a pool full of NaN, all prompts served together."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence as Seq

from kvtop.engine.executors.torch_executor import TorchExecutor
from kvtop.engine.sequence import Request, Sequence
from kvtop.engine.types import Chunk, Plan, RequestSpec, SamplingParams

_numbers = itertools.count()


def poison(executor: TorchExecutor) -> None:
    """Fill the whole pool with NaN."""
    for tensor in (*executor.pool.k.values(), *executor.pool.v.values()):
        tensor.fill_(float("nan"))


def make_sequence(
    prompt: Seq[int], table: list[int], params: SamplingParams | None = None, *, submission: int | None = None
) -> Sequence:
    number = next(_numbers) if submission is None else submission
    spec = RequestSpec(prompt=list(prompt), params=params or SamplingParams())
    request = Request(f"r{number}", spec, number, 0, 0)
    return Sequence(f"r{number}", 0, request, (0, 0, number, 0), list(prompt), len(prompt), block_tables=[table])


def serve(
    executor: TorchExecutor, prompts: Seq[Seq[int]], num_output: int, *, block_size: int = 16, budget: int | None = None
) -> list[list[int]]:
    """Greedy outputs of all prompts: chunks of at most ``budget`` tokens a step over all sequences."""
    pages = [-(-(len(p) + num_output) // block_size) for p in prompts]
    executor.allocate(sum(pages) + 5, block_size)
    poison(executor)
    ids = list(range(sum(pages) + 5))
    random.Random(0).shuffle(ids)
    seqs = [make_sequence(p, [ids.pop() for _ in range(n)]) for p, n in zip(prompts, pages, strict=True)]
    for step in itertools.count():
        chunks, left = [], budget or 1 << 30
        for seq in sorted(seqs, key=lambda s: s.num_tokens - s.num_computed):
            count = min(left, seq.num_tokens - seq.num_computed)
            if count and seq.num_output < num_output:
                ends = seq.num_computed + count == seq.num_tokens
                chunks.append(Chunk(seq.seq_id, seq.num_computed, count, int(ends), seq))
                left -= count
        if not chunks:
            return [s.output for s in seqs]
        result = executor.execute(Plan(step, chunks))
        for chunk in chunks:
            chunk.sequence.num_computed += chunk.count
            if chunk.num_samples:
                chunk.sequence.tokens.extend(result.samples[chunk.request_id].tokens)
    raise AssertionError("unreachable")


def compute(executor: TorchExecutor, seq: Sequence, start: int, count: int, num_samples: int = 0) -> tuple[int, ...]:
    """One chunk of one sequence; the sampled tokens."""
    result = executor.execute(Plan(0, [Chunk(seq.seq_id, start, count, num_samples, seq)]))
    seq.num_computed = start + count
    return result.samples[seq.seq_id].tokens if num_samples else ()


def prompts_of(lengths: Seq[int], vocab_size: int, seed: int = 5) -> list[list[int]]:
    stream = random.Random(seed)
    return [[stream.randrange(vocab_size) for _ in range(n)] for n in lengths]
