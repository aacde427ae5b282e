"""The state of a run as a reader of the event stream knows it. ``reduce`` builds it; widgets and exporters pull it."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from kvtop.engine.events import RequestEvent, StepEvent
from kvtop.engine.types import NULL_BLOCK
from kvtop.state.attached import Attached
from kvtop.state.cache_log import CacheLog
from kvtop.state.request_logs import Entry, RequestLogs

FRESH, IDLE, USED, IN_TRANSFER, WITHHELD = range(5)
"""Values of ``PoolState.state``, in the order fresh, idle, used, in transfer, withheld."""

NOT_KNOWN = -1

HISTORY_STEPS = 4096  # steps kept for charts
LATENCY_WINDOW_NS = 60_000_000_000  # p50/p99 on screen look back this long


@dataclass(slots=True)
class PoolState:
    """Every block. Lists are indexed by block id; ``dirty`` collects ids changed since a reader last cleared it."""

    num_blocks: int
    block_size: int
    state: bytearray
    refcount: array[int]
    filled: array[int]  # token slots filled
    owners: list[list[str]]  # sequence ids, one entry a table entry (pins are in ``pins``)
    pins: array[int]
    key: list[int | None]  # published key
    parent_key: list[int | None]
    published_step: array[int]
    last_use_step: array[int]
    uses: array[int]
    publisher: list[str]  # sequence that published what is in it; means nothing while ``key`` is None
    tenant: list[str]  # of the publisher
    since_step: array[int]  # when it was taken for what is in it; NOT_KNOWN: before the log began
    released: array[int]  # place in the order in which blocks became idle; 0: before the log began
    counts: list[int]  # blocks by state, indexed like the constants
    dirty: set[int]
    limit: int  # blocks that may be used: as many as there are, unless it was lowered
    transfer: dict[int, None]  # refcount 0, in order of release, not reusable before their deferred free is due
    now_ns: int = 0  # start of the step being folded
    num_released: int = 0
    rekeyed: set[int] = field(default_factory=set)  # blocks published or forgotten since they were copied

    @property
    def num_usable(self) -> int:
        """Blocks in circulation. While the pool shrinks these are more than ``limit``."""
        return self.num_blocks - self.counts[WITHHELD]

    @classmethod
    def empty(cls, num_blocks: int, block_size: int) -> PoolState:
        def zeros() -> array[int]:
            return array("q", bytes(8 * num_blocks))

        return cls(
            num_blocks=num_blocks,
            block_size=block_size,
            state=bytearray(num_blocks),
            refcount=zeros(),
            filled=zeros(),
            owners=[[] for _ in range(num_blocks)],
            pins=zeros(),
            key=[None] * num_blocks,
            parent_key=[None] * num_blocks,
            published_step=zeros(),
            last_use_step=zeros(),
            uses=zeros(),
            publisher=[""] * num_blocks,
            tenant=[""] * num_blocks,
            since_step=array("q", [NOT_KNOWN]) * num_blocks,
            released=zeros(),
            counts=[num_blocks, 0, 0, 0, 0],
            limit=num_blocks,
            dirty=set(range(num_blocks)),
            transfer={},
        )


@dataclass(slots=True)
class SequenceState:
    """One live sequence (running or waiting)."""

    seq_id: str
    request_id: str
    state: str  # waiting, running, preempted
    num_prompt: int
    max_tokens: int
    num_tokens: int  # known: prompt + output
    num_computed: int = 0
    cached_tokens: int = 0
    table: list[int] = field(default_factory=list)
    num_preemptions: int = 0
    wait_reason: str = ""
    wait_blocker: str = ""
    need_blocks: int | None = None
    have_blocks: int | None = None
    miss_reason: str = ""
    t_sched_ns: int = 0
    t_submit_ns: int = 0
    t_first_token_ns: int | None = None
    t_last_token_ns: int | None = None
    last_itl_ns: int | None = None
    num_swapped: int = 0  # computed tokens that wait in host memory
    high_water: int = 0  # positions below it were computed or cached before: computing them again is recomputation
    recomputed: int = 0  # positions computed again so far
    other_tables: list[list[int]] = field(default_factory=list)  # of the KV groups after the first, as they appear
    tenant: str = ""
    run: Entry | None = None  # of its log: the last tokens it computed
    num_held: int = 0  # blocks in all tables: ``len(held)``, without making the list
    held_since_ns: int = 0  # as many as now
    held_ns: int = 0  # blocks times ns, until then

    def hold(self, change: int, now_ns: int) -> None:
        """From ``now_ns`` on it holds ``change`` blocks more."""
        self.held_ns += self.num_held * (now_ns - self.held_since_ns)
        self.held_since_ns = now_ns
        self.num_held += change

    def block_ns(self, now_ns: int) -> int:
        """Blocks times ns it has held them: what it has cost the pool so far."""
        return self.held_ns + self.num_held * max(0, now_ns - self.held_since_ns)

    def table_of(self, group: int) -> list[int]:
        """The table of a KV group; NULL_BLOCK where a block fell out of the group's window."""
        if group == 0:
            return self.table
        while len(self.other_tables) < group:
            self.other_tables.append([])
        return self.other_tables[group - 1]

    @property
    def tables(self) -> list[list[int]]:
        """One a KV group that has been seen."""
        return [self.table, *self.other_tables]

    @property
    def held(self) -> list[int]:
        """Blocks in all tables, those that fell out of a window left out."""
        return [block for table in self.tables for block in table if block != NULL_BLOCK]


@dataclass(slots=True)
class History:
    """One column a quantity, one entry a step, oldest first, at most HISTORY_STEPS."""

    t_ns: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY_STEPS))
    used: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY_STEPS))
    idle: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY_STEPS))
    fresh: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY_STEPS))
    running: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY_STEPS))
    waiting: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY_STEPS))
    prefill_tokens: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY_STEPS))
    decode_tokens: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY_STEPS))
    step_ns: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY_STEPS))
    evictions: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY_STEPS))
    preemptions: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY_STEPS))
    finished: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY_STEPS))
    step: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY_STEPS))
    start_ns: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY_STEPS))
    waiting_reason: deque[str] = field(default_factory=lambda: deque(maxlen=HISTORY_STEPS))  # of the head of the queue


@dataclass(slots=True)
class Samples:
    """Latency samples (t_ns, value_ns, how many) inside LATENCY_WINDOW_NS of the newest, oldest first.

    Counted, since a step's gaps are nearly all the same one: a thousand sequences make two or three points of it.
    """

    points: deque[tuple[int, int, int]] = field(default_factory=deque)

    def add(self, t_ns: int, value_ns: int, count: int = 1) -> None:
        self.points.append((t_ns, value_ns, count))
        self.expire(t_ns)

    def expire(self, now_ns: int) -> None:
        points, limit = self.points, now_ns - LATENCY_WINDOW_NS
        while points and points[0][0] < limit:
            points.popleft()


@dataclass(slots=True)
class PreemptedGaps:
    """Gaps between tokens that hold a preemption: (t_ns, gap_ns, sequence), as long as latency samples."""

    points: deque[tuple[int, int, str]] = field(default_factory=deque)
    away: dict[str, int] = field(default_factory=dict)  # sequence without blocks -> when its last token came

    def back(self, sequences: dict[str, SequenceState], t_ns: int) -> None:
        """At the end of a step: whoever emitted in it is back."""
        for seq_id, before_ns in list(self.away.items()):
            seq = sequences.get(seq_id)
            if seq is not None and seq.t_last_token_ns == t_ns:
                self.points.append((t_ns, t_ns - before_ns, seq_id))
            if seq is None or seq.t_last_token_ns == t_ns:
                del self.away[seq_id]
        while self.points and self.points[0][0] < t_ns - LATENCY_WINDOW_NS:
            self.points.popleft()


@dataclass(slots=True)
class Lookups:
    """Prefix lookups (t_ns, prompt tokens, of them found, why the match ended, request) as long as latency samples.

    The sums are those of ``points``. ``missed``: tokens behind the end of a match, by why it ended there.
    """

    points: deque[tuple[int, int, int, str, str]] = field(default_factory=deque)
    prompt_tokens: int = 0
    found_tokens: int = 0
    num_with_hits: int = 0
    missed: dict[str, int] = field(default_factory=dict)

    def add(self, t_ns: int, prompt: int, found: int, reason: str, request_id: str) -> None:
        points, limit = self.points, t_ns - LATENCY_WINDOW_NS
        points.append((t_ns, prompt, found, reason, request_id))
        self._count(prompt, found, reason, 1)
        while points[0][0] < limit:
            _, prompt, found, reason, _ = points.popleft()
            self._count(prompt, found, reason, -1)

    def _count(self, prompt: int, found: int, reason: str, sign: int) -> None:
        self.prompt_tokens += sign * prompt
        self.found_tokens += sign * found
        self.num_with_hits += sign * (found > 0)
        self.missed[reason] = self.missed.get(reason, 0) + sign * (prompt - found)


@dataclass(slots=True)
class RunState:
    """Everything a screen or an exporter may show. ``version`` grows with every event folded in."""

    version: int = 0
    run_id: str = ""
    manifest: dict[str, Any] = field(default_factory=dict)  # as run.json: model, device, policy, clock, ...
    status: str = "starting"  # starting, running, paused, complete, interrupted, failed
    notice: str = ""
    notice_level: str = "info"
    progress: float | None = None
    error: str = ""
    traceback: str = ""
    t_ns: int = 0
    step: int = 0
    pool: PoolState | None = None
    sequences: dict[str, SequenceState] = field(default_factory=dict)  # live ones, in order of arrival
    arrivals: dict[str, RequestEvent] = field(default_factory=dict)  # of live requests, by request id
    num_finished: int = 0
    num_rejected: int = 0
    finished: deque[RequestEvent] = field(default_factory=lambda: deque(maxlen=500))  # newest last
    totals: dict[str, int] = field(default_factory=dict)  # query_tokens, hit_tokens, preemptions, output_tokens, ...
    last_step: StepEvent | None = None
    head_of_line: str = ""
    history: History = field(default_factory=History)
    ttft: Samples = field(default_factory=Samples)
    itl: Samples = field(default_factory=Samples)
    queue: Samples = field(default_factory=Samples)  # submission to first admission
    preempted_gaps: PreemptedGaps = field(default_factory=PreemptedGaps)
    lookups: Lookups = field(default_factory=Lookups)
    tenant_block_ns: dict[str, int] = field(default_factory=dict)  # of sequences that have ended
    logs: RequestLogs = field(default_factory=RequestLogs)  # by request, for its explanation
    cache: CacheLog = field(default_factory=CacheLog)  # lookups, and what evictions cost
    events_dropped: int = 0
    stalled: str = ""
    paused_by: str = ""  # the breakpoint that paused it
    attached: Attached | None = None  # what running servers report, where no engine of ours runs

    @property
    def has_begun(self) -> bool:
        """There is something to look at: a pool, or an attached server."""
        return self.pool is not None or (self.attached is not None and self.attached.has_looked)

    def wait_reason(self, seq: SequenceState) -> tuple[str, str]:
        """Why ``seq`` waits now and on whom: ("", "") when it runs, ``head_of_line`` for all behind the head.

        A beam that waits for its group is not in the queue.
        """
        if seq.state == "running":
            return "", ""
        if self.head_of_line and seq.seq_id != self.head_of_line and seq.wait_reason != "beams":
            return "head_of_line", self.head_of_line
        return seq.wait_reason, seq.wait_blocker
