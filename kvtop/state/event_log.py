"""The decision log as lines: what happened to whom and why, without what happens to every token."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from kvtop.engine.events import (
    ConfigChanged,
    Decision,
    Event,
    Gap,
    KvEvents,
    Notice,
    Observed,
    Paused,
    RequestEvent,
    Resumed,
    RunEnded,
    Stalled,
    StepEvent,
)
from kvtop.state.model import RunState
from kvtop.workloads.words import counted

KEPT = 20_000


class LogLine(NamedTuple):
    """``who`` is the request it is about ("": none)."""

    number: int
    step: int
    t_ns: int
    kind: str
    who: str
    text: str


KINDS = {
    "ADMIT": "a request got its blocks for the first time",
    "RESUME": "a preempted one got blocks again",
    "MISS": "a prefix match ended before the prompt did, and why",
    "EVICT": "idle blocks were taken, for whom, how long they had lain idle",
    "PREEMPT": "a running request lost its blocks, for whom, and what was thrown away",
    "COPY": "blocks were copied because branches diverged",
    "FINISH": "a request ended, and how",
    "REJECT": "a request was refused at submission",
    "ABORT": "a request was ended by hand",
    "CONFIG": "the configuration changed",
    "PAUSE": "the engine was paused, by hand or at a breakpoint",
    "GAP": "events were dropped",
    "SERVER": "an attached server answers no more, or again, was restarted, lost events",
    "STALL": "nothing can advance",
    "WARN": "what the engine's process has to say",
    "END": "the run ended",
}
"""Kinds of lines, with their meaning."""


class EventLog:
    """The last ``KEPT`` lines. ``version`` grows with every line."""

    def __init__(self) -> None:
        self.lines: deque[LogLine] = deque(maxlen=KEPT)
        self.version = 0

    def fold(self, state: RunState, event: Event) -> None:
        """Add the lines of ``event``, which has been folded into ``state``."""
        if isinstance(event, StepEvent):
            if event.admitted or event.evictions or event.preemptions or event.finished or event.copies:
                self._step(state, event)
            return
        match event:
            case RequestEvent(phase="finished"):
                self._request(state, event)
            case ConfigChanged(changes=changes):
                self._add(state, "CONFIG", "", ", ".join(f"{key} = {value}" for key, value in changes.items()))
            case Paused(reason=reason):
                self._add(state, "PAUSE", "", reason or "by hand")
            case Resumed():
                self._add(state, "PAUSE", "", "goes on")
            case Gap(dropped=dropped):
                self._add(
                    state,
                    "GAP",
                    "",
                    f"{counted(dropped, 'event')} dropped: this screen was too slow; a keyframe follows",
                )
            case Stalled():
                self._add(state, "STALL", event.request_id, state.stalled)
            case Observed() if state.attached is not None:
                self._observed(state, event)
            case Notice(level=level, text=text) if level != "info":
                self._add(state, "WARN", "", text)
            case RunEnded(status=status, error=error):
                self._add(state, "END", "", f"{status}{f': {error}' if error else ''}")

    def _observed(self, state: RunState, event: Observed) -> None:
        """What a look at an attached server brought: news of it, and how many blocks it removed."""
        for line in state.attached.news if state.attached is not None else ():
            self._add(state, "SERVER", "", line)
        if not isinstance(event, KvEvents):
            return
        for count, when in ((event.removed_late, " while the connection was lost"), (_now(event), "")):
            if count:
                text = f"{counted(count, 'block')} removed from the cache{when}; for whom is not reported"
                self._add(state, "EVICT", "", text)

    def _step(self, state: RunState, event: StepEvent) -> None:
        idle_steps: dict[str, list[int]] = {}  # of evicted blocks, by whom they were evicted for
        copies: Counter[str] = Counter()
        for kind, run in state.last_runs:
            if kind == "evict":
                for who, gone in groupby(run, itemgetter(1)):
                    idle_steps.setdefault(who, []).extend([decision[7] for decision in gone])
            elif kind == "copy":
                copies.update([decision[1] for decision in run])
            elif line := _LINES.get(kind):
                for name, who, text in map(line, run):
                    if text:
                        self._append(event.step, event.t_done_ns, name, who, text)
        for who, idle in idle_steps.items():
            low, high = min(idle), max(idle)
            span = counted(low, "step") if low == high else f"{low:,} to {high:,} steps"
            why = "to make the pool smaller" if who == "limit" else f"for {who}"
            text = f"{counted(len(idle), 'block')} {why}, idle for {span}"
            self._append(event.step, event.t_done_ns, "EVICT", who, text)
        for who, count in copies.items():
            self._append(event.step, event.t_done_ns, "COPY", who, f"{who}: {counted(count, 'block')} copied on write")

    def _request(self, state: RunState, event: RequestEvent) -> None:
        if event.finish_reason == "rejected":
            self._add(state, "REJECT", event.request_id, f"{event.request_id}: {event.error}")
            return
        tokens = counted(event.output_tokens, "token")
        if event.finish_reason == "aborted":
            self._add(state, "ABORT", event.request_id, f"{event.request_id} after {tokens}")
            return
        text = f"{event.request_id} {event.finish_reason}, {tokens}"
        if event.t_first_token_ns is not None:
            text += f", TTFT {(event.t_first_token_ns - event.t_sched_ns) / 1e9:.2f} s"
        if event.t_done_ns is not None:
            text += f", E2E {(event.t_done_ns - event.t_sched_ns) / 1e9:.2f} s"
        self._add(state, "FINISH", event.request_id, text)

    def _add(self, state: RunState, kind: str, who: str, text: str) -> None:
        self._append(state.step, state.t_ns, kind, who, text)

    def _append(self, step: int, t_ns: int, kind: str, who: str, text: str) -> None:
        self.version += 1
        self.lines.append(LogLine(self.version, step, t_ns, kind, who, text))


def _now(event: KvEvents) -> int:
    """Blocks removed as it was told, not while nobody listened."""
    return event.removed - event.removed_late


Maker = Callable[[Decision], tuple[str, str, str]]


def _admitted(decision: Decision) -> tuple[str, str, str]:
    _, who, tokens, need, have = decision
    return "ADMIT", who, f"{who}: {counted(tokens, 'token')}, needs {counted(need, 'block')} of {have:,}"


def _resumed(decision: Decision) -> tuple[str, str, str]:
    _, who, tokens, need, have = decision
    return "RESUME", who, f"{who}: {counted(tokens, 'token')}, needs {counted(need, 'block')} of {have:,}"


def _lookup(decision: Decision) -> tuple[str, str, str]:
    """Only where something was missed."""
    _, who, found, reason, other, _, age = decision
    if reason in ("last_token", "cache_off"):
        return "MISS", who, ""
    why = reason.replace("_", " ")
    if reason == "evicted" and age is not None:
        why = f"evicted {counted(age, 'step')} ago{f' for {other}' if other else ''}"
    return "MISS", who, f"{who}: {counted(found, 'token')} found, then {why}"


def _preempted(decision: Decision) -> tuple[str, str, str]:
    _, who, reason, other, lost, blocks = decision
    given = f"gives back {counted(blocks, 'block')}" if blocks is not None else "gives back its blocks"
    why = reason.replace("_", " ")
    return "PREEMPT", who, f"{who} for {other or 'nobody'} ({why}): {given}, loses {counted(lost or 0, 'token')}"


_LINES: dict[str, Maker] = {
    "admitted": _admitted,
    "resumed": _resumed,
    "lookup": _lookup,
    "preempted": _preempted,
}
