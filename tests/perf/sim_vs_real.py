"""This machine against its simulation: calibrate on one workload, predict another.

    python tests/perf/sim_vs_real.py [--rounds 3] [--model default] [--threads N] [--keep DIR]

Each round runs the calibration workload, then the predicted one, with the real model (torch) in real time: what else
happens on the machine meanwhile happens to both. Then the constants are fitted to the steps of the calibration runs,
and the predicted workload is run once more, simulated. Compared are its statistics with the mean of the real runs'. The
spread is that between the rounds: where it is wide, the machine was not quiet, and no prediction could be better.
Exit code 1: a difference above 10 %.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean

from kvtop.analysis.measures import MEASURES
from kvtop.analysis.summary import RunSummary, load_run

CALIBRATION = ("-w", "poisson-shared-prefix", "--limit", "24", "--time-scale", "4")
PREDICTED = ("-w", "azure-conv", "--limit", "20", "--length-scale", "0.25", "--time-scale", "16")
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


def compare(real: list[dict[str, float]], simulated: dict[str, float]) -> float:
    """Print a line a measure; returns the largest relative difference."""
    print(f"\n{'':18}{'real':>12}{'spread':>9}{'simulated':>12}{'difference':>12}")
    worst = 0.0
    for key in COMPARED:
        each = [run[key] for run in real]
        middle = mean(each)
        off = simulated[key] / middle - 1
        worst = max(worst, abs(off))
        unit, scale = ("ms", 1e6) if key.endswith("_ns") else ("/s", 1.0)
        name = f"{key.rpartition('_')[0]} {unit}"
        spread = (max(each) - min(each)) / middle
        print(f"{name:18}{middle / scale:12,.1f}{spread:9.0%}{simulated[key] / scale:12,.1f}{off:+12.1%}")
    print(f"\nlargest difference {worst:.1%} (limit {LIMIT:.0%})")
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="default")
    parser.add_argument("--threads", type=int, help="OMP_NUM_THREADS (default: as it is)")
    parser.add_argument("--keep", type=Path, help="keep the runs there")
    args = parser.parse_args()
    env = {**os.environ} | ({"OMP_NUM_THREADS": str(args.threads)} if args.threads else {})
    with tempfile.TemporaryDirectory() as temp:
        folder = args.keep or Path(temp)
        model = ("-m", args.model)
        measured, predicted = [], []
        for index in range(args.rounds):
            measured.append(bench(folder / f"calibration-{index}", *CALIBRATION, *model, env=env))
            predicted.append(bench(folder / f"real-{index}", *PREDICTED, *model, env=env))
            print(f"round {index + 1} of {args.rounds} measured", file=sys.stderr)
        cost = folder / "cost.json"
        print(kvtop("calibrate", *map(str, measured), "-o", str(cost), env=env))
        simulated = bench(folder / "simulated", *PREDICTED, "--executor", "sim", "--cost-model", str(cost), env=env)
        worst = compare([values(load_run(run)) for run in predicted], values(load_run(simulated)))
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
