"""Where lengths, think times and numbers of turns come from: one entry in ``DISTRIBUTIONS`` for each family.

In a spec a number stands for itself, ``[low, high]`` for a uniform one, and a table names its family with ``kind``.
A draw below a ``low`` that is given counts as that ``low``, and one above ``high`` as ``high``; whole numbers are
rounded to the nearest, halves to the even one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.generators.base import REQUIRED, Distribution, Place, pick
from kvtop.workloads.generators.draws import Draws, Weighted
from kvtop.workloads.generators.options import is_number, number, shown, text
from kvtop.workloads.generators.portable import exp, log, power

Draw = Callable[[Draws], float]
MAX_RANKS = 1_000_000
COLUMNS = ("prompt", "output")
LIMITS: dict[str, Any] = {"low": None, "high": None}  # None: no limit


def distribution(options: dict[str, Any], key: str, place: Place) -> Draw:
    """What draws numbers for option ``key``: within the place's limits, whole where it says so.

    Raises:
        UnknownName: no such kind or key.
        WorkloadError: a value of another type or out of range. While drawing: a number outside the place's limits.
    """
    value, name = options[key], f"{place.within}{key}"
    if is_number(value):
        value = {"kind": "constant", "value": value}
    elif isinstance(value, list) and len(value) == 2 and all(is_number(bound) for bound in value):
        value = {"kind": "uniform", "low": value[0], "high": value[1]}
    if not isinstance(value, dict):
        raise WorkloadError(f"{name} is {shown(value)}, expected a number, [low, high] or a table with a kind")
    family, own = pick(value, DISTRIBUTIONS, "distribution", f"{name}.")
    try:
        draw = family.make(own, Place(f"{name}.", place.column, place.whole, place.low, place.high))
    except _Short as error:
        raise WorkloadError(f"{name} is {shown(options[key])}, {error}") from None
    return _held(draw, name, place)


class _Short(Exception):
    """What was expected instead of a number or [low, high]."""


def _held(draw: Draw, name: str, place: Place) -> Draw:
    low, high, whole = place.low, place.high, place.whole

    def held(draws: Draws) -> float:
        found = draw(draws)
        value = round(found) if whole else found
        if not low <= value <= high:
            raise WorkloadError(
                f"{name} drew {found:.6g}, expected {low:,.12g} to {high:,.12g}: give it a low and a high"
            )
        return value

    return held


def _constant(options: dict[str, Any], place: Place) -> Draw:
    value = _bound(options, "value", place)
    return lambda draws: value


def _uniform(options: dict[str, Any], place: Place) -> Draw:
    low, high = _bound(options, "low", place), _bound(options, "high", place)
    if low > high:
        raise _Short(f"expected low <= high in [{low:g}, {high:g}]")
    if place.whole:
        return lambda draws: draws.integer(int(low), int(high))
    return lambda draws: low + draws.uniform() * (high - low)


def _bound(options: dict[str, Any], key: str, place: Place) -> float:
    value = options[key]
    if not is_number(value) or not place.low <= value <= place.high or (place.whole and type(value) is not int):
        what = "integers" if place.whole else "numbers"
        raise _Short(f"expected {what} from {place.low:,.12g} to {place.high:,.12g}")
    return value


def _clipped(draw: Draw, options: dict[str, Any], place: Place) -> Draw:
    low, high = -math.inf, math.inf
    if options["low"] is not None:
        low = number(options, "low", place.low, place.high, place.within)
    if options["high"] is not None:
        high = number(options, "high", place.low, place.high, place.within)
    if low > high:
        raise WorkloadError(f"{place.within}low is {low:g}, expected at most high ({high:g})")
    return lambda draws: min(max(draw(draws), low), high)


def _mean_and_std(options: dict[str, Any], place: Place) -> tuple[float, float]:
    mean = number(options, "mean", 0.0, place.high, place.within, above=True)
    return mean, number(options, "std", 0.0, place.high, place.within)


def _normal(options: dict[str, Any], place: Place) -> Draw:
    mean, std = _mean_and_std(options, place)
    return _clipped(lambda draws: mean + std * draws.normal(), options, place)


def _lognormal(options: dict[str, Any], place: Place) -> Draw:
    mean, std = _mean_and_std(options, place)
    variance = log(1.0 + (std / mean) * (std / mean))  # of the logarithm
    mu, sigma = log(mean) - variance / 2.0, math.sqrt(variance)
    return _clipped(lambda draws: exp(mu + sigma * draws.normal()), options, place)


def _exponential(options: dict[str, Any], place: Place) -> Draw:
    mean = number(options, "mean", 0.0, place.high, place.within, above=True)
    return _clipped(lambda draws: mean * draws.exponential(), options, place)


def _geometric(options: dict[str, Any], place: Place) -> Draw:
    mean = number(options, "mean", 1.0, place.high, place.within)
    if mean == 1.0:
        return _clipped(lambda draws: 1.0, options, place)
    scale = -1.0 / log(1.0 - 1.0 / mean)
    return _clipped(lambda draws: 1.0 + math.floor(draws.exponential() * scale), options, place)


def _pareto(options: dict[str, Any], place: Place) -> Draw:
    shape = number(options, "shape", 0.01, 100.0, place.within)
    low = number(options, "low", max(place.low, 1e-9), place.high, place.within)
    high = number(options, "high", low, place.high, place.within)
    tail = power(low / high, shape)  # how much of the unbounded law lies above ``high``
    return lambda draws: min(high, low * power(1.0 - draws.uniform() * (1.0 - tail), -1.0 / shape))


def _zipf(options: dict[str, Any], place: Place) -> Draw:
    exponent = number(options, "exponent", 0.0, 100.0, place.within)
    low = int(number(options, "low", max(place.low, 1), place.high, place.within))
    high = int(number(options, "high", low, min(place.high, low + MAX_RANKS - 1), place.within))
    table = Weighted([power(value, -exponent) for value in range(low, high + 1)])
    return lambda draws: low + table.draw(draws)


def _histogram(options: dict[str, Any], place: Place) -> Draw:
    values, weights = options["values"], options["weights"]
    for key, found in (("values", values), ("weights", weights)):
        if not isinstance(found, list) or not found or not all(is_number(value) for value in found):
            raise WorkloadError(f"{place.within}{key} is {shown(found)}, expected a list of numbers")
    if len(weights) != len(values):
        raise WorkloadError(f"{place.within}weights has {len(weights)} numbers, values has {len(values)}")
    if min(weights) < 0 or not 0 < sum(weights) < math.inf:
        raise WorkloadError(f"{place.within}weights is {shown(weights)}, expected numbers >= 0, one of them above 0")
    table = Weighted(weights)
    return lambda draws: values[table.draw(draws)]


def _trace(options: dict[str, Any], place: Place) -> Draw:
    column = place.column if options["column"] is None else options["column"]
    if column not in COLUMNS:
        raise WorkloadError(f"{place.within}column is {shown(column)}, expected prompt or output")
    pairs = trace_lengths(options, place.within)
    counts = sorted(Counter(pair[COLUMNS.index(column)] for pair in pairs).items())
    table = Weighted([count for _, count in counts])
    return _clipped(lambda draws: counts[table.draw(draws)][0], options, place)


def trace_lengths(options: dict[str, Any], within: str) -> list[tuple[int, int]]:
    """(prompt, output) tokens of every row of the trace that ``path`` names.

    Raises:
        UnknownName, WorkloadError: no such format or file, or a malformed row.
    """
    from kvtop.workloads.formats.registry import read_lengths  # generators without a trace read none

    name = None if options["format"] is None else text(options, "format", within)
    return read_lengths(text(options, "path", within), name)


FAMILIES = (
    Distribution(name="constant", summary="always the value", options={"value": REQUIRED}, make=_constant),
    Distribution(
        name="uniform",
        summary="from low to high, both included, each as likely as the others",
        options={"low": REQUIRED, "high": REQUIRED},
        make=_uniform,
    ),
    Distribution(
        name="normal", summary="a bell", options={"mean": REQUIRED, "std": REQUIRED, **LIMITS}, make=_normal
    ),
    Distribution(
        name="lognormal",
        summary="a long tail to the right; mean and std are those of the numbers, not of their logarithms",
        options={"mean": REQUIRED, "std": REQUIRED, **LIMITS},
        make=_lognormal,
    ),
    Distribution(
        name="exponential", summary="times between independent events", options={"mean": REQUIRED, **LIMITS},
        make=_exponential,
    ),
    Distribution(
        name="geometric",
        summary="1, 2, 3, ...: how many turns there are, if each is the last with the same probability",
        options={"mean": REQUIRED, **LIMITS},
        make=_geometric,
    ),
    Distribution(
        name="pareto",
        summary="a power law between low and high: most are short, a few very long",
        options={"shape": REQUIRED, "low": REQUIRED, "high": REQUIRED},
        make=_pareto,
    ),
    Distribution(
        name="zipf",
        summary="whole numbers from low to high, each k in proportion to 1 / k^exponent",
        options={"exponent": REQUIRED, "low": 1, "high": REQUIRED},
        make=_zipf,
    ),
    Distribution(
        name="histogram",
        summary="one of the values, in proportion to the weights",
        options={"values": REQUIRED, "weights": REQUIRED},
        make=_histogram,
    ),
    Distribution(
        name="trace",
        summary="the lengths of a recorded trace, as often as they are in it",
        options={"path": REQUIRED, "format": None, "column": None, **LIMITS},
        make=_trace,
    ),
)  # fmt: skip

DISTRIBUTIONS: dict[str, Distribution] = {family.name: family for family in FAMILIES}
