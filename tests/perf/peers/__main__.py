"""The same requests through kvtop and its peers on this machine, interleaved: one table of ratios.

    python tests/perf/peers [--repeats 3] [--only kvtop generate] [--vllm-python PATH] [--llama-python PATH]

48 requests, all there from the start: prompts of 16 to 384 tokens, half of them behind one system prompt of 160
tokens, answers of 8 to 96, greedy, SmolLM2 in fp32 on the CPU. Every peer is a process of its own that loads the model
once; the others are stopped (SIGSTOP) while one runs. Four requests warm each up beforehand. vLLM takes part with the
Python of an environment that has it: ``--vllm-python``; llama.cpp with one that has xllamacpp: ``--llama-python``. A
peer that fails is left out with its reason. Figures are medians over the repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from agreement import agreement
from llama_gguf import write_fp32
from report import Run, table
from workload import requests as make_requests

HERE = Path(__file__).parent
WARM_UP = 4  # requests
PEERS = ("kvtop", "generate", "generate_batch", "vllm", "llama_cpp")
NEEDS = {"vllm": ("--vllm-python", "vllm"), "llama_cpp": ("--llama-python", "xllamacpp")}
"""Peers of another environment: the option that names its Python, and what can be imported there."""


class PeerFailed(Exception):
    """It is left out of the table; what the others did stays."""


class Process:
    """One peer; stopped unless it runs."""

    def __init__(self, name: str, python: str, model: str, threads: int) -> None:
        self.name = name
        script = HERE / f"peer_{name}.py"
        self.said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [python, str(script), model, str(threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.said,
                text=True,
                env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": str(threads)},
                start_new_session=True,
            )
        except OSError as error:
            raise PeerFailed(f"{python} cannot be started: {error.strerror}") from error
        hello = self._read()
        self.version, self.setting = hello["version"], hello["setting"]
        self._signal(signal.SIGSTOP)

    def run(self, requests: list[dict]) -> Run:
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(requests) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise PeerFailed(self._last_words()) from error
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
        log = os.environ.get("KVTOP_PEERS_LOG")
        if log and not self.said.closed:
            self.said.seek(0)
            with open(log, "a") as file:
                file.write(self.said.read())
        self.said.close()

    def _read(self) -> dict:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
            words = self._last_words()
            self.close()
            raise PeerFailed(words)
        return json.loads(line)

    def _last_words(self) -> str:
        """The last line it printed, which is a traceback's error."""
        self.said.seek(0)
        lines = [line.strip() for line in self.said if line.strip()]
        return f"ended early: {lines[-1] if lines else 'it said nothing'} (KVTOP_PEERS_LOG=FILE keeps what it said)"

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError as error:
            raise PeerFailed(self._last_words()) from error


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=PEERS)
    parser.add_argument("--vllm-python", help="Python of an environment in which vllm can be imported")
    parser.add_argument("--llama-python", help="Python of an environment in which xllamacpp can be imported")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, help="also write every run's figures to this file")
    arguments = parser.parse_args()
    pythons = {"vllm": arguments.vllm_python, "llama_cpp": arguments.llama_python}
    wanted = arguments.only or [p for p in PEERS if p not in NEEDS or pythons[p]]
    for name in wanted:
        if name in NEEDS and not pythons[name]:
            option, package = NEEDS[name]
            sys.exit(f"{name} needs {option}: the Python of an environment in which {package} can be imported")

    model = model_folder()
    requests = make_requests()
    limits = measure_limits(arguments.threads)
    scratch = tempfile.TemporaryDirectory(prefix="kvtop-peers-")
    processes: list[Process] = []
    runs: dict[str, list[Run]] = {name: [] for name in wanted}
    try:
        for name in wanted:
            say(f"loading {name}")
            try:
                path = gguf_file(scratch.name) if name == "llama_cpp" else model
                processes.append(Process(name, pythons.get(name) or sys.executable, path, arguments.threads))
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
        if len(runs) > 1:
            print(agreement(requests, {name: kept[0].tokens for name, kept in runs.items()}, model))
        if arguments.json:
            figures = {name: [{"tokens": r.tokens, "times": r.times} for r in kept] for name, kept in runs.items()}
            arguments.json.write_text(json.dumps({"requests": requests, "limits": limits, "runs": figures}))
    finally:
        for process in processes:
            process.close()
        scratch.cleanup()


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


def gguf_file(folder: str) -> str:
    """The same weights in fp32 as a GGUF file, written to ``folder``."""
    from kvtop.engine.executors.models import resolve

    source, target = resolve("smollm2").path, Path(folder) / "fp32.gguf"
    assert source is not None  # the name of a file that a package brings
    try:
        write_fp32(source, target)
    except OSError as error:
        raise PeerFailed(f"{target} cannot be written: {error.strerror}") from error
    return str(target)


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
