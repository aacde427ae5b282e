"""This machine against its simulation: calibrate on one workload, predict others.

    python tests/perf/sim_vs_real.py [--rounds 3] [--predict closed-users] [--model default] [--threads N] [--keep DIR]

Each round runs the workload made for calibration, then the predicted ones, with the real model (torch) in real time:
what else happens on the machine meanwhile happens to all. Then the constants are fitted to the steps of the calibration
runs, and the predicted workloads are run once more, simulated. Compared are their statistics with the median of the
real runs': one that another program has disturbed is left out by that. The spread is that between the rounds: where it
is wide, the machine was not quiet, and no prediction could be better. Exit code 1: a difference above 10 %.

Predicted are an open loop of a recorded trace, whose requests mostly run alone, and users in a closed loop behind one
system prompt, who run together: there the throughput follows from what steps cost.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from kvtop.analysis.measures import MEASURES
from kvtop.analysis.summary import RunSummary, load_run

CALIBRATION = ("-w", "calibration")
PREDICTED = {
    "azure-conv": ("-w", "azure-conv", "--limit", "20", "--length-scale", "0.25", "--time-scale", "8"),
    "closed-users": ("-w", "closed-users", "--limit", "48"),
}
COMPARED = (
    "ttft_mean_ns",
    "ttft_p50_ns",
    "tpot_mean_ns",
    "tpot_p50_ns",
    "e2e_mean_ns",
    "e2e_p50_ns",
    "output_tokens_s",
)
LIMIT = 0.10


def kvtop(*words: str, env: dict[str, str]) -> str:
    done = subprocess.run([sys.executable, "-m", "kvtop", *words], capture_output=True, text=True, env=env)
    if done.returncode:
        sys.exit(f"kvtop {' '.join(words)}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def bench(out: Path, *words: str, env: dict[str, str]) -> Path:
    """One run; its directory."""
    kvtop("bench", "-p", "fcfs", *words, "-o", str(out), env=env)
    return next(path.parent for path in out.glob("*/run.json"))


def values(run: RunSummary) -> dict[str, float]:
    found = {measure.key: measure.read(run) for measure in MEASURES if measure.key in COMPARED}
    return {key: float(value) for key, value in found.items() if value is not None}


def compare(name: str, real: list[dict[str, float]], simulated: dict[str, float]) -> float:
    """Print a line a measure; returns the largest relative difference."""
    print(f"\n{name:18}{'real':>12}{'spread':>9}{'simulated':>12}{'difference':>12}")
    worst = 0.0
    for key in COMPARED:
        each = [run[key] for run in real]
        middle = median(each)
        off = simulated[key] / middle - 1
        worst = max(worst, abs(off))
        unit, scale = ("ms", 1e6) if key.endswith("_ns") else ("/s", 1.0)
        label = f"{key.rpartition('_')[0]} {unit}"
        spread = (max(each) - min(each)) / middle
        print(f"{label:18}{middle / scale:12,.1f}{spread:9.0%}{simulated[key] / scale:12,.1f}{off:+12.1%}")
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--predict", action="append", choices=PREDICTED, help="only this workload (default: all)")
    parser.add_argument("--model", default="default")
    parser.add_argument("--threads", type=int, help="OMP_NUM_THREADS (default: as it is)")
    parser.add_argument("--keep", type=Path, help="keep the runs there")
    args = parser.parse_args()
    env = {**os.environ} | ({"OMP_NUM_THREADS": str(args.threads)} if args.threads else {})
    with tempfile.TemporaryDirectory() as temp:
        folder = args.keep or Path(temp)
        model = ("-m", args.model)
        measured: list[Path] = []
        predicted = {name: words for name, words in PREDICTED.items() if name in (args.predict or PREDICTED)}
        real: dict[str, list[Path]] = {name: [] for name in predicted}
        for index in range(args.rounds):
            measured.append(bench(folder / f"calibration-{index}", *CALIBRATION, *model, env=env))
            for name, words in predicted.items():
                real[name].append(bench(folder / f"{name}-{index}", *words, *model, env=env))
            print(f"round {index + 1} of {args.rounds} measured", file=sys.stderr)
        cost = folder / "cost.json"
        print(kvtop("calibrate", *map(str, measured), "-o", str(cost), env=env))
        worst = 0.0
        for name, words in predicted.items():
            sim = bench(folder / f"{name}-sim", *words, "--executor", "sim", "--cost-model", str(cost), env=env)
            off = compare(name, [values(load_run(run)) for run in real[name]], values(load_run(sim)))
            worst = max(worst, off)
        print(f"\nlargest difference {worst:.1%} (limit {LIMIT:.0%})")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
