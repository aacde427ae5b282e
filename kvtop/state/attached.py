"""What is known of attached servers: windows over one life of each engine. ``attached_sums`` reads it.

What is not reported is None.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from kvtop.engine.events import EngineSample, KvStream

WINDOW_NS = 60_000_000_000  # latency and hits look back this long, as in the embedded engine
EXECUTOR = "attached"  # what a manifest says in place of an executor of ours
STILL_SCRAPES = 5  # so many looks without any change while requests run: nobody counts any more
HISTORY_ROWS = 4096
STATES = ("blocks/used", "blocks/idle", "blocks/fresh", "blocks/in_transfer")
"""Gauges of kvtop's own servers: together all blocks that are not withheld."""


class Point(NamedTuple):
    """One look at an engine."""

    t_ns: int
    sample: EngineSample


@dataclass(slots=True)
class Engine:
    """One engine. ``points``: of its present life, oldest first; one of them may lie before the window."""

    last: EngineSample
    points: deque[Point] = field(default_factory=deque)
    num_restarts: int = 0
    num_still: int = 0

    @property
    def stands_still(self) -> bool:
        """Requests are said to run, and nothing has changed for several looks."""
        return self.num_still >= STILL_SCRAPES

    def ends(self, now_ns: int, span_ns: int) -> tuple[Point, Point] | None:
        """The newest look, and the oldest at most ``span_ns`` older than ``now_ns``; None before there are two."""
        points = self.points
        if len(points) < 2:
            return None
        limit = min(now_ns, points[-1].t_ns) - span_ns
        first = next((point for point in points if point.t_ns >= limit), points[-1])
        if first is points[-1]:
            first = points[-2]
        return first, points[-1]


@dataclass(slots=True)
class Server:
    """One metrics endpoint. ``t_ok_ns`` None: it never answered as it should."""

    name: str
    kind: str = ""
    problem: str = ""
    t_ns: int = 0
    t_ok_ns: int | None = None
    took_ns: int = 0
    started: float | None = None
    engines: dict[str, Engine] = field(default_factory=dict)


class Row(NamedTuple):
    """One look at all servers, for charts. None: not reported."""

    t_ns: int
    used_share: float | None
    running: float | None
    waiting: float | None
    prompt_tokens: float | None  # a second, since the look before
    generation_tokens: float | None


@dataclass(slots=True)
class Attached:
    """All servers that are looked at. ``news``: what the last event brought that is worth a line."""

    servers: dict[str, Server] = field(default_factory=dict)
    streams: dict[str, KvStream] = field(default_factory=dict)  # by endpoint and rank
    troubles: dict[str, str] = field(default_factory=dict)  # what is wrong with an endpoint of KV events, by endpoint
    interval_ns: int = 1_000_000_000
    rows: deque[Row] = field(default_factory=lambda: deque(maxlen=HISTORY_ROWS))
    num_stored: int = 0
    num_removed: int = 0
    kv_since_ns: int | None = None  # since when blocks are followed
    news: list[str] = field(default_factory=list)

    @property
    def has_looked(self) -> bool:
        """A server has answered, or failed to; or a KV event has come."""
        heard = self.streams or self.troubles
        return bool(heard) or any(s.problem or s.t_ok_ns is not None for s in self.servers.values())

    @property
    def engines(self) -> list[Engine]:
        return [engine for server in self.servers.values() for engine in server.engines.values()]

    def age_ns(self, now_ns: int) -> int | None:
        """Of the oldest of the servers' last good answers, of those that ever gave one; None: none has."""
        known = [server.t_ok_ns for server in self.servers.values() if server.t_ok_ns is not None]
        return max(0, now_ns - min(known)) if known else None

    def is_stale(self, now_ns: int) -> bool:
        """Some server that answered once has not done so for more than two intervals and a half; or none ever has."""
        age = self.age_ns(now_ns)
        return bool(self.servers) and (age is None or age > 2.5 * self.interval_ns)

    @property
    def partial(self) -> str:
        """Why the followed blocks are not all there are ("": they are)."""
        return next((stream.partial for stream in self.streams.values() if stream.partial), "")


# Of one engine ----------------------------------------------------------------------------------------------


def growth(engine: Engine, name: str, now_ns: int, span_ns: int) -> tuple[float, float] | None:
    """How much the counter ``name`` has grown within the last ``span_ns``, and in how many seconds."""
    ends = engine.ends(now_ns, span_ns)
    if ends is None:
        return None
    first, last = (point.sample.counters.get(name) for point in ends)
    if first is None or last is None:
        return None
    return last - first, (ends[1].t_ns - ends[0].t_ns) / 1e9


def rate(engine: Engine, name: str, now_ns: int, span_ns: int) -> float | None:
    """The counter ``name`` per second over the last ``span_ns``, two looks at least."""
    grown = growth(engine, name, now_ns, span_ns)
    return grown[0] / grown[1] if grown is not None and grown[1] > 0 else None


def capacity(engine: Engine) -> int | None:
    """Blocks that requests may have. One of vLLM's is its null block where the usage says that it is not counted."""
    info, tokens = engine.last.info, engine.last.gauges.get("capacity_tokens")
    if (pages := _whole(info.get("num_pages"))) is not None:
        return pages
    blocks, size = _whole(info.get("num_blocks")), _whole(info.get("block_size"))
    if blocks is None and tokens is not None and size:
        return int(tokens) // size
    usage = engine.last.gauges.get("usage")
    if blocks is None or usage is None or blocks < 2 or info.get("null_blocks") == "0":
        return blocks
    if not usage:
        return blocks - 1 if any(_off(p, blocks - 1) <= _off(p, blocks) for p in _usages(engine)) else blocks
    return blocks - 1 if _off(usage, blocks - 1) <= _off(usage, blocks) else blocks


class Occupancy(NamedTuple):
    """Blocks in use, those that can be had, and all that may be in use."""

    used: float
    reclaimable: float
    usable: float


def occupancy(engine: Engine, sample: EngineSample) -> Occupancy | None:
    """As one look at ``engine`` tells: by the blocks' states, else by share and capacity. None: it tells neither."""
    states = [count for name in STATES if (count := sample.gauges.get(name)) is not None]
    if len(states) == len(STATES) and sum(states) > 0:  # else no pool is told by them
        used, idle, fresh, _ = states
        return Occupancy(used, idle + fresh, sum(states))
    usage, size = sample.gauges.get("usage"), capacity(engine)
    return None if usage is None or size is None or size <= 0 else Occupancy(usage * size, size - usage * size, size)


def _usages(engine: Engine) -> list[float]:
    return [usage for point in engine.points if (usage := point.sample.gauges.get("usage"))] or [0.0]


def _off(usage: float, blocks: int) -> float:
    """How far the share is from a whole number of blocks."""
    used = usage * blocks
    return abs(used - round(used)) if math.isfinite(used) else math.inf


def block_size(attached: Attached) -> int | None:
    return next((size for engine in attached.engines if (size := _whole(engine.last.info.get("block_size")))), None)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 16 else None
