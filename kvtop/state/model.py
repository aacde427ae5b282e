"""The state of a run as a reader of the event stream knows it. ``reduce`` builds it; widgets and exporters pull it."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from kvtop.engine.events import Decision, RequestEvent, StepEvent
from kvtop.engine.types import NULL_BLOCK
from kvtop.state.attached import Attached
from kvtop.state.cache_log import CacheLog
from kvtop.state.request_logs import Entry, RequestLogs
from kvtop.state.samples import Lookups, PreemptedGaps, Samples

FRESH, IDLE, USED, IN_TRANSFER, WITHHELD = range(5)
"""Values of ``PoolState.state``, in the order fresh, idle, used, in transfer, withheld."""

NOT_KNOWN = -1

HISTORY_STEPS = 4096  # steps kept for charts


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


def _column() -> array[int]:
    return array("q")


@dataclass(slots=True)
class History:
    """One column a quantity, one entry a step, oldest first, at most HISTORY_STEPS."""

    t_ns: array[int] = field(default_factory=_column)
    used: array[int] = field(default_factory=_column)
    idle: array[int] = field(default_factory=_column)
    fresh: array[int] = field(default_factory=_column)
    running: array[int] = field(default_factory=_column)
    waiting: array[int] = field(default_factory=_column)
    prefill_tokens: array[int] = field(default_factory=_column)
    decode_tokens: array[int] = field(default_factory=_column)
    step_ns: array[int] = field(default_factory=_column)
    evictions: array[int] = field(default_factory=_column)
    preemptions: array[int] = field(default_factory=_column)
    finished: array[int] = field(default_factory=_column)
    step: array[int] = field(default_factory=_column)
    start_ns: array[int] = field(default_factory=_column)
    waiting_reason: list[str] = field(default_factory=list)  # of the head of the queue

    def add(self, event: StepEvent) -> None:
        self.t_ns.append(event.t_done_ns)
        self.used.append(event.used_blocks)
        self.idle.append(event.idle_blocks)
        self.fresh.append(event.fresh_blocks)
        self.running.append(event.num_running)
        self.waiting.append(event.num_waiting)
        self.prefill_tokens.append(event.prefill_tokens)
        self.decode_tokens.append(event.decode_tokens)
        self.step_ns.append(event.t_done_ns - event.t_start_ns)
        self.evictions.append(event.evictions)
        self.preemptions.append(event.preemptions)
        self.finished.append(event.finished)
        self.step.append(event.step)
        self.start_ns.append(event.t_start_ns)
        self.waiting_reason.append(event.waiting_reason)
        if len(self.t_ns) > HISTORY_STEPS:
            for name in self.__slots__:
                del getattr(self, name)[0]


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
    last_runs: list[tuple[str, list[Decision]]] = field(default_factory=list)  # its decisions, of a kind in a row
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
