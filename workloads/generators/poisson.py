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
from kvtop.workloads.rows import MAX_LENGTH_TOKENS, Row, RowSet

MAX_REQUESTS = 1_000_000
MAX_SAMPLES = 1024
NS_PER_S = 1_000_000_000

OPTIONS: dict[str, Any] = {
    "rate": None,  # requests per second
    "num_requests": 200,
    "system_prompt_tokens": 256,  # shared by every request; 0: nothing is shared
    "user_prompt_tokens": [32, 256],  # uniform from low to high, or one number
    "output_tokens": [16, 64],
    "n": 1,  # parallel samples of each request
    "temperature": 0.0,
}


def generate(options: dict[str, Any], seed: int) -> RowSet:
    """``num_requests`` rows. Same options and seed, same rows, on every machine.

    Raises:
        WorkloadError: an option that is missing, of the wrong type or out of its range.
    """
    rate = _number(options, "rate", 1e-6, 1e6)
    num_requests = _integer(options, "num_requests", 1, MAX_REQUESTS)
    system = _integer(options, "system_prompt_tokens", 0, MAX_LENGTH_TOKENS // 2)
    user = _lengths(options, "user_prompt_tokens")
    output = _lengths(options, "output_tokens")
    num_samples = _integer(options, "n", 1, MAX_SAMPLES)
    temperature = _number(options, "temperature", 0.0, 100.0)
    arrivals, prompts, outputs = (Random(f"{seed}:{stream}") for stream in ("arrivals", "prompts", "outputs"))
    rows = []
    now_ns = 0
    for _ in range(num_requests):
        user_tokens, output_tokens = _uniform(prompts, user), _uniform(outputs, output)
        rows.append(
            Row(
                now_ns,
                system + user_tokens,
                output_tokens,
                shared_tokens=system,
                n=num_samples,
                temperature=temperature,
            )
        )
        now_ns += round(-math.log(1.0 - arrivals.random()) / rate * NS_PER_S)
    return RowSet(rows, _notices(num_samples, temperature))


def _notices(num_samples: int, temperature: float) -> list[str]:
    if num_samples > 1 and temperature == 0:
        return [f"n is {num_samples} at temperature 0: all samples of a request are equal"]
    return []


def _uniform(random: Random, bounds: tuple[int, int]) -> int:
    # Only Random.random() is promised to stay the same in every Python version.
    low, high = bounds
    return low + int(random.random() * (high - low + 1))


def _integer(options: dict[str, Any], key: str, low: int, high: int) -> int:
    value = options[key]
    if type(value) is not int or not low <= value <= high:
        raise WorkloadError(f"{key} is {_shown(value)}, expected an integer from {low:,} to {high:,}")
    return value


def _number(options: dict[str, Any], key: str, low: float, high: float) -> float:
    value = options[key]
    if type(value) not in (int, float) or not low <= value <= high:  # NaN compares false
        raise WorkloadError(f"{key} is {_shown(value)}, expected a number from {low:g} to {high:g}")
    return float(value)


def _lengths(options: dict[str, Any], key: str) -> tuple[int, int]:
    value = options[key]
    bounds = [value, value] if type(value) is int else value
    ok = isinstance(bounds, list) and len(bounds) == 2 and all(type(b) is int for b in bounds)
    if not ok or not 1 <= bounds[0] <= bounds[1] <= MAX_LENGTH_TOKENS // 2:
        raise WorkloadError(
            f"{key} is {_shown(value)}, expected a number of tokens or [low, high] with 1 <= low <= high "
            f"<= {MAX_LENGTH_TOKENS // 2:,}"
        )
    return bounds[0], bounds[1]


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]


POISSON = Generator(name="poisson", options=OPTIONS, generate=generate)
