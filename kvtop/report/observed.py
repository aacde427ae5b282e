"""What a recording of attached servers holds: figures over time, sums over all of it, and when nobody answered.

It is folded by the reducer that the screens use, so a figure here is what they showed at that moment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kvtop.engine.events import EngineSample, Event, Histogram, KvEvents, RunEnded, Sample
from kvtop.state.attached import Attached, Server
from kvtop.state.attached_numbers import read_number
from kvtop.state.attached_reading import Reading
from kvtop.state.attached_sums import servers_part
from kvtop.state.model import RunState
from kvtop.state.reduce import reduce

OVER_TIME = (
    "pool.used_share", "pool.used_blocks", "pool.cached_blocks", "pool.num_blocks", "queue.running", "queue.waiting",
    "pool.idle_blocks", "pool.fresh_blocks", "pool.shared_blocks", "pool.token_fill",
    "throughput.prefill_tokens_s", "throughput.decode_tokens_s", "throughput.requests_s", "cache.recent_hit_rate",
    *(f"latency.{key}_{part}_ns" for key in ("ttft", "itl", "queue") for part in ("p50", "p95")),
)  # fmt: skip
"""Numbers that are read at every look."""
LOSSES = ("evictions", "regretted_tokens")
Moment = tuple[float, int]
"""s, and how many then."""
MOST_NEWS = 500
STOOD_STILL = "its gauges stood still: requests were said to run, and nothing changed"
NOT_LOOKED = "did not look (suspended, or too slow)"
KV_EVENTS = "KV events of"  # before the name of a rank, in ``Stretch.who``
NS = 1e9


@dataclass(frozen=True, slots=True)
class Stretch:
    """From when to when (s; None: to the end of the recording) ``who`` was not known, or not whole, and why."""

    start_s: float
    end_s: float | None
    who: str
    why: str


@dataclass(slots=True)
class Totals:
    """What counters and buckets grew by between looks at one life of each engine."""

    counters: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Histogram | None] = field(default_factory=dict)  # None: of different buckets, or too large
    reported: dict[str, set[tuple[str, str]]] = field(default_factory=dict)  # name -> engines whose growth is in it
    engines: set[tuple[str, str]] = field(default_factory=set)
    num_restarts: int = 0
    _last: dict[tuple[str, str], tuple[int, EngineSample]] = field(default_factory=dict)

    def add(self, server: Server) -> None:
        """The newest look at ``server``. An engine's first one, and the first after a restart, is only a start."""
        for name, engine in server.engines.items():
            key, now = (server.name, name), engine.last
            self.engines.add(key)
            restarts, before = self._last.get(key, (engine.num_restarts, None))
            self._last[key] = (engine.num_restarts, now)
            if restarts != engine.num_restarts:
                self.num_restarts += 1
            elif before is not None:
                self._grow(key, before, now, server)

    def _grow(self, key: tuple[str, str], before: EngineSample, now: EngineSample, server: Server) -> None:
        for name in now.counters.keys() & before.counters.keys():
            self.counters[name] = self.counters.get(name, 0.0) + now.counters[name] - before.counters[name]
            self._note(name, key, now, server)
        for name in now.histograms.keys() & before.histograms.keys():
            old, new = before.histograms[name], now.histograms[name]
            grown = [b - a for a, b in zip(old.counts, new.counts, strict=False)]
            known = self.histograms.setdefault(name, Histogram(new.bounds, [0.0] * len(grown), None))
            if known is None or known.bounds != new.bounds or old.bounds != new.bounds:
                self.histograms[name] = None
                continue
            added = [a + b for a, b in zip(known.counts, grown, strict=True)]
            if not all(map(math.isfinite, added)):
                self.histograms[name] = None
                continue
            self.histograms[name] = Histogram(new.bounds, added, None)
            self._note(name, key, now, server)

    def _note(self, name: str, key: tuple[str, str], now: EngineSample, server: Server) -> None:
        own = {(server.name, other) for other in server.engines} if name in now.whole else {key}
        self.reported.setdefault(name, set()).update(own)

    def truth(self, exact: str, attached: Attached, *names: str) -> str:
        """``exact``, or of which engines the sum is and what is missing in it."""
        found = [self.reported.get(name, set()) for name in names]
        known, total = len(set.intersection(*found)), len(self.engines)
        parts = [servers_part(attached), f"{known} of {total} engines" if known < total else ""]
        if self.num_restarts:
            again = "a restart" if self.num_restarts == 1 else f"{self.num_restarts} restarts"
            parts.append(f"not what was counted between the last look and {again}")
        said = ", ".join(filter(None, parts))
        return f"partial: {said}" if said else exact

    def by_label(self, family: str) -> dict[str, float]:
        """What the figures of ``family`` (``lookup_ends/``) grew by, by label: those that did, largest first."""
        grown = [(name.removeprefix(family), n) for name, n in self.counters.items() if name.startswith(family)]
        found = [(label, n) for label, n in grown if n and math.isfinite(n)]
        return dict(sorted(found, key=lambda one: (-one[1], one[0])))

    def tells(self, family: str) -> bool:
        """Whether some figure of ``family`` was reported twice."""
        return any(name.startswith(family) for name in self.reported)

    def sums(self, *names: str) -> list[float] | None:
        """Of the same engines; None where that is not so, some name was never reported, or a sum is too large."""
        found = [self.reported.get(name) for name in names]
        if not all(found) or any(engines != found[0] for engines in found):
            return None
        sums = [self.counters[name] for name in names]
        return sums if all(map(math.isfinite, sums)) else None


@dataclass(slots=True)
class Observed:
    """One recording. ``series``: of each name of ``OVER_TIME`` a reading a look; ``times_s``: of the looks.

    ``counted``: what each of ``LOSSES`` grew by, and when, by the servers' own counters: not of the servers that KV
    events tell of.
    """

    path: Path
    state: RunState = field(default_factory=RunState)
    times_s: list[float] = field(default_factory=list)
    series: dict[str, list[Reading]] = field(default_factory=lambda: {name: [] for name in OVER_TIME})
    totals: Totals = field(default_factory=Totals)
    stretches: list[Stretch] = field(default_factory=list)
    news: list[tuple[float, str]] = field(default_factory=list)
    num_news: int = 0
    evicted: list[Moment] = field(default_factory=list)  # blocks, by KV events
    regretted: list[Moment] = field(default_factory=list)  # tokens, by KV events
    counted: dict[str, list[Moment]] = field(default_factory=lambda: {name: [] for name in LOSSES})
    status: str = ""
    error: str = ""
    answered_s: tuple[float, float] | None = None  # the first and the last good answer
    _open: dict[str, tuple[float, str]] = field(default_factory=dict)

    @property
    def attached(self) -> Attached:
        assert self.state.attached is not None, "the recording is of attached servers"
        return self.state.attached

    @property
    def end_s(self) -> float:
        return self.state.t_ns / NS

    def fold(self, event: Event) -> None:
        before = self.state.cache.regret_tokens
        reduce(self.state, event)
        match event:
            case Sample():
                self._looked(event)
            case KvEvents():
                self._heard(event, self.state.cache.regret_tokens - before)
            case RunEnded(status=status, error=error):
                self.status, self.error = status, error

    def _looked(self, event: Sample) -> None:
        t_s, interval_s = event.t_ns / NS, self.attached.interval_ns / NS
        if self.times_s and t_s - self.times_s[-1] > 3 * interval_s:  # nobody looked: a line would bridge it
            self.stretches.append(Stretch(self.times_s[-1], t_s, "kvtop", NOT_LOOKED))
            self._append(self.times_s[-1] + interval_s, {name: Reading(None, "n/a") for name in OVER_TIME})
        self._append(t_s, {name: read_number(self.state, name) for name in OVER_TIME})
        self._mark(event.server, event.problem, t_s)
        for name, engine in self.attached.servers[event.server].engines.items():
            self._mark(f"{event.server} engine {name}", STOOD_STILL if engine.stands_still else "", t_s)
        self._tell(t_s)
        if not event.problem:
            self.answered_s = (t_s if self.answered_s is None else self.answered_s[0], t_s)
            self._counted(event.server, t_s)

    def _counted(self, server: str, t_s: float) -> None:
        """What a server's own counters tell of evictions (kvtop's do)."""
        counters = self.totals.counters
        before = {name: counters.get(name, 0.0) for name in self.counted}
        self.totals.add(self.attached.servers[server])
        for name, moments in self.counted.items():
            grown = counters.get(name, 0.0) - before[name]
            if math.isfinite(grown) and round(grown):
                moments.append((t_s, round(grown)))

    def _append(self, t_s: float, readings: dict[str, Reading]) -> None:
        self.times_s.append(t_s)
        for name, reading in readings.items():
            self.series[name].append(reading)

    def _heard(self, event: KvEvents, regretted: int) -> None:
        t_s = event.t_ns / NS
        if event.removed:
            self.evicted.append((t_s, event.removed))
        if regretted:
            self.regretted.append((t_s, regretted))
        for stream in event.streams:
            self._mark(f"{KV_EVENTS} {stream.source} rank {stream.rank}", stream.partial, t_s)
        self._tell(t_s)

    def _tell(self, t_s: float) -> None:
        for text in self.attached.news:
            self.num_news += 1
            if len(self.news) < MOST_NEWS:
                self.news.append((t_s, text))

    def _mark(self, who: str, why: str, t_s: float) -> None:
        """Begin or end a stretch: another reason is another stretch."""
        since = self._open.get(who)
        if since is not None and since[1] != why:
            self.stretches.append(Stretch(since[0], t_s, who, since[1]))
            del self._open[who]
        if why and who not in self._open:
            self._open[who] = (t_s, why)

    def finish(self) -> None:
        """Nothing more comes: what is open lasts to the end."""
        self.stretches += [Stretch(t_s, None, who, why) for who, (t_s, why) in self._open.items()]
        self.stretches.sort(key=lambda stretch: (stretch.start_s, stretch.who))

    def missing(self) -> Iterator[tuple[str, Reading]]:
        """Numbers that were not reported at the last good answer."""
        from kvtop.state.numbers import NUMBERS

        answers = [server.t_ok_ns for server in self.attached.servers.values() if server.t_ok_ns is not None]
        now_ns, self.state.t_ns = self.state.t_ns, max(answers, default=self.state.t_ns)
        readings = {number.title: read_number(self.state, name) for name, number in NUMBERS.items()}
        self.state.t_ns = now_ns
        yield from ((title, reading) for title, reading in readings.items() if reading.value is None)


def observe(path: Path) -> Observed:
    """Read the recording in ``path``.

    Raises:
        UsageError: there is none, or nothing in it.
        FileError: it cannot be read.
    """
    from kvtop.engine.errors import UsageError
    from kvtop.run.recorded import RecordedSession

    found, session = Observed(path), RecordedSession(path)
    session.start()
    while not session.ended:
        for event in session.poll():
            found.fold(event)
    if found.state.attached is None:
        raise UsageError(f"{path}: the recording breaks off before its first look; there is nothing to report")
    found.finish()
    return found
