"""Poisson arrivals of requests that share a system prompt.

Gaps are exponential and independent; the first request arrives at 0 and the schedule is absolute. Arrivals, prompt
lengths and output lengths come from separate streams of the seed: another length range leaves the arrivals alone.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.generators.base import Generator
from kvtop.workloads.generators.options import MAX_REQUESTS, NS_PER_S, integer, lengths, number, uniform
from kvtop.workloads.rows import MAX_LENGTH_TOKENS, Row, RowSet

MAX_SAMPLES = 1024

OPTIONS: dict[str, Any] = {
    "rate": None,  # requests per second
    "num_requests": 200,
    "system_prompt_tokens": 256,  # shared by every request; 0: nothing is shared
    "user_prompt_tokens": [32, 256],  # uniform from low to high, or one number
    "output_tokens": [16, 64],
    "n": 1,  # parallel samples of each request, or answers of its beam search
    "num_beams": 1,  # above 1: beam search, which needs temperature 0 and n <= num_beams
    "temperature": 0.0,
}


def generate(options: dict[str, Any], seed: int) -> RowSet:
    """``num_requests`` rows. Same options and seed, same rows, on every machine.

    Raises:
        WorkloadError: an option that is missing, of the wrong type or out of its range.
    """
    rate = number(options, "rate", 1e-6, 1e6)
    num_requests = integer(options, "num_requests", 1, MAX_REQUESTS)
    system = integer(options, "system_prompt_tokens", 0, MAX_LENGTH_TOKENS // 2)
    user = lengths(options, "user_prompt_tokens")
    output = lengths(options, "output_tokens")
    num_samples = integer(options, "n", 1, MAX_SAMPLES)
    num_beams = integer(options, "num_beams", 1, MAX_SAMPLES)
    temperature = number(options, "temperature", 0.0, 100.0)
    if num_beams > 1 and temperature > 0:
        raise WorkloadError(f"num_beams is {num_beams} at temperature {temperature:g}, expected temperature 0")
    if num_beams > 1 and num_samples > num_beams:
        raise WorkloadError(f"n is {num_samples}, expected at most num_beams ({num_beams})")
    arrivals, prompts, outputs = (Random(f"{seed}:{stream}") for stream in ("arrivals", "prompts", "outputs"))
    rows = []
    now_ns = 0
    for _ in range(num_requests):
        user_tokens, output_tokens = uniform(prompts, user), uniform(outputs, output)
        rows.append(
            Row(
                now_ns,
                system + user_tokens,
                output_tokens,
                shared_tokens=system,
                n=num_samples,
                num_beams=num_beams,
                temperature=temperature,
            )
        )
        now_ns += round(-math.log(1.0 - arrivals.random()) / rate * NS_PER_S)
    return RowSet(rows, _notices(num_samples, num_beams, temperature))


def _notices(num_samples: int, num_beams: int, temperature: float) -> list[str]:
    if num_samples > 1 and num_beams == 1 and temperature == 0:
        return [f"n is {num_samples} at temperature 0: all samples of a request are equal"]
    return []


POISSON = Generator(name="poisson", options=OPTIONS, generate=generate)
