"""The same requests through kvtop and its peers on this machine, interleaved: one table of ratios.

    python tests/perf/peers [--repeats 3] [--only kvtop generate] [--vllm-python PATH] [--llama-python PATH]

48 requests, all there from the start: prompts of 16 to 384 tokens, half of them behind one system prompt of 160
tokens, answers of 8 to 96, greedy, SmolLM2 in fp32 on the CPU. Every peer is a process of its own that loads the model
once; the others are stopped (SIGSTOP) while one runs. Four requests warm each up beforehand. docs/benchmarks.md says
how the environments of vLLM and llama.cpp are made, and what the table's columns mean. A peer that is not installed,
fails, or is cut off after ``--timeout`` has its reason in the table. Ctrl-C ends all peers and prints what is complete.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USERS_ENVIRONMENT = dict(os.environ)
"""Before kvtop is imported: its wait policy for OpenMP threads is not every peer's."""

from agreement import agreement  # noqa: E402
from installed import ELSEWHERE, PEERS, missing  # noqa: E402
from llama_gguf import write_fp32  # noqa: E402
from process import HERE, PeerFailed, Process  # noqa: E402
from report import Result, table  # noqa: E402
from workload import requests as make_requests  # noqa: E402

WARM_UP = 4  # requests
INTERRUPTED = 130


def main() -> int:
    arguments = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what it started is ended, too
    pythons = {"vllm": arguments.vllm_python, "llama_cpp": arguments.llama_python}
    results = {name: Result(problem=missing(name, pythons.get(name))) for name in arguments.only or PEERS}
    for name, result in results.items():
        if result.problem is not None:
            say(f"{name}: {result.problem}")
    if all(result.problem is not None for result in results.values()):
        return 1
    model, requests, interrupted = model_folder(), make_requests()[: arguments.requests], False
    limits = measure_limits(arguments.threads)
    with tempfile.TemporaryDirectory(prefix="kvtop-peers-") as scratch:
        bench = Bench(arguments, pythons, model, requests, Path(scratch))
        try:
            bench.measure(results)
        except KeyboardInterrupt:
            interrupted = True
            for result in results.values():
                if len(result.runs) < arguments.repeats:
                    result.problem = result.problem or "interrupted"
        finally:
            bench.close()
    print(table(requests, results, limits), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"requests": requests, "limits": limits, "peers": as_json(results)}))
    if interrupted:
        say("interrupted: the table has the runs that were complete")
        return INTERRUPTED
    answers = {name: [run.tokens for run in result.runs.values()] for name, result in results.items() if result.runs}
    print(agreement(requests, answers, model))
    return 0 if answers else 1


class Bench:
    """The peers' processes, and what they are given."""

    def __init__(
        self, arguments: argparse.Namespace, pythons: dict, model: str, requests: list[dict], scratch: Path
    ) -> None:
        self.arguments, self.pythons, self.model = arguments, pythons, model
        self.requests, self.scratch = requests, scratch
        self.processes: list[Process] = []

    def measure(self, results: dict[str, Result]) -> None:
        """Load every peer that has no problem, warm it up, then let them take turns; fills ``results``."""
        for name, result in results.items():
            if result.problem is None:
                say(f"loading {name}")
                with noted(name, result):
                    self._load(name, result)
        for repeat in range(self.arguments.repeats + 1):
            for process in self.processes:
                result = results[process.name]
                if result.problem is None:
                    with noted(process.name, result):
                        self._run(process, result, repeat)
                if result.problem is not None:
                    process.close()  # it would keep its memory, and a core if it can be stopped no more

    def close(self) -> None:
        for process in self.processes:
            process.close()

    def _load(self, name: str, result: Result) -> None:
        model = gguf_file(self.scratch) if name == "llama_cpp" else self.model
        path, threads = self.scratch / "requests.json", str(self.arguments.threads)
        path.write_text(json.dumps(self.requests))
        command = [self.pythons.get(name) or sys.executable, str(HERE / f"peer_{name}.py"), model, threads, str(path)]
        environment = {**USERS_ENVIRONMENT, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": threads}
        process = Process(name, command, self.requests, self.arguments.timeout, environment)
        self.processes.append(process)
        process.load()
        result.version, result.setting = process.version, process.setting

    def _run(self, process: Process, result: Result, repeat: int) -> None:
        run = process.run(len(self.requests) if repeat else WARM_UP)
        if repeat:
            result.runs[repeat] = run
            say(f"run {repeat}: {process.name} {run.seconds:.1f} s")


@contextmanager
def noted(name: str, result: Result) -> Iterator[None]:
    """What ends a peer's part is said at once and kept for the table."""
    try:
        yield
    except PeerFailed as error:
        result.problem = str(error)
        say(f"{name}: {error}")


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=at_least_1, default=3)
    parser.add_argument("--only", nargs="+", choices=PEERS)
    for where in ELSEWHERE.values():
        parser.add_argument(where.option, help=f"Python of an environment in which {where.module} can be imported")
    parser.add_argument("--threads", type=at_least_1, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--requests", type=at_least_1, help="only so many of the 48, for a quick look")
    parser.add_argument("--timeout", type=at_least_1, default=300, help="s a peer has to load, and for each run")
    parser.add_argument("--json", type=Path, help="also write every run's tokens and times to this file")
    return parser.parse_args(words)


def at_least_1(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, 1 or more")
    return int(text)


def as_json(results: dict[str, Result]) -> dict[str, dict]:
    return {
        name: {
            "version": result.version,
            "setting": result.setting,
            "problem": result.problem,
            "runs": [{"repeat": n, "tokens": run.tokens, "times": run.times} for n, run in result.runs.items()],
        }
        for name, result in results.items()
    }


def model_folder() -> str:
    """The directory of SmolLM2 as safetensors, converted now if it never was."""
    from kvtop.engine.executors import model_cache
    from kvtop.engine.executors.models import resolve
    from kvtop.engine.executors.torch_executor import TorchExecutor

    resolved = resolve("smollm2")
    folder = model_cache.entry(resolved.cache_key)
    if not model_cache.is_whole(folder):
        TorchExecutor.load("smollm2").close()
    return str(folder)


def gguf_file(folder: Path) -> str:
    """The same weights in fp32 as a GGUF file, written to ``folder``."""
    from kvtop.engine.executors.models import resolve

    source, target = resolve("smollm2").path, folder / "fp32.gguf"
    assert source is not None  # the name of a file that a package brings
    try:
        write_fp32(source, target)
    except OSError as error:
        raise PeerFailed(f"{target} cannot be written: {error.strerror}") from error
    return str(target)


def measure_limits(threads: int) -> dict[str, float]:
    """Of this machine: see ``limits.py``. In a process of its own, which ends before anything else is measured."""
    script = "import json, limits; print(json.dumps(limits.measure()))"
    environment = {**USERS_ENVIRONMENT, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
