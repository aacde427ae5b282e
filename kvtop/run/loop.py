"""The loop around the engine: submit what is due, step, hand events on, obey commands between steps.

It knows no process and no pipe, so it can be tested in one. Under the real clock it sleeps until the next arrival or
command; under the virtual clock it jumps there.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from kvtop.engine.engine import Engine
from kvtop.engine.errors import InvalidRequest, KvtopError, UsageError
from kvtop.engine.events import (
    Abort,
    Command,
    ConfigChanged,
    Event,
    FindPrompt,
    Keyframe,
    Notice,
    Pause,
    Paused,
    RequestEvent,
    RequestKeyframe,
    Resume,
    Resumed,
    RunEnded,
    RunUntil,
    SetBreakpoints,
    SetConfig,
    Stalled,
    Step,
    StepEvent,
    Stop,
    Submit,
)
from kvtop.engine.types import RequestSpec, Source
from kvtop.run.answers import Answers
from kvtop.run.breakpoints import Stops
from kvtop.run.paced_source import PacedSource
from kvtop.run.pacing import Pacing
from kvtop.run.prompts import PromptFinder
from kvtop.workloads.words import counted

FLUSH_STEPS = 32
FLUSH_S = 0.025
MAX_EMPTY_STEPS = 1000  # steps in a row that plan nothing (deferred frees on their way) before that is called a stall
MAX_REJECTION_NOTICES = 3  # lines for the user; every rejection is in the stream as a RequestEvent


class Outlet(Protocol):
    """Where events go: the pipe to the parent, the recording."""

    def send(self, events: list[Event]) -> None: ...

    def tick(self, step: int) -> bool:
        """Called after every batch; True when this outlet wants a keyframe of its own now."""
        ...

    def resync(self, keyframe: Keyframe) -> None:
        """Takes the keyframe that ``tick`` asked for."""
        ...

    def flush(self) -> bool:
        """Hand on what is kept back, before the loop waits; True when nothing is left."""
        ...


class Inbox(Protocol):
    """Where commands come from. A parent that is gone, and a signal, arrive as ``Stop``."""

    def poll(self) -> list[Command]: ...

    def wait(self, timeout_s: float | None) -> None:
        """Return when there may be a command, at the latest after ``timeout_s``."""
        ...


class Blocker(NamedTuple):
    """Who cannot advance, and why. ``request_id`` "": nobody in particular."""

    request_id: str
    reason: str
    need_blocks: int = 0
    have_blocks: int = 0


class RunLoop:
    """One run of one engine under one source. ``run`` returns how it ended and never raises.

    The engine must have a ``Recorder``: this loop is the one that drains it.
    """

    def __init__(
        self,
        engine: Engine,
        source: Source,
        outlets: Sequence[Outlet],
        inbox: Inbox,
        *,
        max_ns: int | None = None,
        start_paused: bool = False,
        answers: Answers | None = None,
        finder: PromptFinder | None = None,
    ) -> None:
        """``answers``: requests come by ``Submit`` commands, and nothing to do is no end of the run. ``finder`` answers
        ``FindPrompt`` commands."""
        self.engine, self.outlets, self.inbox = engine, outlets, inbox
        self.source = PacedSource(source)
        self.max_ns, self.answers, self.finder = max_ns, answers, finder
        self.paused = start_paused
        self.num_output_tokens = 0
        self.num_rejected = 0
        self.pacing = Pacing()
        self._steps_left = 0  # while paused: steps still to make
        self._stops = Stops()
        self._stop_reason = ""  # of a breakpoint met in the step just made
        self._keyframe_wanted = False
        self._batch: list[Event] = []
        self._batch_steps = 0
        self._flushed_s = time.perf_counter()
        self._empty_steps = 0
        self._step = 0
        self._end: RunEnded | None = None

    def run(self) -> RunEnded:
        """Until the source is exhausted and all is done, ``max_ns``, ``Stop``, a stall or an error."""
        clock = self.engine.clock
        clock.pause()
        try:
            self._emit_keyframe()
            if self.paused:
                self._emit(Paused(t_ns=clock.now_ns()))
            else:
                clock.resume()
            self._flush()  # the first step may take a second: the reader sees the empty pool meanwhile
            while self._end is None:
                self._turn()
        except Exception as error:
            self._end = ended_by(error, clock.now_ns())
        clock.pause()
        return self._last_flush(self._end)

    # -- one turn ------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        for command in self.inbox.poll():
            self._obey(command)
        if self._end is not None:
            return
        if self.paused and not self._steps_left:
            self._flush()
            self._wait(None)
            return
        now_ns = self.engine.clock.now_ns()
        if self.max_ns is not None and now_ns >= self.max_ns:
            self._end = RunEnded(t_ns=now_ns, status="complete")
            self._tell_pacing(self.max_ns)
            return
        self.pacing.asked(now_ns)
        for spec in self.source.pop_due(now_ns):
            self._submit(spec)
        if self.engine.has_work:
            self._step_once()
        else:
            self._idle(None)

    def _submit(self, spec: RequestSpec) -> None:
        now_ns = self.engine.clock.now_ns()
        self.pacing.submitted(now_ns if spec.arrival_ns is None else spec.arrival_ns, now_ns)
        try:
            self.engine.submit_spec(spec)
        except InvalidRequest as error:
            self.num_rejected += 1
            if self.num_rejected <= MAX_REJECTION_NOTICES:
                self._emit(Notice(t_ns=self.engine.clock.now_ns(), text=str(error), level="warning"))
        self._drain()

    def _step_once(self) -> None:
        output = self.engine.step()
        self._step = output.step
        self.pacing.step_done(self.engine.clock.now_ns())
        self.num_output_tokens += sum(map(len, output.tokens.values()))
        if self.answers is not None:
            self.answers.stepped(output)
        self._drain()
        if output.plan:
            self._empty_steps = 0
            if self._steps_left:
                self._steps_left -= 1
                if not self._steps_left:
                    self.engine.clock.pause()
        else:
            self._empty_steps += 1
        if self._stop_reason:
            self._pause(self._stop_reason)
        urgent = self.paused or self._keyframe_wanted
        if urgent or self._batch_steps >= FLUSH_STEPS or time.perf_counter() - self._flushed_s >= FLUSH_S:
            self._flush()
        if output.stalled is not None:
            stall = output.stalled
            self._idle(Blocker(stall.request_id, str(stall.reason), stall.need, stall.have))
        elif self._empty_steps > MAX_EMPTY_STEPS and self.engine.has_work:
            self._idle(Blocker("", _NOTHING_PLANNED))

    def _idle(self, stall: Blocker | None) -> None:
        """Nothing can run now: go to the next arrival, or end."""
        clock = self.engine.clock
        now_ns, due_ns = clock.now_ns(), self.source.next_due()
        if due_ns is None:
            if stall is None and self.answers is not None:
                self._flush()
                self._wait(None)
            elif stall is None and self.source.exhausted:
                self._end = RunEnded(t_ns=now_ns, status="complete")
                self._tell_pacing(None)
            elif stall is not None and (why := self._below_limit(stall)):
                self._pause(why)  # whoever made the pool smaller can make it larger again
            else:
                self._end = self._stalled(stall or Blocker("", _NOTHING_DUE), now_ns)
            return
        until_ns = due_ns if self.max_ns is None else min(due_ns, self.max_ns)
        if clock.virtual or self._steps_left:  # whoever asked for one step gets one, not the wait before it
            clock.skip(until_ns - now_ns)
        elif until_ns > now_ns:
            self._flush()
            self._wait((until_ns - now_ns) / 1e9)

    def _below_limit(self, stall: Blocker) -> str:
        """Why ``stall`` would not last with the whole pool; "" when it would."""
        limit = self.engine.allocator.pool.limit
        if limit.size == limit.num_blocks or not stall.have_blocks < stall.need_blocks <= limit.num_blocks:
            return ""
        return (
            f"{stall.request_id} needs {counted(stall.need_blocks, 'block')} and nothing else runs, "
            f"the pool is limited to {limit.size:,} of {limit.num_blocks:,}: raise its size"
        )

    def _tell_pacing(self, max_ns: int | None) -> None:
        for text in self.pacing.notices(max_ns=max_ns):
            self._emit(Notice(t_ns=self.engine.clock.now_ns(), text=text, level="warning"))

    def _stalled(self, stall: Blocker, now_ns: int) -> RunEnded:
        request_id, reason, need, have = stall
        self._emit(Stalled(t_ns=now_ns, request_id=request_id, reason=reason, need_blocks=need, have_blocks=have))
        who = f"request {request_id!r}" if request_id else "the run"
        what = f"{reason}: needs {need}, has {have}" if need else reason
        return RunEnded(t_ns=now_ns, status="failed", error=f"stalled: {who} cannot advance ({what})", exit_code=1)

    # -- commands ------------------------------------------------------------------------------------------------

    def _obey(self, command: Command) -> None:
        clock = self.engine.clock
        match command:
            case Pause():
                self._pause("")
            case Resume():
                self._resume()
            case RunUntil(breakpoints=texts):
                if self._told_if_wrong(lambda: self._stops.until(texts)):
                    self._resume()
            case SetBreakpoints(breakpoints=texts):
                self._told_if_wrong(lambda: self._stops.set(texts))
            case SetConfig(changes=changes):
                for name, value in changes.items():
                    if self._told_if_wrong(lambda name=name, value=value: self._change(name, value)):
                        self._emit(ConfigChanged(t_ns=clock.now_ns(), changes={name: value}))
            case Step(count=count):
                if self.paused and count > 0:
                    self._steps_left += count
                    clock.resume()
            case Abort(request_id=request_id):
                self.engine.abort(request_id)
                self.engine.flush()  # paused, no step would tell it
                self._drain()
            case Submit():
                if self.answers is not None:
                    self.answers.submit(command)
                    self._drain()
            case FindPrompt():
                if self.finder is not None:
                    self.finder.find(command)
            case RequestKeyframe():
                self._keyframe_wanted = True
                self._flush()
            case Stop():
                text = "interrupted; what was finished is kept"
                self._end = RunEnded(t_ns=clock.now_ns(), status="interrupted", error=text, exit_code=130)

    def _pause(self, reason: str) -> None:
        """Stop the run and its clock. ``reason``: of a breakpoint; it is told even to one who steps."""
        self._steps_left, self._stop_reason = 0, ""
        self._stops.forget_until()
        self.engine.clock.pause()
        if not self.paused or reason:
            self.paused = True
            self._emit(Paused(t_ns=self.engine.clock.now_ns(), reason=reason))

    def _resume(self) -> None:
        self._steps_left = 0
        if self.paused:
            self.paused = False
            self._emit(Resumed(t_ns=self.engine.clock.now_ns()))
        self.engine.clock.resume()

    def _change(self, name: str, value: Any) -> None:
        """One value of the configuration that may change while the run goes on."""
        match name:
            case "policy" if isinstance(value, str):
                self.engine.scheduler.set_policy(value)
            case "arrival_rate" if isinstance(value, (int, float)):
                self.source.set_rate(value, self.engine.clock.now_ns())
            case "num_blocks":
                self.engine.set_pool_size(value)  # checks it
                self.engine.flush()  # paused, no step would tell it
                self._drain()
            case _:
                raise UsageError(
                    f"{name} = {value!r} cannot be changed while the run goes on: policy, arrival_rate, num_blocks can"
                )

    def _told_if_wrong(self, action: Callable[[], None]) -> bool:
        """Do it; what is wrong with it is told to the user, and the run goes on. Whether it was done."""
        try:
            action()
        except KvtopError as error:
            self._emit(Notice(t_ns=self.engine.clock.now_ns(), text=str(error), level="warning"))
            return False
        return True

    # -- events --------------------------------------------------------------------------------------------------

    def _emit(self, event: Event) -> None:
        self._batch.append(event)

    def _drain(self) -> None:
        for event in self.engine.recorder.drain():
            self._batch.append(event)
            if isinstance(event, StepEvent):
                self._batch_steps += 1
                self._stop_reason = self._stop_reason or self._stops.check(event)
            elif isinstance(event, RequestEvent):
                self.pacing.fold(event)
                if event.phase == "finished":
                    if self.answers is not None:
                        self.answers.ended(event)
                    self.source.on_finished(event.request_id, _ended_ns(event, self.engine.clock.now_ns()))
        if self.answers is not None:
            self.answers.flush()

    def _flush(self) -> None:
        batch, self._batch = self._batch, []
        self._batch_steps, self._flushed_s = 0, time.perf_counter()
        if batch:
            for outlet in self.outlets:
                outlet.send(batch)
        self._keyframes()

    def _keyframes(self) -> None:
        """Keyframes that somebody asked for.

        Decisions that wait for their step are told before: the keyframe holds their effect already.
        """
        asking = [outlet for outlet in self.outlets if outlet.tick(self._step)]
        if not (asking or self._keyframe_wanted):
            return
        if self.engine.recorder.has_decisions:
            self.engine.flush()
            self._drain()
            batch, self._batch = self._batch, []
            for outlet in self.outlets:
                outlet.send(batch)
        keyframe = self.keyframe()
        for outlet in self.outlets:
            if outlet in asking:
                outlet.resync(keyframe)
            elif self._keyframe_wanted:
                outlet.send([keyframe])
        self._keyframe_wanted = False

    def keyframe(self) -> Keyframe:
        """The engine's state now, with the totals that only this loop knows."""
        keyframe = self.engine.keyframe()
        return msgspec.structs.replace(
            keyframe, totals={**keyframe.totals, "output_tokens": self.num_output_tokens, "rejected": self.num_rejected}
        )

    def _emit_keyframe(self) -> None:
        self._emit(self.keyframe())

    def _wait(self, timeout_s: float | None) -> None:
        """Sleep until a command or the time; wake up now and then for an outlet that still has something to hand on."""
        if sum(not outlet.flush() for outlet in self.outlets):
            timeout_s = FLUSH_S if timeout_s is None else min(timeout_s, FLUSH_S)
        self.inbox.wait(timeout_s)

    def _last_flush(self, end: RunEnded | None) -> RunEnded:
        assert end is not None
        try:
            self._drain()
            self._flush()
        except Exception as error:
            if end.status != "failed":
                end = ended_by(error, self.engine.clock.now_ns())
        return end


def _ended_ns(event: RequestEvent, now_ns: int) -> int:
    """When the answer was there: what the loop did since is nobody's think time."""
    return now_ns if event.t_done_ns is None else event.t_done_ns


_NOTHING_DUE = "the workload waits for a completion, and nothing runs"
_NOTHING_PLANNED = f"{MAX_EMPTY_STEPS} steps in a row planned nothing"


def ended_by(error: BaseException, t_ns: int) -> RunEnded:
    """A failed end: our own errors are one line, everything else also names its type and keeps its traceback."""
    text = " ".join(str(error).split())
    if isinstance(error, KvtopError):
        return RunEnded(t_ns=t_ns, status="failed", error=text, exit_code=error.exit_code)
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, MemoryError):
        line = f"out of memory{f' ({text})' if text else ''}: try fewer blocks (--num-blocks) or requests (--limit)"
    trace = "".join(traceback.format_exception(error))
    return RunEnded(t_ns=t_ns, status="failed", error=line, traceback=trace, exit_code=1)
