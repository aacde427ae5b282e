"""A recorded server run against its simulation: the same arrivals and lengths, first by the preset, then fitted.

    python tests/perf/sim_vs_recorded.py DIR [--gpu rtx-pro-6000] [--model llama-3.1-8b] [--json]

DIR holds ``meta.json`` (the server's settings) and ``requests.jsonl``, one request a line: input_toks, output_toks,
queued_ts, first_token_ts, last_token_ts (seconds of one monotonic clock; arrival_time is of another clock and is not
read). Three constants are fitted: the share of the arithmetic that matrix products reach, the share of the bandwidth
that reading K and V reaches, and the fixed cost of a step. The preset's other constants stay. The fit minimises the
errors of the statistics printed, over all requests, and then over the even ones only, for the odd ones to test.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from kvtop.cost.presets import GENERIC, Efficiency, machine_of, preset_cost, work_of
from kvtop.engine.api import Engine, EngineConfig, RequestSpec, SamplingParams
from kvtop.engine.executors.sim import SimExecutor
from kvtop.engine.executors.sim_cost import CostModel
from kvtop.model_shape import ModelShape, find_shape
from kvtop.presets import GpuPreset, gpu_name, gpu_preset

BLOCK_SIZE, UTILISATION = 16, 0.9  # the server's defaults
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
MEASURES = ("TTFT", "TPOT", "E2E")
FITTED = ("matrices", "cache", "step_ns")
LIMITS = ((0.05, 1.0), (0.05, 1.0), (1e4, 2e7))
EVALUATIONS = 60


@dataclass(frozen=True)
class Recorded:
    """Seconds from the first arrival; ``measured`` has a row a measure, in ms, NaN where a request has none."""

    arrivals: np.ndarray
    prompts: list[int]
    outputs: list[int]
    measured: np.ndarray
    settings: dict[str, object]


def read(folder: Path) -> Recorded:
    lines = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    queued, first, last = (np.array([r[k] for r in lines]) for k in ("queued_ts", "first_token_ts", "last_token_ts"))
    outputs = [r["output_toks"] for r in lines]
    settings = json.loads((folder / "meta.json").read_text())["engine_kwargs"]
    measured = measures(queued, first, last, outputs)
    return Recorded(queued - queued[0], [r["input_toks"] for r in lines], outputs, measured, settings)


def measures(arrivals: np.ndarray, first: np.ndarray, last: np.ndarray, outputs: list[int]) -> np.ndarray:
    """TTFT, TPOT and E2E of each request in ms, from seconds."""
    gaps = np.array([n - 1 if n > 1 else np.nan for n in outputs])
    return np.stack([first - arrivals, (last - first) / gaps, last - arrivals]) * 1e3


def simulate(recorded: Recorded, cost: CostModel, num_blocks: int) -> np.ndarray:
    """The same requests through kvtop's scheduler under the server's limits; measures as ``Recorded.measured``."""
    config = EngineConfig(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=int(str(recorded.settings["max_num_seqs"])),
        max_batched_tokens=int(str(recorded.settings["max_num_batched_tokens"])),
    )
    engine = Engine(config, SimExecutor(cost, BLOCK_SIZE))
    due = [round(t * 1e9) for t in recorded.arrivals]
    size, position = len(due), 0
    first, last = np.zeros(size), np.zeros(size)
    while position < size or engine.has_requests:
        now = engine.clock.now_ns()
        while position < size and due[position] <= now:
            begin = position * 100_000  # nobody shares a prefix
            prompt = range(begin, begin + recorded.prompts[position])
            params = SamplingParams(max_tokens=recorded.outputs[position])
            engine.submit_spec(RequestSpec(prompt, params, request_id=str(position), arrival_ns=due[position]))
            position += 1
        if not engine.has_requests:
            engine.clock.skip(due[position] - now)
            continue
        out = engine.step()
        done = engine.clock.now_ns() / 1e9
        for request_id in out.tokens:
            last[int(request_id)] = done
            first[int(request_id)] = first[int(request_id)] or done
    return measures(recorded.arrivals, first, last, recorded.outputs)


def statistics(values: np.ndarray) -> np.ndarray:
    """Shape (measures, statistics)."""
    quantiles = np.nanquantile(values, [0.5, 0.9, 0.95, 0.99], axis=1).T
    return np.column_stack([np.nanmean(values, axis=1), quantiles])


def fit(loss: Callable[[np.ndarray], float], start: np.ndarray) -> np.ndarray:
    """Nelder and Mead's simplex over the logarithms, a fixed number of evaluations."""
    points = [start, *(start + 0.25 * row for row in np.eye(len(start)))]
    values = [loss(p) for p in points]
    for _ in range(EVALUATIONS - len(points)):
        order = np.argsort(values)
        points, values = [points[i] for i in order], [values[i] for i in order]
        centre = np.mean(points[:-1], axis=0)
        trial = centre + (centre - points[-1])
        value = loss(trial)
        if value < values[0]:
            further = centre + 2 * (centre - points[-1])
            if (better := loss(further)) < value:
                trial, value = further, better
        elif value >= values[-2]:
            trial = centre + 0.5 * (points[-1] - centre)
            value = loss(trial)
            if value >= values[-1]:
                points = [points[0], *(points[0] + 0.5 * (p - points[0]) for p in points[1:])]
                values = [values[0], *(loss(p) for p in points[1:])]
                continue
        points[-1], values[-1] = trial, value
    return points[int(np.argmin(values))]


class Study:
    """One recording, one GPU, one model."""

    def __init__(self, recorded: Recorded, shape: ModelShape, name: str, gpu: GpuPreset) -> None:
        self.recorded, self.gpu = recorded, gpu
        self.generic = preset_cost(shape, name, gpu)
        room = int(gpu.memory_bytes * UTILISATION) - self.generic.work.weight_bytes
        self.num_blocks = room // (self.generic.work.pool_bytes_per_token * BLOCK_SIZE)
        self.work = work_of(shape)

    def cost(self, logs: np.ndarray) -> CostModel:
        return CostModel(name="fitted", work=self.work, machine=machine_of(self.gpu, efficiency(logs)))

    def run(self, cost: CostModel) -> np.ndarray:
        return simulate(self.recorded, cost, self.num_blocks)

    def fitted(self, keep: slice) -> CostModel:
        """Constants that make the statistics of the requests in ``keep`` those that were measured."""
        wanted = statistics(self.recorded.measured[:, keep])

        def loss(logs: np.ndarray) -> float:
            found = statistics(self.run(self.cost(logs))[:, keep])
            return float(((found / wanted - 1) ** 2).mean())

        start = np.log([getattr(GENERIC, name) for name in FITTED])
        return self.cost(fit(loss, start))


def efficiency(logs: np.ndarray) -> Efficiency:
    values = [float(np.clip(v, low, high)) for v, (low, high) in zip(np.exp(logs), LIMITS, strict=True)]
    return dataclasses.replace(GENERIC, **dict(zip(FITTED, values, strict=True)))


def show(title: str, found: np.ndarray, measured: np.ndarray) -> float:
    """Print a table; returns the largest relative error."""
    want, have = statistics(measured), statistics(found)
    error = have / want - 1
    print(f"\n{title}")
    print(f"  {'ms':10}{'measured':>12}{'simulated':>12}{'error':>9}")
    for row, measure in enumerate(MEASURES):
        for column, statistic in enumerate(STATISTICS):
            numbers = f"{want[row, column]:12,.1f}{have[row, column]:12,.1f}{error[row, column]:+9.1%}"
            print(f"  {measure + ' ' + statistic:10}{numbers}")
    worst = float(np.abs(error).max())
    print(f"  largest error {worst:.1%}")
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu", default="rtx-pro-6000-96gb")
    parser.add_argument("--model", default="llama-3.1-8b")
    args = parser.parse_args()
    recorded = read(args.folder)
    study = Study(recorded, find_shape(args.model), gpu_name(args.gpu), gpu_preset(args.gpu))
    limits = f"{recorded.settings['max_num_seqs']} sequences, budget {recorded.settings['max_num_batched_tokens']}"
    print(f"{len(recorded.prompts)} requests, {limits}, {study.num_blocks:,} blocks of {BLOCK_SIZE}")
    show(f"preset ({study.generic.name}), nothing fitted", study.run(study.generic), recorded.measured)
    fitted = study.fitted(slice(None))
    worst = show("three constants fitted to all requests", study.run(fitted), recorded.measured)
    print(f"  {msgspec.to_builtins(fitted.machine)}")
    half = study.run(study.fitted(slice(0, None, 2)))
    show("fitted to the even requests, tested on the odd ones", half[:, 1::2], recorded.measured[:, 1::2])
    return 0 if worst <= 0.08 else 1


if __name__ == "__main__":
    sys.exit(main())
