"""How a peer is driven: one process that loads a model once and serves the same requests as often as it is told to.

Standard library only, since a peer may run in another environment than kvtop's. Arguments: the model, the number of
threads, a JSON file of the requests. A line of standard input is how many of them, from the first on, to serve now. A
peer's standard output belongs to the answers (one JSON object a line); whatever its libraries print goes to standard
error.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

Requests = list[tuple[list[int], int]]
"""(prompt token ids, number of tokens to generate) of every request, all of them there from the start."""
PR_SET_PDEATHSIG = 1


@dataclass
class Answer:
    """Token ids of every request, and the time (s, of one clock) each was known at; ``start``: when all were there.

    A peer that does not tell the time of every token leaves times out, but never that of a request's last token.
    """

    start: float
    tokens: list[list[int]]
    times: list[list[float]]


@dataclass
class Peer:
    """What a peer's module makes: its version, how it is set up, and what serves the requests."""

    version: str
    setting: str
    run: Callable[[Requests], Answer]


def serve(load: Callable[[str, int], Peer]) -> None:
    """Body of a peer's process: ``load(model, threads)``, then one run for every line of standard input."""
    end_with_parent()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    model, threads, path = sys.argv[1:]
    with open(path) as file:
        requests = [(request["prompt"], request["num_tokens"]) for request in json.load(file)]
    peer = load(model, int(threads))
    _say(out, {"version": peer.version, "setting": peer.setting})
    for line in sys.stdin:
        answer = peer.run(requests[: int(line)])
        times = [[t - answer.start for t in request] for request in answer.times]
        _say(out, {"tokens": answer.tokens, "times": times})


def end_with_parent() -> None:
    """A stopped process does not notice that its standard input has ended: let the kernel kill it (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _say(out, message: dict) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()
