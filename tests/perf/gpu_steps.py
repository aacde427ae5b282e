"""Decode steps of a whole model on this GPU: tokens a second by torch, by Triton, and by Triton captured in graphs.

    python tests/perf/gpu_steps.py                    needs a CUDA device: without one it says so and ends with 2
    python tests/perf/gpu_steps.py --model DIRECTORY --context 2048 --kv-dtype int8

Every step computes one token of each of ``batch`` sequences that have ``--context`` tokens already, samples them
greedily and waits for them, as serving does. Ways take turns; a figure is the median of ``--steps`` steps. Where the
ways' first tokens differ more than rounding explains, the program says so.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvtop.engine.executors.torch_executor import TorchExecutor

# isort: split
import torch

from kvtop.engine.errors import KvtopError
from kvtop.engine.executors.torch_pool import free_memory_bytes
from kvtop.engine.sequence import Request, Sequence
from kvtop.engine.types import Chunk, Plan, RequestSpec

WAYS = {"torch": ("torch", False), "Triton": ("triton", False), "Triton, captured": ("triton", True)}
BATCHES = (1, 16, 64, 256, 1000)
BLOCK_SIZE = 16
WARM_UP_STEPS = 3
MEMORY_SHARE = 0.8  # of what is free, for the pool


@dataclass(frozen=True)
class Measured:
    step_s: float  # median
    first_tokens: list[int]


def sequences(batch: int, context: int, num_steps: int, vocab_size: int) -> list[Sequence]:
    """Sequences with shuffled blocks whose last of ``context`` tokens is still to be computed."""
    pages = -(-(context + num_steps) // BLOCK_SIZE)
    stream = random.Random(0)
    ids = list(range(batch * pages))
    stream.shuffle(ids)
    found = []
    for i in range(batch):
        tokens = [stream.randrange(vocab_size) for _ in range(context)]
        request = Request(f"r{i}", RequestSpec(prompt=tokens), i, 0, 0)
        tables = [ids[i * pages : (i + 1) * pages]]
        found.append(
            Sequence(f"r{i}", 0, request, (0, 0, i, 0), tokens, context, num_computed=context - 1, block_tables=tables)
        )
    return found


def measure(executor: TorchExecutor, batch: int, context: int, num_steps: int, captured: bool) -> Measured:
    """Steps over a pool of random K and V, the same for every way."""
    total = num_steps + WARM_UP_STEPS
    seqs = sequences(batch, context, total, executor.vocab_size)
    num_blocks = batch * len(seqs[0].block_tables[0])
    executor.allocate(num_blocks, BLOCK_SIZE, max_num_seqs=batch if captured else None)
    stream = torch.Generator(device=executor.device).manual_seed(0)
    for tensor in executor.pool.tensors:
        if tensor.is_floating_point() and tensor.dim() == 4:
            tensor.normal_(generator=stream)
        else:  # quantised numbers, or their scales
            tensor.fill_(1)
    times, first = [], []
    for step in range(total):
        begin = time.perf_counter()
        chunks = [Chunk(seq.seq_id, seq.num_computed, 1, 1, seq) for seq in seqs]
        samples = executor.execute(Plan(step, chunks)).samples
        for seq in seqs:
            seq.num_computed += 1
            seq.tokens.extend(samples[seq.seq_id].tokens)
        times.append(time.perf_counter() - begin)
        first = first or [seq.tokens[-1] for seq in seqs]
    return Measured(statistics.median(times[WARM_UP_STEPS:]), first)


def fits(executor: TorchExecutor, batch: int, context: int, num_steps: int) -> bool:
    pages = -(-(context + num_steps + WARM_UP_STEPS) // BLOCK_SIZE)
    torch.cuda.empty_cache()
    need = batch * pages * executor.kv_bytes_per_block(BLOCK_SIZE)
    return need < MEMORY_SHARE * free_memory_bytes(executor.device)


def rows(executors: dict[str, TorchExecutor], batches: Iterable[int], context: int, num_steps: int) -> Iterator[str]:
    """Lines of a Markdown table."""
    yield f"| batch | {' | '.join(f'{name}, tokens/s | ms a step' for name in executors)} | captured / torch |"
    yield "|---:|" + "---:|" * (2 * len(executors) + 1)
    for batch in batches:
        if not all(fits(executor, batch, context, num_steps) for executor in executors.values()):
            yield f"| {batch:,} |" + " |" * (2 * len(executors)) + " no room |"
            continue
        found = {}
        for name, executor in executors.items():
            found[name] = measure(executor, batch, context, num_steps, WAYS[name][1])
            executor.allocate(1, BLOCK_SIZE)
        for name, other in found.items():
            same = sum(a == b for a, b in zip(other.first_tokens, found["torch"].first_tokens, strict=True))
            if same < 0.9 * batch - 1:  # best tokens of random K and V lie close together: some differ by rounding
                print(f"batch {batch}: {name} gives {same} of {batch} first tokens of torch", file=sys.stderr)
        cells = [f"{batch / f.step_s:,.0f} | {f.step_s * 1e3:.2f}" for f in found.values()]
        ratio = found["torch"].step_s / found["Triton, captured"].step_s
        yield f"| {batch:,} | {' | '.join(cells)} | {ratio:.2f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--context", type=int, default=512, help="tokens of every sequence at the start (default 512)")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, action="append", help="may be given several times; default 1 to 1,000")
    parser.add_argument("--dry-run", action="store_true", help=argparse.SUPPRESS)  # tiny, on the CPU, interpreted
    args = parser.parse_args()
    if not args.dry_run and not torch.cuda.is_available():
        print("kvtop: tests/perf/gpu_steps.py measures steps on a CUDA device, and there is none", file=sys.stderr)
        return 2
    device, model = ("cpu", "tiny") if args.dry_run else ("cuda", args.model)
    context, num_steps = (5, 1) if args.dry_run else (args.context, args.steps)
    batches = args.batch or ([1, 3] if args.dry_run else list(BATCHES))
    try:
        loaded = TorchExecutor.load(model, device=device, attention="triton")
        executors = {name: loaded.with_kv_dtype(args.kv_dtype, attention) for name, (attention, _) in WAYS.items()}
    except KvtopError as error:
        print(f"kvtop: {error}", file=sys.stderr)
        return error.exit_code
    if args.dry_run:
        executors["Triton, captured"].make_capture = lambda: lambda run: run
    place = "a dry run, no measurement" if args.dry_run else torch.cuda.get_device_name()
    stored = executors["torch"].stored_dtype
    print(f"{place}: {loaded.info.name}, {loaded.info.dtype}, K and V {stored}, {context:,} tokens at the start, "
          f"blocks of {BLOCK_SIZE}, torch {torch.__version__}\n")  # fmt: skip
    for line in rows(executors, batches, context, num_steps):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
