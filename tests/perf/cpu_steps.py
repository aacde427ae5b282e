"""How near a step of the torch executor on the CPU comes to what this machine can do, and where the rest goes.

    python tests/perf/cpu_steps.py                 about 2 minutes on two cores
    python tests/perf/cpu_steps.py --rounds 3      quicker, coarser

First the machine: reading memory, and fp32 products of the model's shapes by torch and by kvtop's kernel. Then steps of
the executor: their bound is the larger of (bytes of weights and of K and V) / read bandwidth and (2 x weights x rows) /
the best product rate seen. Everything is tried ``--rounds`` times in turn, and the best try is shown: other work on the
machine then spoils few figures.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import kvtop.engine.executors.omp  # noqa: F401

# isort: split
import torch
from limits import ROWS, SHAPES, gemm_gflops, read_gb_per_s

from kvtop.engine.executors.torch_executor import TorchExecutor
from kvtop.engine.sequence import Request, Sequence
from kvtop.engine.types import Chunk, Plan, RequestSpec
from kvtop.kernels.cpu import jit, ops
from kvtop.kernels.cpu.jobs import Jobs

BLOCK_SIZE = 16
DECODES = tuple(itertools.product((64, 600), (1, 4, 16, 32)))  # (context, sequences)
PREFILLS = (16, 64, 128, 384)
PARTS = {"attention": "attention", "packed": "linears"} | dict.fromkeys(
    ("rms_norm", "add_norm", "rotary", "scatter", "gate"), "small"
)
COLUMNS = ("linears", "lm_head", "attention", "small", "rest")


def kernel_gflops(rows: int, tries: int) -> float:
    """As ``gemm_gflops``, by kvtop's kernel."""
    layers = [(ops.Packed([torch.randn(out, depth)], [torch.zeros(out)]) for depth, out in SHAPES) for _ in range(16)]
    products = list(itertools.chain(*layers))
    inputs = {depth: torch.randn(rows, depth) for depth, _ in SHAPES}
    outs = {out: torch.empty(rows, out) for _, out in SHAPES}

    def run() -> None:
        for product in products:
            product(inputs[product.depth], [outs[product.outputs[0]]])

    flops = 16 * sum(2 * rows * depth * out for depth, out in SHAPES)
    return flops / min(timed(run) for _ in range(tries + 1)) / 1e9


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def plan(start: int, count: int, sequences: int) -> Plan:
    """``sequences`` chunks of ``count`` tokens from position ``start``; each samples one token."""
    pages = -(-(start + count) // BLOCK_SIZE)
    chunks = []
    for i in range(sequences):
        tokens = [(7 * j + i) % 1000 for j in range(start + count)]
        request = Request(f"r{i}", RequestSpec(prompt=tokens), i, 0, 0)
        table = list(range(i * pages, (i + 1) * pages))
        seq = Sequence(request.request_id, 0, request, (0, 0, i, 0), tokens, len(tokens), block_tables=[table])
        chunks.append(Chunk(seq.seq_id, start, count, 1, seq))
    return Plan(0, chunks)


def plans() -> dict[str, Plan]:
    decodes = {f"decode {n:2} x {context}": plan(context, 1, n) for context, n in DECODES}
    return decodes | {f"prefill {n}": plan(0, n, 1) for n in PREFILLS}


class Bounds:
    """Seconds a step takes at least."""

    def __init__(self, executor: TorchExecutor, read_gb: float, gflops: float) -> None:
        self.info, self.read, self.rate = executor.info, read_gb * 1e9, gflops * 1e9
        head = executor.info.vocab_size * executor._model.config.hidden_size
        self.head, self.body = head, executor.info.num_params - head

    def of(self, step: Plan) -> float:
        rows = sum(c.count for c in step.chunks)
        kv = sum(c.start + c.count for c in step.chunks) * self.info.kv_bytes_per_token
        flops = 2 * (self.body * rows + self.head * len(step.chunks))
        return max((self.info.weight_bytes + kv) / self.read, flops / self.rate)


@contextmanager
def split_into(parts: dict[str, float], vocab_size: int) -> Iterator[None]:
    """Add the seconds of every kernel call to its part."""
    run, run_all = jit.run, jit.run_all

    def each(jobs: Jobs) -> None:
        for i in range(len(jobs.entries)):
            spent = timed(lambda i=i: run_all(jobs, i, 1))
            parts[PARTS[jobs.kernels[i % len(jobs.kernels)]]] += spent

    def measured(kernel: str, num_tasks: int, fields: list[int], threads: int | None = None) -> None:
        spent = timed(lambda: run(kernel, num_tasks, fields, threads))
        head = kernel == "packed" and fields[5] >= vocab_size // (ops.PANEL_VECTORS * jit.lanes())
        parts["lm_head" if head else PARTS[kernel]] += spent

    jit.run, jit.run_all = measured, each
    try:
        yield
    finally:
        jit.run, jit.run_all = run, run_all


def measure(executor: TorchExecutor, rounds: int) -> dict[str, tuple[float, dict[str, float]]]:
    """Best seconds of every plan, and the parts of the best try that was taken apart (measuring counts as rest)."""
    steps = plans()
    best = dict.fromkeys(steps, float("inf"))
    apart: dict[str, tuple[float, dict[str, float]]] = {}
    for name, step in itertools.chain.from_iterable([steps.items()] * rounds):
        best[name] = min(best[name], timed(lambda step=step: executor.execute(step)))
        parts: dict[str, float] = dict.fromkeys(COLUMNS, 0.0)
        with split_into(parts, executor.vocab_size):
            spent = timed(lambda step=step: executor.execute(step))
        parts["rest"] = spent - sum(parts.values())
        if name not in apart or spent < apart[name][0]:
            apart[name] = (spent, parts)
    return {name: (best[name], apart[name][1]) for name in steps}


def machine(rounds: int) -> tuple[float, float]:
    """Print and return GB/s of reading and the best GFLOP/s."""
    read, best = 0.0, 0.0
    rates: dict[int, list[float]] = {}
    for rows in ROWS:
        read = max(read, read_gb_per_s(512, rounds))
        rates[rows] = [gemm_gflops(rows, rounds), kernel_gflops(rows, rounds) if not jit.missing() else 0.0]
        best = max(best, *rates[rows])
    print(f"\n{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}; reads {read:.1f} GB/s")
    print("| rows | " + " | ".join(map(str, ROWS)) + " |")
    print("| ---: " * (len(ROWS) + 1) + "|")
    for i, name in enumerate(("torch GFLOP/s", "kvtop GFLOP/s")):
        print(f"| {name} | " + " | ".join(f"{rates[rows][i]:.0f}" for rows in ROWS) + " |")
    return read, best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=12)
    args = parser.parse_args()
    executor = TorchExecutor.load(args.model, device="cpu")
    print(f"{executor.info.name}, fp32, {executor.info.computed_by}, torch {torch.__version__}")
    with torch.inference_mode():
        bounds = Bounds(executor, *machine(max(3, args.rounds // 2)))
    longest = max(c.start + c.count for step in plans().values() for c in step.chunks)
    executor.allocate(max(n for _, n in DECODES) * -(-longest // BLOCK_SIZE), BLOCK_SIZE)
    found = measure(executor, args.rounds)
    print("\n| step | ms | bound ms | bound / time | tokens/s | " + " | ".join(COLUMNS) + " |")
    print("| --- " + "| ---: " * (4 + len(COLUMNS)) + "|")
    for name, step in plans().items():
        spent, parts = found[name]
        bound, rows = bounds.of(step), sum(c.count for c in step.chunks)
        shown = " | ".join(f"{1e3 * parts[c]:.1f}" for c in COLUMNS)
        print(
            f"| {name} | {1e3 * spent:.1f} | {1e3 * bound:.1f} | {bound / spent:.2f} | {rows / spent:.0f} | {shown} |"
        )
    print("\nsmall: norms, rotation, K and V into the pool; rest: torch operations and Python.")


if __name__ == "__main__":
    main()
