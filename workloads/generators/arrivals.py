"""When sessions begin: one entry in ``ARRIVALS`` for each process.

Open processes are a rate over time and gaps in units of the mean one: gaps are exponential (Poisson arrivals), gamma
(``burstiness`` is the shape: below 1 bursty, 1 exponential, above 1 more regular) or constant. A gap of g means that
the expected number of arrivals grows by g until the next one. The schedule is absolute, the first arrival is at 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.generators.base import REQUIRED, Arrivals
from kvtop.workloads.generators.draws import Draws
from kvtop.workloads.generators.options import NS_PER_S, integer, number, rate, seconds, shown, text
from kvtop.workloads.generators.rates import Constant, Ramp, Rate, Steps

REGULAR = 1e9
"""Gaps of this burstiness or more are taken as constant: their spread is below 0.004 % of the mean."""
MAX_USERS = 100_000
CLOSED = "closed"


def _gaps(burstiness: float, draws: Draws) -> Callable[[], float]:
    """Independent gaps of mean 1."""
    if burstiness >= REGULAR:
        return lambda: 1.0
    if burstiness == 1.0:
        return draws.exponential
    return lambda: draws.gamma(burstiness) / burstiness


def _times(rate_over_time: Rate, gaps: Callable[[], float]) -> Iterator[int]:
    if isinstance(rate_over_time, Constant):  # exact sums of whole ns: what a user adds up by hand
        now_ns = 0
        while True:
            yield now_ns
            now_ns += round(gaps() / rate_over_time.rate * NS_PER_S)
    expected = 0.0
    while True:
        yield round(rate_over_time.reached(expected) * NS_PER_S)
        expected += gaps()


def _burstiness(options: dict[str, Any], within: str) -> float:
    return number(options, "burstiness", 0.001, math.inf, within)


def _poisson(options: dict[str, Any], draws: Draws, within: str) -> Iterator[int]:
    return _times(Constant(rate(options, "rate", within)), draws.exponential)


def _gamma(options: dict[str, Any], draws: Draws, within: str) -> Iterator[int]:
    burstiness = _burstiness(options, within)
    if burstiness >= REGULAR:
        return _constant({"rate": options["rate"], "every_s": None}, draws, within)
    return _times(Constant(rate(options, "rate", within)), _gaps(burstiness, draws))


def _constant(options: dict[str, Any], draws: Draws, within: str) -> Iterator[int]:
    if (options["rate"] is None) == (options["every_s"] is None):
        found = "neither is" if options["rate"] is None else "both are"
        raise WorkloadError(f"{within}{found} given, expected every_s or rate")
    every_s = seconds(options, "every_s", within) if options["rate"] is None else 1.0 / rate(options, "rate", within)
    return (round(k * every_s * NS_PER_S) for k in range(1 << 62))


def _ramp(options: dict[str, Any], draws: Draws, within: str) -> Iterator[int]:
    start, end = rate(options, "start_rate", within, zero=True), rate(options, "end_rate", within)
    over_time = Ramp(start, end, seconds(options, "ramp_s", within, above=True))
    return _times(over_time, _gaps(_burstiness(options, within), draws))


def _on_off(options: dict[str, Any], draws: Draws, within: str) -> Iterator[int]:
    on, off = rate(options, "on_rate", within), rate(options, "off_rate", within, zero=True)
    lengths = (seconds(options, "on_s", within, above=True), seconds(options, "off_s", within, above=True))
    return _times(Steps((on, off), lengths, repeated=True), _gaps(_burstiness(options, within), draws))


def _steps(options: dict[str, Any], draws: Draws, within: str) -> Iterator[int]:
    rates = options["rates"]
    if not isinstance(rates, list) or not rates:
        raise WorkloadError(f"{within}rates is {shown(rates)}, expected a list of requests per second")
    last = len(rates) - 1  # must be above 0: it stays
    found = tuple(rate({"rates": value}, "rates", within, zero=index < last) for index, value in enumerate(rates))
    step_s = seconds(options, "step_s", within, above=True)
    over_time = Steps(found, (step_s,) * len(found), repeated=False)
    return _times(over_time, _gaps(_burstiness(options, within), draws))


def _trace(options: dict[str, Any], draws: Draws, within: str) -> Iterator[int]:
    from kvtop.workloads.formats.registry import read_trace

    name = None if options["format"] is None else text(options, "format", within)
    return iter([row.arrival_ns for row in read_trace(text(options, "path", within), name).rows])


def _closed(options: dict[str, Any], draws: Draws, within: str) -> Iterator[int]:
    """When each user's first session begins."""
    users = integer(options, "users", 1, MAX_USERS, within)
    ramp_s = seconds(options, "ramp_s", within)
    return iter([round(user * ramp_s / users * NS_PER_S) for user in range(users)])


PROCESSES = (
    Arrivals(name="poisson", summary="independent arrivals", options={"rate": REQUIRED}, times=_poisson),
    Arrivals(
        name="gamma",
        summary="gamma gaps: burstiness below 1 comes in bursts, 1 is poisson, inf is constant",
        options={"rate": REQUIRED, "burstiness": 1.0},
        times=_gamma,
    ),
    Arrivals(
        name="constant",
        summary="one every_s seconds, or rate a second; every_s = 0: all at once",
        options={"rate": None, "every_s": None},
        times=_constant,
    ),
    Arrivals(
        name="ramp",
        summary="a rate that goes from start_rate to end_rate in ramp_s seconds, and stays there",
        options={"start_rate": REQUIRED, "end_rate": REQUIRED, "ramp_s": REQUIRED, "burstiness": 1.0},
        times=_ramp,
    ),
    Arrivals(
        name="on-off",
        summary="on_rate for on_s seconds, off_rate for off_s seconds, and again",
        options={"on_rate": REQUIRED, "off_rate": 0.0, "on_s": REQUIRED, "off_s": REQUIRED, "burstiness": 1.0},
        times=_on_off,
    ),
    Arrivals(
        name="steps",
        summary="each of the rates for step_s seconds; the last one stays",
        options={"rates": REQUIRED, "step_s": REQUIRED, "burstiness": 1.0},
        times=_steps,
    ),
    Arrivals(
        name="trace",
        summary="the arrival times of a recorded trace",
        options={"path": REQUIRED, "format": None},
        times=_trace,
    ),
    Arrivals(
        name=CLOSED,
        summary="a closed loop: users who each begin a session, think_s seconds after their last one has ended",
        options={"users": REQUIRED, "think_s": 0.0, "ramp_s": 0.0},
        times=_closed,
    ),
)

ARRIVALS: dict[str, Arrivals] = {process.name: process for process in PROCESSES}
