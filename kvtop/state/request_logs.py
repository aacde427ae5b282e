"""What the explanation of each request needs of the decision log: for every live request and those that ended last.

Kept small. Kinds that no explanation reads (``free``, ``swap_out``, ...) are left out. Decisions of one request that
differ only in a number are one ``Entry``: tokens decoded step after step, blocks found in the cache, evictions. And a
request keeps two generations of ``GENERATION`` entries: when the younger one is full, the older one goes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby

from kvtop.engine.events import Decision, RequestEvent, SequenceRow, StepEvent

GENERATION = 256  # entries
STEPS_KEPT = 16_384  # steps whose times are known, and refusals
ENDED_KEPT = 500  # requests; as many as ``RunState.finished`` holds

StepRow = tuple[int, int, int, str, int]
"""Step, start and end in ns, who headed the queue and was refused ("": nobody), prompt tokens computed."""


@dataclass(slots=True)
class Entry:
    """``count`` decisions like ``decision``, the first one in ``step``.

    chunk     one token each, in steps and at positions that follow each other
    evict     of blocks that ``owner`` had published, unused for ``idle_least`` to ``idle_most`` steps
    skipped   ``held_blocks``: what the one in the way held at that moment
    alloc     blocks that a branch was given in the step it was born in, shared ones included
    known     no decision: what a sequence was when its log begins, (state, known tokens, computed tokens)
    """

    step: int
    decision: Decision
    count: int = 1
    last_step: int = 0
    owner: str | None = None
    idle_least: int = 0
    idle_most: int = 0
    held_blocks: int | None = None
    grows: bool = False  # chunk: nothing else has been decided about the request since

    def until(self, step: int) -> Entry:
        """What of it had been decided when ``step`` ended, for an entry that begins no later than that."""
        if self.decision[0] == "chunk" and self.count > step - self.step + 1:
            return replace(self, count=step - self.step + 1, grows=False)
        return self


@dataclass(slots=True)
class RequestLog:
    """One request with all its branches."""

    request_id: str
    arrival: RequestEvent | None = None
    origin: SequenceRow | None = None  # where it is first known from, if not from its arrival
    end: RequestEvent | None = None
    t_first_sched_ns: int | None = None
    older: list[Entry] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    last_step: int = 0
    num_live: int = 1  # sequences
    num_changes: int = 0  # grows with every new entry: whoever shows it knows when to look again
    is_lost: bool = False  # events were dropped while it was alive: the log breaks off
    full: list[RequestLog] = field(default_factory=list)  # where to put itself when a generation is
    # Entries that may still grow, until something else is decided about the request
    _tokens: list[Entry] = field(default_factory=list)
    _evictions: dict[tuple[str, str | None], Entry] = field(default_factory=dict)  # by sequence and owner

    def add(self, entry: Entry) -> None:
        """An entry that starts or ends a part of the request's life."""
        self._close()
        self.add_beside(entry)

    def _close(self) -> None:
        for run in self._tokens:
            run.grows = False
        self._tokens.clear()
        self._evictions.clear()

    def add_beside(self, entry: Entry) -> None:
        """An entry that may be told out of its order in the step, and leaves others growing."""
        self.entries.append(entry)
        self.num_changes += 1
        if len(self.entries) >= GENERATION + 4 * self.num_live:
            self.full.append(self)

    def add_chunk(self, decision: Decision, step: int, t_start_ns: int) -> Entry:
        """Its entry; of a single token it ``grows``: whoever holds it counts those that follow in ``count``."""
        if self.t_first_sched_ns is None and self.origin is None:
            self.t_first_sched_ns = t_start_ns
        entry = Entry(step, decision, grows=decision[2] == 1)
        self.add_beside(entry)
        if entry.grows:
            self._tokens.append(entry)
        return entry

    def add_share(self, decision: Decision, step: int) -> None:
        last = self.entries[-1] if self.entries else None
        if last is not None and last.step == step and last.decision[0] == "share":
            before = last.decision
            if before[1] == decision[1] and before[5] == decision[5]:
                last.count += 1
                return
        self.add_beside(Entry(step, decision))

    def add_evictions(self, run: list[Decision], step: int, publisher: list[str] | None) -> None:
        """Blocks evicted for one of its sequences. ``publisher``: by block; None: not known."""
        for owner, decisions in groupby(run, lambda decision: publisher[decision[3]] if publisher is not None else ""):
            own = list(decisions)
            idle = [decision[7] for decision in own]
            entry = self._evictions.get((own[0][1], owner or None))
            if entry is None:
                entry = Entry(step, own[0], count=0, owner=owner or None, idle_least=idle[0], idle_most=idle[0])
                self._evictions[own[0][1], owner or None] = entry
                self.add_beside(entry)
            entry.count, entry.last_step = entry.count + len(own), step
            entry.idle_least, entry.idle_most = min(entry.idle_least, *idle), max(entry.idle_most, *idle)

    def until(self, step: int) -> RequestLog:
        """The log as it was when ``step`` ended. Evictions told together are told with the first of them."""
        entries = [entry.until(step) for entry in (*self.older, *self.entries) if entry.step <= step]
        ended = self.end is not None and self.last_step <= step
        return replace(self, older=[], entries=entries, end=self.end if ended else None, full=[])

    def begin_generation(self, known: Iterable[Decision], step: int) -> None:
        """Entries so far become the older ones. ``known``: its live sequences as ``step`` begins."""
        self._close()
        self.older, self.entries = self.entries, [Entry(step, decision) for decision in known]


@dataclass(slots=True)
class RequestLogs:
    """The logs of all requests, and what of others an explanation needs beside them."""

    live: dict[str, RequestLog] = field(default_factory=dict)  # by request id, as the next two
    ended: dict[str, RequestLog] = field(default_factory=dict)  # oldest first
    replaced: dict[str, list[RequestLog]] = field(default_factory=dict)  # id in use again before their end was told
    steps: deque[StepRow] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT))
    refusals: deque[Entry] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT))  # ``skipped`` of everybody
    full: list[RequestLog] = field(default_factory=list)  # in this step
    given: tuple[StepEvent, Counter[str]] | None = None  # blocks given in the step of the last fork, by sequence

    def find(self, name: str, *, ended: bool = False) -> RequestLog | None:
        """The log of request ``name`` or of the request it is a branch of. ``ended``: rather one that has ended."""
        request_id = name
        if name not in self.live and name not in self.ended:
            request_id, mark, branch = name.rpartition("#")
            if not mark or not branch.isdigit():
                return None
        first, second = (self.ended, self.live) if ended else (self.live, self.ended)
        return first.get(request_id) or second.get(request_id)

    def arrived(self, request_id: str, arrival: RequestEvent | None, *, num_live: int = 1) -> RequestLog:
        before = self.live.get(request_id)
        if before is not None and not before.num_live:
            self.replaced.setdefault(request_id, []).append(before)
        log = self.live[request_id] = RequestLog(request_id, arrival, num_live=num_live, full=self.full)
        return log

    def has_ended(self, event: RequestEvent) -> None:
        """The request's last event. Its log is kept until ``ENDED_KEPT`` others have ended."""
        request_id, waiting = event.request_id, self.replaced.get(event.request_id)
        if waiting:
            log = waiting.pop(0)
            if not waiting:
                del self.replaced[request_id]
        else:
            log = self.live.pop(request_id, None)
        if log is None:
            return
        log.end, log.is_lost = event, log.num_live > 0
        log.num_changes += 1
        self.ended.pop(request_id, None)
        self.ended[request_id] = log
        if len(self.ended) > ENDED_KEPT:
            del self.ended[next(iter(self.ended))]

    def until(self, step: int) -> RequestLogs:
        """The logs as they were when ``step`` ended, as far as they are kept now; each is made when it is asked for."""
        refusals = deque((entry for entry in self.refusals if entry.step <= step), maxlen=STEPS_KEPT)
        steps = deque((row for row in self.steps if row[0] <= step), maxlen=STEPS_KEPT)
        return _PastLogs(steps=steps, refusals=refusals, now=self, step=step)

    def break_off(self) -> None:
        """Events were dropped: whatever goes on is known again from the next keyframe."""
        for log in self.live.values():
            log.is_lost = True
        self.live.clear()
        self.replaced.clear()
        self.refusals.clear()

    def resync(self, rows: Iterable[SequenceRow], step: int, arrivals: dict[str, RequestEvent]) -> None:
        """Begin a log for every request of a keyframe that has none."""
        branches: dict[str, list[SequenceRow]] = {}
        for row in rows:
            branches.setdefault(row.request_id, []).append(row)
        for gone in [i for i, log in self.live.items() if log.num_live and i not in branches]:
            del self.live[gone]
        for request_id, own in branches.items():
            if request_id not in self.live:
                log = RequestLog(request_id, arrivals.get(request_id), own[0], num_live=len(own), full=self.full)
                log.entries = [Entry(step, known(r.seq_id, r.state, r.num_tokens, r.num_computed)) for r in own]
                self.live[request_id] = log

    def end_step(self, event: StepEvent) -> None:
        head, steps = event.head_of_line, self.steps
        if steps and steps[-1][3] == head:
            head = steps[-1][3]  # one string for all the steps that say the same
        steps.append((event.step, event.t_start_ns, event.t_done_ns, head, event.prefill_tokens))


@dataclass(slots=True)
class _PastLogs(RequestLogs):
    """What ``now`` knows, up to ``step``."""

    now: RequestLogs = field(default_factory=RequestLogs)
    step: int = 0

    def find(self, name: str, *, ended: bool = False) -> RequestLog | None:
        log = self.now.find(name, ended=ended)
        return None if log is None else log.until(self.step)


def known(seq_id: str, state: str, num_tokens: int, num_computed: int) -> Decision:
    """Stands first in the log of a sequence that does not begin with its arrival."""
    return ("known", seq_id, state, num_tokens, num_computed)
