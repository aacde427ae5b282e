"""Live and ended requests under one face: the columns of the table of requests, which filters and orders read too.

A row reads the state when it is asked: of thousands of rows only what is on the screen, or what an order or a filter
needs, is worked out. None is "not known" or "does not apply", never 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvtop.engine.events import RequestEvent
from kvtop.engine.types import NULL_BLOCK
from kvtop.state.model import RunState, SequenceState
from kvtop.state.windows import is_decoding, quiet_ns

DONE = "\x00done:"
"""Begins the ids of rows that ended; no live id holds a NUL."""

LIVE_STATES = ("prefill", "decode", "waiting", "preempted")
END_STATES = ("done", "aborted", "rejected", "failed")


@dataclass(slots=True)
class LiveRow:
    """A sequence that runs or waits."""

    state: RunState
    seq: SequenceState

    @property
    def id(self) -> str:
        return self.seq.seq_id

    name = id

    @property
    def status(self) -> str:
        """prefill, decode, waiting (never admitted) or preempted."""
        if self.seq.state != "running":
            return self.seq.state
        return "decode" if is_decoding(self.seq) else "prefill"

    @property
    def is_running(self) -> bool:
        return self.seq.state == "running"

    @property
    def arrival(self) -> RequestEvent | None:
        return self.state.arrivals.get(self.seq.request_id)

    @property
    def tenant(self) -> str:
        return self.seq.tenant

    @property
    def klass(self) -> str:
        return self.arrival.klass if self.arrival else ""

    @property
    def session(self) -> str:
        return self.arrival.session_id if self.arrival else ""

    @property
    def prefix(self) -> str:
        """Key of its first block, where that is published: equal for all that begin alike."""
        pool, table = self.state.pool, self.seq.table
        key = pool.key[table[0]] if pool is not None and table and table[0] != NULL_BLOCK else None
        return "" if key is None else f"{key & 0xFFFFFFFF:08x}"

    @property
    def prompt(self) -> int:
        return self.seq.num_prompt

    @property
    def cached(self) -> int | None:
        """Prompt tokens found in the cache at its first admission; None: not admitted yet, or a branch, born later."""
        is_branch = self.seq.seq_id != self.seq.request_id
        return None if is_branch or self.status == "waiting" else self.seq.cached_tokens

    @property
    def hit(self) -> float | None:
        return None if self.cached is None or not self.prompt else self.cached / self.prompt

    @property
    def why(self) -> str:
        return self.seq.miss_reason

    @property
    def computed(self) -> int | None:
        return self.seq.num_computed if self.is_running else None

    @property
    def known(self) -> int:
        return self.seq.num_tokens

    @property
    def output(self) -> int:
        return self.seq.num_tokens - self.seq.num_prompt

    @property
    def max(self) -> int:
        return self.seq.max_tokens

    @property
    def blocks(self) -> int | None:
        return self.seq.num_held or None

    @property
    def shared(self) -> int | None:
        """Of its blocks, those that others hold too. O(its blocks)."""
        pool = self.state.pool
        if pool is None or not self.seq.num_held:
            return None
        return sum(pool.refcount[block] > 1 for block in self.seq.held)

    @property
    def tail(self) -> int | None:
        """Slots of its last block that hold nothing."""
        pool, table = self.state.pool, self.seq.table
        if pool is None or not table or table[-1] == NULL_BLOCK:
            return None
        return pool.block_size - pool.filled[table[-1]]

    @property
    def block_ns(self) -> int:
        return self.seq.block_ns(self.state.t_ns)

    @property
    def first_sched_ns(self) -> int | None:
        log = self.state.logs.find(self.seq.request_id)
        return None if log is None else log.t_first_sched_ns

    @property
    def queue_ns(self) -> int | None:
        """Until the first step that computed a token of it; of one that was never admitted, so far."""
        if self.status == "waiting":
            return max(0, self.state.t_ns - self.seq.t_submit_ns)
        first = self.first_sched_ns
        return None if first is None else first - self.seq.t_submit_ns

    @property
    def prefill_ns(self) -> int | None:
        first, token = self.first_sched_ns, self.seq.t_first_token_ns
        return None if first is None or token is None else token - first

    @property
    def wait_ns(self) -> int:
        """How long it has been waiting by now; 0: it runs."""
        if self.is_running:
            return 0
        return max(0, self.state.t_ns - (self.seq.t_submit_ns if self.status == "waiting" else self.seq.held_since_ns))

    @property
    def ttft_ns(self) -> int | None:
        first = self.seq.t_first_token_ns
        return None if first is None else first - self.seq.t_sched_ns

    @property
    def itl_ns(self) -> int | None:
        """Its last gap."""
        return self.seq.last_itl_ns

    @property
    def tpot_ns(self) -> float | None:
        first, last = self.seq.t_first_token_ns, self.seq.t_last_token_ns
        return None if first is None or last is None or self.output < 2 else (last - first) / (self.output - 1)

    @property
    def age_ns(self) -> int:
        return self.state.t_ns - self.seq.t_sched_ns

    @property
    def eta_ns(self) -> float | None:
        """Until its token limit at the pace of its last gap. It may stop earlier.

        None while it does not decode, and while the engine is quiet: there is no pace then.
        """
        if self.status != "decode" or self.seq.last_itl_ns is None or quiet_ns(self.state) is not None:
            return None
        return max(0, self.max - self.output) * self.seq.last_itl_ns

    @property
    def preemptions(self) -> int:
        return self.seq.num_preemptions

    @property
    def redo(self) -> int:
        return self.seq.recomputed

    @property
    def reason(self) -> str:
        """Why it waits; "" when it runs."""
        return self.state.wait_reason(self.seq)[0]


@dataclass(slots=True)
class EndedRow:
    """A request that ended not long ago."""

    state: RunState
    event: RequestEvent

    @property
    def id(self) -> str:
        return DONE + self.event.request_id

    @property
    def name(self) -> str:
        return self.event.request_id

    @property
    def status(self) -> str:
        reason = self.event.finish_reason or ""
        return reason if reason in END_STATES else "done"

    is_running = False
    prefix = ""
    computed = shared = tail = blocks = eta_ns = None
    wait_ns = 0

    @property
    def tenant(self) -> str:
        return self.event.tenant

    @property
    def klass(self) -> str:
        return self.event.klass

    @property
    def session(self) -> str:
        return self.event.session_id

    @property
    def prompt(self) -> int:
        return self.event.prompt_tokens

    @property
    def cached(self) -> int | None:
        return self.event.hit_tokens

    @property
    def hit(self) -> float | None:
        return None if self.cached is None or not self.prompt else self.cached / self.prompt

    @property
    def why(self) -> str:
        return self.event.miss_reason or ""

    @property
    def known(self) -> int:
        return self.event.prompt_tokens + self.event.output_tokens

    @property
    def output(self) -> int:
        return self.event.output_tokens

    @property
    def max(self) -> int:
        return self.event.requested_output_tokens * self.event.n

    @property
    def block_ns(self) -> int | None:
        return None

    @property
    def first_sched_ns(self) -> int | None:
        return self.event.t_first_sched_ns

    @property
    def queue_ns(self) -> int | None:
        first = self.event.t_first_sched_ns
        return None if first is None else first - self.event.t_submit_ns

    @property
    def prefill_ns(self) -> int | None:
        first, token = self.event.t_first_sched_ns, self.event.t_first_token_ns
        return None if first is None or token is None else token - first

    @property
    def ttft_ns(self) -> int | None:
        first = self.event.t_first_token_ns
        return None if first is None else first - self.event.t_sched_ns

    @property
    def itl_ns(self) -> int | None:
        """Its longest gap."""
        return self.event.itl_max_ns

    @property
    def tpot_ns(self) -> float | None:
        return self.event.tpot_ns

    @property
    def age_ns(self) -> int:
        """From when it was due to its end: E2E, where it came to its end by itself."""
        end = self.event.t_done_ns if self.event.t_done_ns is not None else self.event.t_ns
        return end - self.event.t_sched_ns

    @property
    def preemptions(self) -> int:
        return self.event.num_preemptions

    @property
    def redo(self) -> int:
        return self.event.recomputed_tokens

    @property
    def reason(self) -> str:
        return self.event.finish_reason or ""


Row = LiveRow | EndedRow


def live_rows(state: RunState) -> Iterator[LiveRow]:
    """Running ones, then the queue, each in order of arrival."""
    yield from (LiveRow(state, seq) for seq in state.sequences.values() if seq.state == "running")
    yield from (LiveRow(state, seq) for seq in state.sequences.values() if seq.state != "running")


def ended_rows(state: RunState) -> Iterator[EndedRow]:
    """Newest first; an id that was used twice once."""
    seen: set[str] = set()
    for event in reversed(state.finished):
        if event.request_id not in seen:
            seen.add(event.request_id)
            yield EndedRow(state, event)
