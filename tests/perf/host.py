"""What the engine's host side costs: CPU time of one process per step, per request and per scheduled sequence.

    python tests/perf/host.py [TRACE]              one run
    python tests/perf/host.py [TRACE] --profile    the same under cProfile: the functions that take most of it
    python tests/perf/host.py [TRACE] --growth     larger pools and more running requests: costs must not grow

TRACE is the Mooncake conversation trace (``conversation_trace.jsonl.gz``, its first 3,000 requests are served); without
it the 1,000 rows that kvtop ships are served. Lengths and block ids are divided by 16. There is no model: the executor
is the null one, everything is queued at the start, decisions are recorded and drained every 32 steps.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from dataclasses import dataclass

from kvtop.engine.api import Engine, EngineConfig, NullExecutor, Recorder, RequestSpec, SamplingParams
from kvtop.engine.worker import settle_memory
from kvtop.workloads.load import load_workload
from kvtop.workloads.spec import WorkloadSpec

SHIPPED = "mooncake-conversation"
LENGTH_SCALE = 1 / 16
NUM_REQUESTS, BLOCK_SIZE, VOCAB_SIZE = 3_000, 16, 32_000
DRAIN_STEPS = 32  # as the engine's process sends its frames
POOL, SEATS, BUDGET = 8_000, 256, 2_048
GROWTH = [(pool, seats) for pool in (8_000, 25_000, 100_000) for seats in (256, 1_000, 2_000)]


@dataclass
class Cost:
    """CPU time of one run (seconds) and what was done in it."""

    submit_s: float
    run_s: float
    num_requests: int
    num_steps: int
    num_chunks: int  # sequences scheduled, summed over steps
    num_blocks: int  # computed
    num_evicted: int
    num_preempted: int

    @property
    def total_s(self) -> float:
        return self.submit_s + self.run_s

    def row(self, *head: object) -> list[str]:
        per = self.run_s * 1e6
        return [
            *map(str, head),
            f"{self.num_steps:,}",
            f"{self.num_chunks / self.num_steps:,.0f}",
            f"{per / self.num_steps:,.0f}",
            f"{self.total_s * 1e6 / self.num_requests:,.0f}",
            f"{per / self.num_chunks:.2f}",
            f"{per / self.num_blocks:.2f}",
            f"{self.num_evicted:,}",
            f"{self.num_preempted:,}",
        ]


HEAD = ["steps", "sequences/step", "us/step", "us/request", "us/sequence", "us/block", "evicted", "preempted"]


def requests(trace: str | None, limit: int = NUM_REQUESTS) -> list[RequestSpec]:
    """The first requests of the trace, scaled, all due at once."""
    if trace is None:
        print(f"no trace given: the shipped 1,000 rows of {SHIPPED} are served")
    spec = WorkloadSpec(name=trace or SHIPPED, length_scale=LENGTH_SCALE, limit=limit)
    source = load_workload(spec, vocab_size=VOCAB_SIZE).source()
    specs = []
    while (due_ns := source.next_due()) is not None:
        specs += source.pop_due(due_ns)
    return specs


def made_requests(count: int, num_prompt: int, num_output: int) -> list[RequestSpec]:
    """Requests that share nothing, all of one length: every seat is taken for as long as they last."""
    params = SamplingParams(max_tokens=num_output)
    return [RequestSpec(range(i * num_prompt, (i + 1) * num_prompt), params) for i in range(count)]


def serve(specs: list[RequestSpec], pool: int, seats: int, budget: int) -> Cost:
    """Queue everything, then step until idle."""
    settle_memory()  # as in the engine's process
    recorder = Recorder()
    config = EngineConfig(
        num_blocks=pool, block_size=BLOCK_SIZE, max_num_seqs=seats, max_batched_tokens=budget, eviction="lru"
    )
    engine = Engine(config, NullExecutor(), recorder=recorder)
    num_chunks = 0
    begin = time.process_time()
    for spec in specs:
        engine.submit_spec(spec)
    submitted = time.process_time()
    while engine.has_requests:
        num_chunks += len(engine.step().plan)
        if engine.num_steps % DRAIN_STEPS == 0:
            recorder.drain()
    end = time.process_time()
    counters = engine.counters()
    num_blocks = (counters.computed_tokens + counters.recomputed_tokens) // BLOCK_SIZE
    return Cost(
        submitted - begin,
        end - submitted,
        len(specs),
        engine.num_steps,
        num_chunks,
        num_blocks,
        counters.evictions,
        counters.preemptions,
    )


def table(rows: list[list[str]], head: list[str]) -> str:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(r, widths, strict=True)) for r in [head, *rows])


def growth(specs: list[RequestSpec]) -> str:
    """Each pool with each number of seats, the budget growing with the seats: the trace, and with every seat taken."""
    parts = []
    for what in ("the trace", "every seat taken"):
        rows = []
        for pool, seats in GROWTH:
            served = specs if what == "the trace" else made_requests(2 * seats, 32, 32)
            rows.append(serve(served, pool, seats, BUDGET * seats // SEATS).row(f"{pool:,}", f"{seats:,}"))
        parts.append(f"{what}\n{table(rows, ['pool', 'seats', *HEAD])}")
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--repeat", type=int, default=1)
    args = parser.parse_args()
    specs = requests(args.trace)
    if args.growth:
        print(growth(specs))
    elif args.profile:
        profile = cProfile.Profile()
        profile.runcall(serve, specs, POOL, SEATS, BUDGET)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    else:
        print(table([serve(specs, POOL, SEATS, BUDGET).row() for _ in range(args.repeat)], HEAD))


if __name__ == "__main__":
    main()
