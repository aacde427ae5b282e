"""States and reasons by name: why a sequence ended or waits, why a prefix missed, what a block is."""

from __future__ import annotations

from enum import StrEnum


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"  # an end-of-sequence token, stop id or stop string
    LENGTH = "length"  # max_tokens, or max_model_len
    CAPACITY = "capacity"  # alone in the pool and still cannot grow
    ABORTED = "aborted"
    REJECTED = "rejected"  # never entered the queue
    FAILED = "failed"  # the executor raised
    DROPPED = "dropped"  # a beam that is none of the answers its request returns


class RequestState(StrEnum):
    WAITING = "waiting"  # never admitted yet
    RUNNING = "running"
    PREEMPTED = "preempted"  # admitted before, lost its blocks, waits again
    FINISHED = "finished"


class BlockState(StrEnum):
    FRESH = "fresh"  # refcount 0, nothing published
    IDLE = "idle"  # refcount 0, published, evictable
    USED = "used"  # refcount > 0
    IN_TRANSFER = "in_transfer"  # refcount 0, but a deferred free or copy still needs it
    WITHHELD = "withheld"  # refcount 0, out of circulation: the pool's limit is below its size


class WaitReason(StrEnum):
    """Why a waiting sequence was not admitted in a step."""

    NO_BLOCKS = "no_blocks"  # need > fresh + idle - promised - reserve
    PINNED = "pinned"  # would fit if pinned blocks could be taken
    NO_HOLE = "no_hole"  # contiguous: enough blocks, no hole large enough
    SEATS = "seats"  # max_num_seqs sequences run already
    BUDGET = "budget"  # the step's token budget is spent
    PREEMPTING = "preempting"  # a step that preempted admits nobody
    HEAD_OF_LINE = "head_of_line"  # somebody ahead in the queue does not fit
    FAULT = "fault"  # an injected allocator fault
    BEAMS = "beams"  # it has its candidates; other beams of its request do not yet, so nothing is chosen


class MissReason(StrEnum):
    """Why the prefix match of an admission ended where it did."""

    LAST_TOKEN = "last_token"  # everything that may be cached was: one token is always computed
    NEVER_SEEN = "never_seen"
    EVICTED = "evicted"  # it was published once; the event names the step and the cause
    OTHER_SALT = "other_salt"  # same tokens, published under another extra key
    NOT_YET_COMPUTED = "not_yet_computed"  # a running request is computing this very block
    PROMPT_LOGPROBS = "prompt_logprobs"  # it asked for those of its prompt: all of it is computed
    CACHE_OFF = "cache_off"


class ResetResult(StrEnum):
    DONE = "done"  # nothing published was in use
    PARTIAL = "partial"  # blocks in use were unpublished but stay with their owners
