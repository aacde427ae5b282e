"""The same requests through kvtop and its peers on this machine, interleaved: one table of ratios.

    python tests/perf/peers [--repeats 3] [--only kvtop generate] [--vllm-python PATH]

48 requests, all there from the start: prompts of 16 to 384 tokens, half of them behind one system prompt of 160
tokens, answers of 8 to 96, greedy, SmolLM2 in fp32 on the CPU. Every peer is a process of its own that loads the model
once; the others are stopped (SIGSTOP) while one runs. Four requests warm each up beforehand. vLLM takes part with the
Python of an environment that has it: ``--vllm-python``. Figures are medians over the repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from agreement import agreement
from report import Run, table
from workload import requests as make_requests

HERE = Path(__file__).parent
WARM_UP = 4  # requests
PEERS = ("kvtop", "generate", "generate_batch", "vllm")


class PeerFailed(Exception):
    """It is left out of the table; what the others did stays."""


class Process:
    """One peer; stopped unless it runs."""

    def __init__(self, name: str, python: str, model: str, threads: int) -> None:
        self.name = name
        script = HERE / f"peer_{name}.py"
        self.log = open(os.environ.get("KVTOP_PEERS_LOG", os.devnull), "a")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, str(script), model, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": str(threads)},
            start_new_session=True,
        )
        hello = self._read()
        self.version, self.setting = hello["version"], hello["setting"]
        self._signal(signal.SIGSTOP)

    def run(self, requests: list[dict]) -> Run:
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(requests) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        self._signal(signal.SIGSTOP)
        for request, tokens, times in zip(requests, answer["tokens"], answer["times"], strict=True):
            # A peer may leave the time of a token out; its first one tells when the request was served.
            if len(tokens) != request["num_tokens"] or not 1 <= len(times) <= len(tokens):
                raise PeerFailed(f"{len(tokens)} tokens and {len(times)} times, asked for {request['num_tokens']}")
        return Run(answer["tokens"], answer["times"])

    def close(self) -> None:
        if self._process.poll() is None:
            self._signal(signal.SIGKILL)
            self._process.wait()
        self.log.close()

    def _read(self) -> dict:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerFailed("ended early; KVTOP_PEERS_LOG=FILE keeps what it said")
        return json.loads(line)

    def _signal(self, number: int) -> None:
        os.killpg(self._process.pid, number)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=PEERS)
    parser.add_argument("--vllm-python", help="Python of an environment in which vllm can be imported")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, help="also write every run's figures to this file")
    arguments = parser.parse_args()
    wanted = arguments.only or [p for p in PEERS if p != "vllm" or arguments.vllm_python]
    if "vllm" in wanted and not arguments.vllm_python:
        sys.exit("vllm needs --vllm-python: the Python of an environment in which vllm can be imported")

    model = model_folder()
    requests = make_requests()
    limits = measure_limits(arguments.threads)
    processes: list[Process] = []
    runs: dict[str, list[Run]] = {name: [] for name in wanted}
    try:
        for name in wanted:
            say(f"loading {name}")
            python = arguments.vllm_python if name == "vllm" else sys.executable
            try:
                processes.append(Process(name, python, model, arguments.threads))
            except PeerFailed as error:
                say(f"{name} is left out: {error}")
                del runs[name]
        for repeat in range(arguments.repeats + 1):
            for process in [p for p in processes if p.name in runs]:
                try:
                    run = process.run(requests if repeat else requests[:WARM_UP])
                except PeerFailed as error:
                    say(f"{process.name} is left out: {error}")
                    del runs[process.name]
                    continue
                if repeat:
                    runs[process.name].append(run)
                    say(f"run {repeat}: {process.name} {run.seconds:.1f} s")
        print(table(requests, {p.name: (p.version, p.setting) for p in processes if p.name in runs}, runs, limits))
        for process in processes:
            process.close()
        if "generate" in runs:
            print(agreement(requests, {name: kept[0].tokens for name, kept in runs.items()}, model))
        if arguments.json:
            figures = {name: [{"tokens": r.tokens, "times": r.times} for r in kept] for name, kept in runs.items()}
            arguments.json.write_text(json.dumps({"requests": requests, "limits": limits, "runs": figures}))
    finally:
        for process in processes:
            process.close()


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


def measure_limits(threads: int) -> dict[str, float]:
    """Of this machine: see ``limits.py``. In a process of its own, which ends before anything else is measured."""
    script = "import json, limits; print(json.dumps(limits.measure()))"
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
