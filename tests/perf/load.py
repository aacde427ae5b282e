"""How long the default model takes to load, from the command to the first step: the second start and later ones.

    .venv/bin/python tests/perf/load.py [--repeat 5] [--model default]

The first start converts the model and is left out. Times are of the engine's process as the parent sees them.
"""

from __future__ import annotations

import argparse
import statistics
import time

from kvtop.engine.events import Notice, RunEnded, RunStarted, StepEvent
from kvtop.run.session import RunSession
from kvtop.run.spec import RunSpec
from kvtop.workloads.spec import WorkloadSpec

TIMEOUT_S = 120.0


def one_start(model: str) -> dict[str, float]:
    """Seconds from the start of the process to each thing it says."""
    session = RunSession(RunSpec(workload=WorkloadSpec(name="default", limit=1), model=model, device="cpu"))
    began_s = time.perf_counter()
    marks: dict[str, float] = {}
    session.start()
    try:
        while "first step" not in marks and time.perf_counter() - began_s < TIMEOUT_S:
            for event in session.poll(0.02):
                now_s = time.perf_counter() - began_s
                if isinstance(event, Notice) and event.level == "info" and "converting" not in event.text:
                    marks.setdefault(event.text, now_s)
                elif isinstance(event, RunStarted):
                    marks.setdefault("engine ready", now_s)
                elif isinstance(event, StepEvent):
                    marks.setdefault("first step", now_s)
                elif isinstance(event, RunEnded):
                    raise SystemExit(f"the run ended: {event.status} {event.error}")
    finally:
        session.stop(5.0)
    return marks


def main() -> None:
    """Print the median of every mark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--model", default="default")
    args = parser.parse_args()
    one_start(args.model)
    rounds = [one_start(args.model) for _ in range(args.repeat)]
    print(f"{'median s':>8} {'least':>6} {'most':>6}   ({args.repeat} starts after the first)")
    for name in rounds[0]:
        times = [marks[name] for marks in rounds if name in marks]
        print(f"{statistics.median(times):8.2f} {min(times):6.2f} {max(times):6.2f}   {name}")


if __name__ == "__main__":
    main()
