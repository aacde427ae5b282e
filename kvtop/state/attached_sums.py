"""Figures of several engines: added up from counters and buckets, never a mean of means, and of how many they are.

A sum says where some engines, or whole servers, are not in it. What a server reports once for all of its engines
(``EngineSample.whole``) is kept with one of them and is complete.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from kvtop.engine.events import Histogram
from kvtop.state.attached import WINDOW_NS, Attached, Engine, Occupancy, Server, growth, occupancy

Read = Callable[[Engine, str], float | None]
TOO_LARGE = "what engines report is too large to be added up"


class Sum(NamedTuple):
    """``values``: one for each name that was asked for, of the same engines; None: no engine has all of them, or
    ``problem`` says why not.

    ``part``: of how many of the engines (or servers) it is: ``2 of 3 engines``; "": of all.
    """

    values: tuple[float, ...] | None
    part: str = ""
    problem: str = ""

    @property
    def value(self) -> float | None:
        return None if self.values is None else self.values[0]


class Merged(NamedTuple):
    """The samples of several engines in one histogram; None: no engine has any, or ``problem`` says why not."""

    histogram: Histogram | None
    problem: str = ""
    part: str = ""


def servers_part(attached: Attached) -> str:
    """How many servers the engines are of that are known; "": of all."""
    known, total = sum(bool(server.engines) for server in attached.servers.values()), len(attached.servers)
    return f"{known} of {total} servers" if known < total else ""


def part_of(attached: Attached, num_engines: int) -> str:
    """What a figure of so many engines leaves out, in words; "": nothing."""
    total = len(attached.engines)
    engines = f"{num_engines} of {total} engines" if num_engines < total else ""
    return ", ".join(filter(None, (servers_part(attached), engines)))


def together(attached: Attached, names: tuple[str, ...], read: Read) -> Sum:
    """The sums of what ``read`` finds of each of ``names``, over those engines that have all of them."""
    sums, num_engines = [0.0] * len(names), 0
    for server in attached.servers.values():
        found, count = _of_server(server, names, read)
        num_engines += count
        sums = [one + other for one, other in zip(sums, found, strict=True)]
    if not num_engines:
        return Sum(None)
    if not all(map(math.isfinite, sums)):
        return Sum(None, problem=TOO_LARGE)
    return Sum(tuple(sums), part_of(attached, num_engines))


def _of_server(server: Server, names: tuple[str, ...], read: Read) -> tuple[list[float], int]:
    """Sums, and of how many engines they are. A name told once for all engines goes only with such of all of them."""
    engines = list(server.engines.values())
    rows = [[read(engine, name) for name in names] for engine in engines]
    columns = [[value for value in column if value is not None] for column in zip(*rows, strict=True)]
    is_whole = [any(name in engine.last.whole for engine in engines) for name in names]
    if engines and all(
        len(column) == len(engines) or (whole and column) for column, whole in zip(columns, is_whole, strict=True)
    ):
        return [sum(column) for column in columns], len(engines)
    full = [] if any(is_whole) else [[v for v in row if v is not None] for row in rows if None not in row]
    return [sum(column) for column in zip(*full, strict=True)] if full else [0.0] * len(names), len(full)


def added_gauge(attached: Attached, *names: str) -> Sum:
    return together(attached, names, lambda engine, name: engine.last.gauges.get(name))


def added_counter(attached: Attached, *names: str) -> Sum:
    return together(attached, names, lambda engine, name: engine.last.counters.get(name))


def added_growth(attached: Attached, names: tuple[str, ...], now_ns: int, span_ns: int = WINDOW_NS) -> Sum:
    """How much the counters ``names`` have grown within the last ``span_ns``."""
    return together(attached, names, lambda engine, name: (growth(engine, name, now_ns, span_ns) or (None,))[0])


def labels_of(attached: Attached, family: str) -> list[str]:
    """The figures of ``family`` (``waiting/``) that some engine tells, by name."""
    tables = (table for engine in attached.engines for table in (engine.last.gauges, engine.last.counters))
    return sorted({name for table in tables for name in table if name.startswith(family)})


def used_blocks(attached: Attached) -> Sum:
    """Blocks in use, those that can be had, and all, of the engines that report them."""

    def read(engine: Engine, name: str) -> float | None:
        found = occupancy(engine, engine.last)
        return None if found is None else getattr(found, name)

    return together(attached, Occupancy._fields, read)


def used_share(attached: Attached) -> Sum:
    """Blocks in use / all blocks, of the engines that report both; of one engine, its own share.

    Where no engine of several tells its size there is none: a mean of shares is no share.
    """
    engines = attached.engines
    if len(engines) == 1 and (usage := engines[0].last.gauges.get("usage")) is not None:
        return Sum((usage,), servers_part(attached))
    found = used_blocks(attached)
    if found.values is None:
        return found
    share = found.values[0] / found.values[2]
    return Sum((share,), found.part) if math.isfinite(share) else Sum(None, problem=TOO_LARGE)


def merged(attached: Attached, name: str, now_ns: int, span_ns: int = WINDOW_NS) -> Merged:
    """The samples of the last ``span_ns`` of all engines that have two looks in it."""
    bounds: list[float] | None = None
    counts: list[float] = []
    num_engines = 0
    for server in attached.servers.values():
        of_server = 0
        for engine in server.engines.values():
            grown = _grown(engine, name, now_ns, span_ns)
            if grown is None:
                continue
            if bounds is not None and bounds != grown.bounds:
                return Merged(None, "engines have different buckets")
            of_server += 1
            counts = [a + b for a, b in zip(counts, grown.counts, strict=True)] if bounds else grown.counts
            bounds = grown.bounds
        is_whole = any(name in engine.last.whole for engine in server.engines.values())
        num_engines += len(server.engines) if of_server and is_whole else of_server
    if bounds is None:
        return Merged(None)
    if not all(map(math.isfinite, counts)):
        return Merged(None, TOO_LARGE)
    return Merged(Histogram(bounds, counts, None), part=part_of(attached, num_engines))


def _grown(engine: Engine, name: str, now_ns: int, span_ns: int) -> Histogram | None:
    if (ends := engine.ends(now_ns, span_ns)) is None:
        return None
    first, last = (point.sample.histograms.get(name) for point in ends)
    if first is None or last is None or first.bounds != last.bounds:
        return None
    return Histogram(last.bounds, [new - old for new, old in zip(last.counts, first.counts, strict=True)], None)


def quantile(histogram: Histogram, q: float) -> tuple[float, float | None] | None:
    """(lo, hi] that holds the sample of rank ceil(q n); ``hi`` None: above all bounds. None without samples."""
    n = histogram.counts[-1]
    if n <= 0:
        return None
    low = 0.0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
        if count >= q * n:
            return low, None if bound == float("inf") else bound
        low = bound
    return low, None
