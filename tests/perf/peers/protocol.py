"""How a peer is driven: one process that loads a model once and serves the same requests as often as it is told to.

Standard library only, since a peer may run in another environment than kvtop's. A peer's standard output belongs to
the answers (one JSON object a line); whatever its libraries print goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

Requests = list[tuple[list[int], int]]
"""(prompt token ids, number of tokens to generate) of every request, all of them there from the start."""


@dataclass
class Answer:
    """Token ids of every request, and the time (s, of one clock) each was known at; ``start``: when all were there."""

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
    """Body of a peer's process: ``load(model directory, threads)``, then one run for every line of standard input."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    peer = load(sys.argv[1], int(sys.argv[2]))
    _say(out, {"version": peer.version, "setting": peer.setting})
    for line in sys.stdin:
        answer = peer.run([(request["prompt"], request["num_tokens"]) for request in json.loads(line)])
        times = [[t - answer.start for t in request] for request in answer.times]
        _say(out, {"tokens": answer.tokens, "times": times})


def _say(out, message: dict) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()
