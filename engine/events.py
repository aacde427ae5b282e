"""The one stream of events: what every consumer (TUI, Parquet, replay, checker) reads. Loads no torch.

Scheduler and allocator append *decisions* to a recorder; once a step they are sealed into one ``StepEvent``.
A decision is a plain tuple ``(kind, *fields)`` whose fields ``DECISION_FIELDS[kind]`` names: a tuple costs a tenth
of a struct, and a step makes hundreds. The names are those of the columns of ``events.parquet``.

Block decisions rebuild every block table exactly (``kvtop.state.reduce`` does, and a test holds it to the engine):
their ``num_tokens`` is the position of the block's first token in its sequence, so ``num_tokens // block_size`` is
the index in the table of the block's KV group (entries below it that no decision names are NULL_BLOCK).

What goes the other way, the commands, can be imported from here as well.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvtop.engine.commands import Abort as Abort
from kvtop.engine.commands import AnyCommand as AnyCommand
from kvtop.engine.commands import Command as Command
from kvtop.engine.commands import FindPrompt as FindPrompt
from kvtop.engine.commands import Pause as Pause
from kvtop.engine.commands import RequestKeyframe as RequestKeyframe
from kvtop.engine.commands import Resume as Resume
from kvtop.engine.commands import RunUntil as RunUntil
from kvtop.engine.commands import SetBreakpoints as SetBreakpoints
from kvtop.engine.commands import SetConfig as SetConfig
from kvtop.engine.commands import Step as Step
from kvtop.engine.commands import Stop as Stop
from kvtop.engine.commands import Submit as Submit
from kvtop.engine.commands import decode_command as decode_command

Decision = tuple[Any, ...]

DECISION_FIELDS: dict[str, tuple[str, ...]] = {
    # requests ------------------------------------------------------------------------------------------------
    "arrived": ("request_id", "num_tokens"),  # prompt tokens
    "rejected": ("request_id", "num_tokens", "reason"),
    "lookup": ("request_id", "num_tokens", "reason", "other", "block_key", "age_steps"),
    # ^ tokens found in the cache; why the match ended, who evicted the block it missed and how many steps ago
    "admitted": ("request_id", "num_tokens", "need_blocks", "have_blocks"),  # known tokens; first admission
    "resumed": ("request_id", "num_tokens", "need_blocks", "have_blocks"),  # admission after a preemption
    "skipped": ("request_id", "reason", "other", "need_blocks", "have_blocks"),  # when (reason, blocker) changes
    "forked": ("request_id", "other"),  # new branch; its parent sequence
    "restarted": ("request_id", "other"),  # a beam that was not chosen goes on as a branch of another one
    "chosen": ("request_id", "num_tokens"),  # a group of beams has chosen: known tokens of this one, one more now
    "chunk": ("request_id", "num_tokens", "age_steps"),  # tokens computed; age_steps holds the start position
    "first_token": ("request_id",),
    "preempted": ("request_id", "reason", "other", "num_tokens", "need_blocks"),
    # ^ no_blocks, or beams: a beam that only waited for others of its request made room for them; who needed the
    #   room, computed tokens thrown away (0 after swap_out), blocks given back
    "finished": ("request_id", "reason", "num_tokens"),  # output tokens
    "aborted": ("request_id", "num_tokens"),
    # blocks --------------------------------------------------------------------------------------------------
    "alloc": ("request_id", "group", "block", "num_tokens"),  # refcount 0 -> 1, appended to the table
    "share": ("request_id", "group", "block", "num_tokens", "reason"),  # refcount + 1; reason: hit, fork, dedup
    "copy": ("request_id", "group", "block", "other", "num_tokens"),
    # ^ copy-on-write: block (new, refcount 1) replaces other (refcount - 1) in the table
    "free": ("request_id", "group", "block", "reason"),  # refcount - 1; reason: release, dedup, window
    # ^ window: the block fell out of its group's sliding window; its entry in the table is NULL_BLOCK from then on
    "publish": ("request_id", "group", "block", "block_key", "parent_key"),
    "unpublish": ("group", "block", "block_key", "reason"),  # by a reset; not an eviction
    "evict": ("request_id", "group", "block", "block_key", "parent_key", "age_steps", "idle_steps", "uses"),
    "swap_out": ("request_id", "group", "block", "other"),  # other: the host block
    "swap_in": ("request_id", "group", "block", "other"),
    "host_store": ("request_id", "group", "block", "block_key", "other", "reason"),
    # ^ an evicted block's content is kept in host block other; reason: copied, or there (it was: nothing is moved)
    "host_evict": ("request_id", "group", "other", "block_key", "age_steps", "idle_steps", "uses"),
    # ^ host block other forgets what was stored age_steps ago: it is needed for what request_id drives out
    "host_load": ("request_id", "group", "block", "other"),  # block, just given to it, is filled from host block other
    "host_hit": ("request_id", "num_tokens"),  # tokens of such blocks in this admission, part of what its lookup found
    "pin": ("group", "block"),
    "unpin": ("group", "block"),
    "cleared": ("reason",),  # done or partial
    "withhold": ("block",),  # fresh -> withheld: the pool's limit was lowered
    "give_back": ("block",),  # withheld -> fresh
    # run -----------------------------------------------------------------------------------------------------
    "config": ("reason",),  # key=value
    "stalled": ("request_id", "reason", "need_blocks", "have_blocks"),
}
"""Columns of each kind of decision, in tuple order after the kind itself."""


class Event(msgspec.Struct, frozen=True, tag_field="e", omit_defaults=True):
    """Base of all events. ``t_ns`` is the run's clock."""


class RunStarted(Event, frozen=True, tag="run", kw_only=True):
    """First event of a run. ``manifest`` is run.json as known at the start (results/RESULTS.md names its keys)."""

    run_id: str
    manifest: dict[str, Any]
    t_ns: int = 0


class StepEvent(Event, frozen=True, tag="step", kw_only=True):
    """One step: its times, its totals and every decision in order. Block counts are after the step."""

    step: int
    t_start_ns: int
    t_planned_ns: int
    t_done_ns: int
    device_ns: int = 0
    num_running: int = 0
    num_waiting: int = 0
    prefill_tokens: int = 0  # tokens computed below the last known position of their sequence
    decode_tokens: int = 0
    used_blocks: int = 0
    idle_blocks: int = 0
    fresh_blocks: int = 0
    in_transfer_blocks: int = 0
    withheld_blocks: int = 0
    host_blocks: int = 0  # in use, for swapped-out sequences
    host_cached_blocks: int = 0  # in use, for evicted prefixes
    filled_slots: int = 0  # token slots filled in used blocks, shared blocks once
    reserved_unused_slots: int = 0  # slots of used blocks that hold nothing
    query_tokens: int = 0  # in this step, as the next four
    hit_tokens: int = 0
    host_hit_tokens: int = 0
    evictions: int = 0
    preemptions: int = 0
    copies: int = 0
    admitted: int = 0
    finished: int = 0
    waiting_reason: str = ""  # of the head of the queue
    head_of_line: str = ""  # sequence id that holds up everyone behind it
    decisions: list[Decision] = []
    emitted: list[tuple[str, int]] = []  # (sequence id, tokens emitted), at t_done_ns


class RequestEvent(Event, frozen=True, tag="req", kw_only=True):
    """A request arrived (phase ``arrived``: the first block of fields) or ended (phase ``finished``: all of them).

    Ended means that all its branches have. Fields are those of requests.parquet; None is "has not happened".
    """

    phase: str
    t_ns: int
    request_id: str
    prompt_tokens: int
    requested_output_tokens: int
    t_sched_ns: int
    t_submit_ns: int
    req_index: int = 0  # submission number
    n: int = 1
    priority: int = 0
    tenant: str = ""
    klass: str = ""
    session_id: str = ""
    turn: int = 0
    parent_request_id: str = ""
    # known at the end
    output_tokens: int = 0  # all branches
    t_first_sched_ns: int | None = None
    t_first_token_ns: int | None = None
    t_last_token_ns: int | None = None
    t_done_ns: int | None = None
    tpot_ns: int | None = None  # mean over branches with at least two tokens
    itl_max_ns: int | None = None
    hit_tokens: int | None = None  # on the device; None: never admitted
    host_hit_tokens: int = 0
    miss_reason: str | None = None
    restored_tokens: int = 0
    recomputed_tokens: int = 0
    num_preemptions: int = 0
    preempted_ns: int = 0
    queue_total_ns: int = 0  # all time spent waiting, preemptions included
    peak_blocks: int = 0
    shared_blocks_saved: int = 0
    finish_reason: str | None = None  # of branch 0
    error: str = ""  # rejected or failed: one line


class Observed(Event, frozen=True, kw_only=True):
    """Something seen of an attached server, in place of a step: ``step`` counts what was seen, from 1."""

    step: int
    t_ns: int

    @property
    def t_start_ns(self) -> int:
        """As of a step: when it was."""
        return self.t_ns

    @property
    def t_done_ns(self) -> int:
        return self.t_ns


class Histogram(msgspec.Struct, frozen=True, array_like=True):
    """Cumulative since the server started. ``bounds``: upper ends, the last +Inf; ``counts``: samples up to each."""

    bounds: list[float]
    counts: list[float]
    total: float | None  # sum of the samples; None: not reported


class EngineSample(msgspec.Struct, frozen=True, array_like=True):
    """What one engine of a server reports, under kvtop's names (``kvtop.attach.names``); what is absent is left out.

    ``broken``: names whose value was no number (NaN, infinite, unreadable), with what stood there. ``whole``: names
    that the server reports once for all of its engines; they are kept with one of them.
    """

    engine: str
    model: str
    gauges: dict[str, float]
    counters: dict[str, float]
    histograms: dict[str, Histogram]
    info: dict[str, str] = {}
    broken: dict[str, str] = {}
    whole: list[str] = []


class Sample(Observed, frozen=True, tag="sample", kw_only=True):
    """One look at the metrics of ``server``. ``problem`` says why there is nothing to show ("": ``engines`` has it)."""

    server: str
    kind: str = ""  # vllm or sglang
    problem: str = ""
    engines: list[EngineSample] = []
    took_ns: int = 0  # from asking to having it parsed
    started: float | None = None  # process_start_time_seconds


class KvStream(msgspec.Struct, frozen=True, array_like=True):
    """How far the events of one rank are known. Counts are since kvtop listens."""

    source: str  # endpoint
    rank: int
    last_seq: int
    num_messages: int
    num_events: int
    num_lost: int  # messages that were published and never seen, not even by asking again
    num_replayed: int  # messages that were asked for again, and came
    num_cached: int  # blocks of this rank, on all tiers
    num_orphans: int  # of them, stored under a parent that is not known
    partial: str = ""  # why the tree is not all of it ("": it is)
    lag_ns: int | None = None  # published to folded into the tree, by the two machines' clocks; None: they disagree
    problem: str = ""  # of older recordings: it is in ``KvEvents.troubles``
    tiers: dict[str, int] = {}  # blocks by medium


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """Whose the next ``count`` decisions are: a rank of an endpoint.

    ``when`` "late": from while the connection was lost; "before": from before kvtop listened. ``is_load``: the blocks
    are on another tier of the rank too, so they were not computed.
    """

    count: int
    source: str
    rank: int
    when: str = ""
    is_load: bool = False


class KvEvents(Observed, frozen=True, tag="kv", kw_only=True):
    """Blocks that a server stored and removed, as decisions on a logical pool: one block for each (rank, hash).

    The decisions are ``alloc``, ``publish``, ``free`` of a stored block, ``evict`` of a removed one, ``unpublish`` of
    one forgotten by a reset, ``cleared`` where what was evicted is no longer known to a rank. ``tokens`` (key, token
    ids) is filled only where that was asked for.
    """

    decisions: list[Decision] = []
    stored: int = 0  # blocks on the device, since kvtop listens
    removed: int = 0
    removed_late: int = 0  # of these, so many while the connection was lost
    origins: list[Origin] = []  # of all decisions, in order; [] in older recordings
    streams: list[KvStream] = []  # those that changed
    notes: list[str] = []  # a gap, a restart, a reset: one line each
    tokens: list[tuple[int, list[int]]] = []
    troubles: dict[str, str] = {}  # what is wrong with an endpoint, where that has changed ("": nothing any more)


class BlockRow(msgspec.Struct, frozen=True, array_like=True):
    """One non-fresh block in a keyframe."""

    block: int
    state: str
    refcount: int
    filled: int
    key: int | None
    parent_key: int | None
    published_step: int
    last_use_step: int
    uses: int
    pins: int


class SequenceRow(msgspec.Struct, frozen=True, array_like=True):
    """One live sequence in a keyframe."""

    seq_id: str
    request_id: str
    state: str
    num_prompt: int
    num_tokens: int
    num_computed: int
    max_tokens: int
    cached_tokens: int
    num_preemptions: int
    block_table: list[int]
    wait_reason: str
    wait_blocker: str
    t_sched_ns: int
    t_submit_ns: int
    t_first_token_ns: int | None
    t_last_token_ns: int | None
    high_water: int = 0  # positions below it have been computed before
    num_swapped: int = 0  # tokens that wait in host memory
    other_tables: list[list[int]] = []  # of the KV groups after the first; -1 is a block that fell out of the window


class Keyframe(Event, frozen=True, tag="key", kw_only=True):
    """The whole pool and request table before step ``step``: where folding may start.

    Fresh blocks are left out; those in transfer come last, in order of their release.
    """

    step: int
    t_ns: int
    num_blocks: int
    block_size: int
    blocks: list[BlockRow]
    sequences: list[SequenceRow]  # running first, in static order; then the queue in its order
    totals: dict[str, int]  # KVCounters by name
    limit: int | None = None  # blocks that may be used; None: all


class Paused(Event, frozen=True, tag="paused", kw_only=True):
    t_ns: int
    reason: str = ""  # of a breakpoint; "": somebody asked for it


class Resumed(Event, frozen=True, tag="resumed", kw_only=True):
    t_ns: int


class ConfigChanged(Event, frozen=True, tag="config", kw_only=True):
    t_ns: int
    changes: dict[str, Any]


class Stalled(Event, frozen=True, tag="stalled", kw_only=True):
    """Nothing can advance and nothing is due: the run ends after this."""

    t_ns: int
    request_id: str
    reason: str
    need_blocks: int
    have_blocks: int


class Gap(Event, frozen=True, tag="gap", kw_only=True):
    """Frames were dropped because the reader was slow; a keyframe follows."""

    t_ns: int
    dropped: int  # events


class Notice(Event, frozen=True, tag="notice", kw_only=True):
    """One line for the user from the engine's process: loading, a clipped request, a line on stderr."""

    t_ns: int
    text: str
    level: str = "info"  # info, warning, error
    progress: float | None = None  # 0..1 while something is loading


class AnswerPart(msgspec.Struct, frozen=True, array_like=True):
    """What came of one sequence in one step. ``text``: whole characters only; "" while one is unfinished."""

    seq_id: str
    text: str
    num_tokens: int
    finish_reason: str | None = None  # a FinishReason; None: it goes on


class AnswerEnd(msgspec.Struct, frozen=True, array_like=True):
    """A request is over: all its parts have been told. ``kind`` "": it ended by itself.

    Else it is aborted or failed, or was never accepted (too_long, queue_full, invalid), and ``error`` says why.
    """

    request_id: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    kind: str = ""
    error: str = ""


class Answered(Event, frozen=True, tag="answer", kw_only=True):
    """What the requests of ``Submit`` commands have come to since the last one. To whoever sent them, and nobody else:
    it is in no recording. ``accepted``: (request id, prompt tokens).
    """

    t_ns: int
    accepted: list[tuple[str, int]] = []
    parts: list[AnswerPart] = []
    ended: list[AnswerEnd] = []


class PromptKeys(Event, frozen=True, tag="prompt", kw_only=True):
    """Answers a ``FindPrompt``: neither text nor tokens, and in no recording.

    ``keys`` has an entry for each whole block: the keys it may be cached under (several where servers hash in ways of
    their own), none where no server has told of such a block. ``problem``: why there are none at all.
    """

    t_ns: int
    num_tokens: int = 0
    keys: list[list[int]] = []
    problem: str = ""


class RunEnded(Event, frozen=True, tag="end", kw_only=True):
    """Last event. ``status``: complete, interrupted or failed; ``error`` is one line, ``traceback`` for the log."""

    t_ns: int
    status: str
    error: str = ""
    traceback: str = ""
    exit_code: int = 0


AnyEvent = (
    RunStarted
    | StepEvent
    | Sample
    | KvEvents
    | RequestEvent
    | Keyframe
    | Paused
    | Resumed
    | ConfigChanged
    | Stalled
    | Gap
    | Notice
    | Answered
    | PromptKeys
    | RunEnded
)

encode = msgspec.msgpack.Encoder().encode
decode_many = msgspec.msgpack.Decoder(list[AnyEvent]).decode
"""A frame on the pipe and in ``frames.msgpack.zst`` is one msgpack list of events."""
