"""The lines of a life: each function makes the text of one and the same in numbers. Times are the run's clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from kvtop.cli.text import format_ns
from kvtop.why.facts import Row
from kvtop.why.words import lasting, listed, span
from kvtop.workloads.words import counted

Said = tuple[str, dict[str, Any]]
"""A text and its numbers."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a life: of which sequence, when, what, in words, and the same in numbers."""

    seq_id: str
    t_ns: int | None
    step: int | None
    kind: str
    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        where = {"sequence": self.seq_id, "t_ns": self.t_ns, "step": self.step, "kind": self.kind}
        return {**where, "text": self.text, **self.numbers}


@dataclass(frozen=True, slots=True)
class Chunk:
    """``count`` tokens computed in one step, from position ``start``."""

    step: int
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count


@dataclass(slots=True)
class Return:
    """The way back of a sequence without blocks: over once position ``target`` is computed.

    ``other`` is who took its blocks; "" for a branch that was ``born`` without any.
    """

    step: int  # in which it would have computed position ``target``
    target: int
    other: str = ""
    born: bool = False
    host_tokens: int = 0  # of its tokens in host memory
    resumed: int | None = None  # step
    restored: int = 0
    recomputed: int = 0
    num_chunks: int = 0


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gaps between tokens, ns; the longest ended with step ``worst``."""

    mean_ns: int | None = None
    longest_ns: int | None = None
    worst: int | None = None

    @classmethod
    def between(cls, times: Sequence[tuple[int, int | None]]) -> Gaps:
        """Of consecutive tokens, each with its step and its time."""
        gaps = [
            (after - before, step)
            for (_, before), (step, after) in pairwise(times)
            if before is not None and after is not None
        ]
        if not gaps:
            return cls()
        longest, worst = max(gaps, key=lambda gap: gap[0])
        return cls(sum(gap for gap, _ in gaps) // len(gaps), longest, worst)

    def as_json(self) -> dict[str, Any]:
        return {"itl_mean_ns": self.mean_ns, "itl_max_ns": self.longest_ns, "itl_max_step": self.worst}


def minus(end: int | None, start: int | None) -> int | None:
    return None if end is None or start is None else end - start


def arrival(request: Row, num_prompt: int) -> Said:
    lag = minus(request.get("t_submit_ns"), request.get("t_sched_ns"))
    asked, n = request.get("requested_output_tokens"), request.get("n") or 1
    parts = [counted(num_prompt, "prompt token")]
    parts += [f"up to {counted(asked, 'token')} to come"] if asked else []
    parts += [f"{n} branches"] if n > 1 else []
    parts += [f"priority {request['priority']}"] if request.get("priority") else []
    parts += [f"tenant {request['tenant']}"] if request.get("tenant") else []
    parts += [f"turn {request.get('turn')} of {request['session_id']}"] if request.get("session_id") else []
    parts += [f"submitted {format_ns(lag)} after it was due"] if lag else []
    numbers = {"prompt_tokens": num_prompt, "requested_output_tokens": asked, "n": n, "lag_ns": lag}
    return f"arrived: {', '.join(parts)}", numbers


def admission(row: Row, cached: int, shared_blocks: int) -> Said:
    known, need, have = row["num_tokens"], row.get("need_blocks"), row.get("have_blocks")
    text = f"admitted: {cached:,} of {counted(known, 'token')} cached, {known - cached:,} to compute"
    if need is not None and have is not None:
        text += f"; {counted(need, 'block')} needed, {have:,} available"
    numbers = {"known_tokens": known, "cached_tokens": cached, "shared_blocks": shared_blocks}
    return text, {**numbers, "need": need, "have": have}


def prefill(chunks: Sequence[Chunk]) -> Said:
    total, counts = sum(c.count for c in chunks), [c.count for c in chunks]
    how = " + ".join(f"{count:,}" for count in counts) if len(counts) <= 6 else f"up to {max(counts):,} at once"
    pieces = f" in {counted(len(chunks), 'chunk')} ({how})" if len(chunks) > 1 else ""
    text = f"prefill: {counted(total, 'token')} computed{pieces}, {span(chunks[0].step, chunks[-1].step)}"
    told = [{"step": c.step, "start": c.start, "count": c.count} for c in chunks]
    return text, {"computed_tokens": total, "chunks": told}


def first_token(request: Row, t_ns: int | None, work: str = "prefill") -> Said:
    """``work``: what was done between the first step and the token; of beams it is the whole search."""
    due, submit, first = (request.get(key) for key in ("t_sched_ns", "t_submit_ns", "t_first_sched_ns"))
    lag, queue, prefilled, ttft = minus(submit, due), minus(first, submit), minus(t_ns, first), minus(t_ns, due)
    text = "first token"
    if ttft is not None:
        text += f": TTFT {format_ns(ttft)}"
        if queue is not None and prefilled is not None:
            late = f"{format_ns(lag)} late + " if lag else ""
            text += f" = {late}{format_ns(queue)} queue + {format_ns(prefilled)} {work}"
    return text, {"ttft_ns": ttft, "lag_ns": lag, "queue_ns": queue, "prefill_ns": prefilled}


def decode(steps: Sequence[int], gaps: Gaps, prompt_tokens: int) -> Said:
    """Tokens of ``steps``. ``prompt_tokens``: what the step of the longest gap computed beside them."""
    text = f"decode: {counted(len(steps), 'token')}, {span(steps[0], steps[-1])}"
    if gaps.mean_ns is not None and gaps.longest_ns is not None:
        text += f", ITL mean {format_ns(gaps.mean_ns)}"
        if gaps.longest_ns > 1.5 * gaps.mean_ns:
            also = f", which also computed {counted(prompt_tokens, 'prompt token')}" if prompt_tokens else ""
            text += f", longest {format_ns(gaps.longest_ns)} (step {gaps.worst:,}{also})"
    return text, {"tokens": len(steps), "first_step": steps[0], "last_step": steps[-1], **gaps.as_json()}


def search(steps: Sequence[int]) -> Said:
    """Rows that a beam computed for its group to choose from."""
    text = f"beam search: candidates after {counted(len(steps), 'token')}, {span(steps[0], steps[-1])}"
    return text, {"rows": len(steps), "first_step": steps[0], "last_step": steps[-1]}


def restarts(rows: Sequence[Row]) -> Said:
    """Steps in which a beam was not chosen, and whose branch it went on as."""
    parents = Counter(str(row["other"]) for row in rows)
    times = "once" if len(rows) == 1 else f"{len(rows):,} times"
    text = f"not chosen {times}: blocks given back, went on as a branch of {listed(list(parents), 5)}"
    return text, {"times": len(rows), "parents": dict(parents), "steps": [row["step"] for row in rows]}


def preemption(row: Row, seq_id: str, host_tokens: int) -> Said:
    lost, blocks, other = row["num_tokens"] or 0, row.get("need_blocks") or 0, str(row["other"])
    whom = "gave way itself, as the last in order: it" if other == seq_id else f"preempted for {other}, which"
    cost = (
        f"{counted(host_tokens, 'computed token')} kept in host memory"
        if host_tokens
        else f"{counted(lost, 'computed token')} thrown away"
    )
    why = f"{whom} needed a block when none was left"
    if row["reason"] == "beams":
        why = f"made room for {other}, the beam of its request that it waited for, when nobody could go on"
    text = f"{why}; {cost}, {counted(blocks, 'block')} given back"
    return text, {"other": other, "lost_tokens": lost, "swapped_tokens": host_tokens, "released_blocks": blocks}


def way_back(back: Return, away_ns: int | None, lost_ns: int | None, until: int, *, again: bool) -> Said:
    """``again``: another preemption, or the end, came in step ``until`` before it was back where it was."""
    assert back.resumed is not None
    away_steps = back.resumed - back.step
    source = "host memory" if back.host_tokens else "the cache"
    text = (
        f"{'started' if back.born else 'resumed'} after {lasting(away_ns, away_steps)}: "
        f"{counted(back.restored, 'token')} restored from {source}, {back.recomputed:,} computed again"
    )
    text += f" in {counted(back.num_chunks, 'chunk')}" if back.recomputed else ""
    if lost_ns is not None:
        tokens = f"{counted(back.recomputed, 'token')} and " if back.recomputed and not back.born else ""
        text += f"; lost {tokens}{format_ns(lost_ns)}" + (", and not yet back where it was" if again else "")
    numbers = {
        "preempted_step": None if back.born else back.step,
        "other": back.other or None,
        "away_ns": away_ns,
        "away_steps": away_steps,
        "restored_tokens": back.restored,
        "from_host": bool(back.host_tokens),
        "recomputed_tokens": back.recomputed,
        "lost_ns": lost_ns,
        "lost_steps": until - back.step,
        "cut_short": again,
    }
    return text, numbers


def copy(row: Row) -> Said:
    source, block, position = int(row["other"]), row["block"], row["num_tokens"]
    text = f"copy-on-write: block {source:,} was shared, so it writes into a copy, block {block:,}"
    return text, {"shared_block": source, "block": block, "position": position}


def evictions(rows: Sequence[Row], seq_id: str, missed: Sequence[tuple[str, int]]) -> Said:
    """Each row has an ``owner``: who published it (None: not known). ``missed``: who missed one later, and when."""
    first, last = rows[0]["step"], rows[-1]["step"]
    owners = Counter(row["owner"] for row in rows)
    names = {None: "an owner the log does not name", seq_id: "its own"}
    whose = [f"{count:,} of {names.get(name, name)}" for name, count in owners.most_common()]
    idle = sorted(row.get("idle_steps") or 0 for row in rows)
    unused = counted(idle[0], "step") if idle[0] == idle[-1] else f"{idle[0]:,} to {idle[-1]:,} steps"
    text = f"evicted {counted(len(rows), 'cached block')} to get room, {span(first, last)}: {listed(whose, 5)}"
    text += f"; unused for {unused}"
    if missed:
        text += f"; missed later by {listed([f'{who} (step {step:,})' for who, step in missed])}"
    numbers = {
        "blocks": len(rows),
        "first_step": first,
        "last_step": last,
        "owners": {name: count for name, count in owners.most_common() if name is not None},
        "missed_by": [{"request_id": who, "step": step} for who, step in missed],
    }
    return text, numbers


def displaced(rows: Sequence[Row]) -> Said:
    """Others that were preempted for this sequence."""
    lost, blocks = (sum(row.get(key) or 0 for row in rows) for key in ("num_tokens", "need_blocks"))
    who = listed([f"{row['request_id']} (step {row['step']:,})" for row in rows])
    text = f"preempted {who} to get room: {counted(blocks, 'block')} taken back, {counted(lost, 'computed token')} lost"
    told = [{"request_id": r["request_id"], "step": r["step"], "lost_tokens": r["num_tokens"] or 0} for r in rows]
    return text, {"preempted": told, "lost_tokens": lost, "released_blocks": blocks}


def branches(children: Mapping[str, int]) -> Said:
    """Branches born in one step, with the blocks each shares with its parent."""
    shared = sorted(set(children.values()))
    blocks = counted(shared[0], "block") if len(shared) == 1 else f"{shared[0]:,} to {shared[-1]:,} blocks"
    waiting = [child for child, count in children.items() if not count]
    text = f"branches into {listed(list(children), 5)}, sharing {blocks} with each"
    text += f"; no seat or room yet for {listed(waiting)}" if waiting else ""
    return text, {"branches": dict(children)}
