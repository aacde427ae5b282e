"""The engine's process: load, run, record, say how it ended. Started by ``RunSession``; owns no terminal.

File descriptors: commands come in on one pipe, events go out on another, and whatever libraries print on 1 and 2 goes
to a file that the parent reads. The first command is the ``RunSpec``.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvtop.engine.errors import UsageError
from kvtop.engine.events import Notice, RunEnded, RunStarted
from kvtop.engine.recorder import Recorder
from kvtop.engine.types import RequestSpec
from kvtop.results.manifest import build_manifest, write_manifest
from kvtop.results.recording import FRAMES_NAME, FrameWriter
from kvtop.run.answers import NO_TOKENIZER, Answers, Text
from kvtop.run.inbox import PipeInbox, Stopped
from kvtop.run.loop import RunLoop, ended_by
from kvtop.run.outlets import FileOutlet, PipeOutlet
from kvtop.run.pipes import MessageReader, MessageWriter, widen
from kvtop.run.prompts import PromptFinder
from kvtop.run.served import ServedWorkload
from kvtop.run.served_trace import ServedTrace
from kvtop.run.spec import RunSpec

if TYPE_CHECKING:
    from kvtop.engine.config import EngineConfig
    from kvtop.results.tables import Ideal
    from kvtop.workloads.rows import Row

LAST_WORDS_S = 5.0  # how long a parent that does not read may hold up the end
SPEC_TIMEOUT_S = 30.0


def main(command_fd: int, event_fd: int) -> None:
    """Entry point; never returns. The exit status is that of ``RunEnded``."""
    for fd in (command_fd, event_fd):
        os.set_inheritable(fd, False)
        os.set_blocking(fd, False)
    widen(event_fd)
    faulthandler.enable()  # a crash in native code leaves its stack in the file behind fd 2
    reader = MessageReader(command_fd)
    spec, bodies = _read_spec(reader)
    outlet = PipeOutlet(MessageWriter(event_fd), lossless=False, brief=spec.brief)
    inbox = PipeInbox(reader, bodies)
    inbox.listen_to_signals()
    end = _Child(spec, outlet, inbox).run()
    outlet.finish([end], LAST_WORDS_S)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(end.exit_code)  # no atexit handler of a library may hang or crash a run that is over


def _read_spec(reader: MessageReader) -> tuple[RunSpec, list[bytes]]:
    """The spec, and commands that came right behind it."""
    deadline_s = time.monotonic() + SPEC_TIMEOUT_S
    while time.monotonic() < deadline_s and not reader.closed:
        select.select([reader.fd], [], [], 1.0)
        if bodies := reader.read():
            return msgspec.msgpack.decode(bodies[0], type=RunSpec), bodies[1:]
    os._exit(1)  # the parent is gone: there is nobody to tell


class _Child:
    def __init__(self, spec: RunSpec, outlet: PipeOutlet, inbox: PipeInbox) -> None:
        self.spec, self.outlet, self.inbox = spec, outlet, inbox
        self.run_dir = None if spec.run_dir is None else Path(spec.run_dir)
        self.file: FileOutlet | None = None
        self.trace: ServedTrace | None = None  # what came in from outside
        self.facts: dict[str, Any] = {}  # keys of run.json that only the loop knows
        self.ideal: Callable[[], Ideal | None] = lambda: None  # known once the workload is

    def run(self) -> RunEnded:
        """Load, loop, finish the files. Never raises."""
        try:
            end = self._load_and_loop()
        except Stopped:
            end = RunEnded(t_ns=0, status="interrupted", error="interrupted while loading", exit_code=130)
        except Exception as error:
            end = ended_by(error, 0)
        self.inbox.loading = False
        return self._finish_files(self._write_trace(end))

    def _load_and_loop(self) -> RunEnded:
        spec = self.spec
        self.inbox.loading = True  # importing torch takes seconds, and reads no commands
        # Libraries and a model are a million objects that stay: collecting garbage was a sixth of the load.
        gc.disable()  # settle_memory enables it
        built, workload, info = self._load()
        self.inbox.loading = False
        engine = built.engine
        self.ideal = partial(_ideal, workload.rows, engine.config)
        self.outlet.lossless = engine.clock.virtual
        manifest = build_manifest(
            spec,
            info,
            workload_hash=workload.hash,
            trace_sha256=workload.trace_sha256,
            num_requests=workload.num_requests,
        )
        started = RunStarted(run_id=manifest["run_id"], manifest=manifest)
        outlets: list[Any] = [self.outlet]
        if self.run_dir is not None:
            write_manifest(self.run_dir, manifest)
            self.file = FileOutlet(FrameWriter(self.run_dir / FRAMES_NAME))
            outlets.append(self.file)
        notices = [*_executor_notices(engine), *workload.notices]
        for outlet in outlets:
            outlet.send([started, *(Notice(t_ns=0, text=text, level="warning") for text in notices)])
        text = Text(built.tokenizer, getattr(engine.executor, "decode", None), built.vocab_size)
        max_ns = None if spec.max_seconds is None else round(spec.max_seconds * 1e9)
        loop = RunLoop(
            engine,
            workload.source(),
            outlets,
            self.inbox,
            max_ns=max_ns,
            start_paused=spec.start_paused,
            answers=self._answers(built, text) if spec.serve else None,
            finder=PromptFinder(engine, text, self.outlet.send),
        )
        from kvtop.engine.worker import settle_memory

        settle_memory()
        end = loop.run()
        if spec.serve and end.status != "failed":
            engine.check()  # nobody else would see that a client who went away left something behind
        self.facts = loop.pacing.facts()
        if self.outlet.behind:
            self.outlet.writer.flush(LAST_WORDS_S)
            self.outlet.resync(loop.keyframe())
        engine.close()
        return end

    def _load(self) -> tuple[Any, Any, dict[str, Any]]:
        from kvtop.engine.clock import RealClock, VirtualClock
        from kvtop.engine.worker import build_engine
        from kvtop.workloads.load import load_workload

        spec = self.spec
        if spec.executor == "torch" and not spec.serve:  # a broken trace is told before a model is loaded, not after
            load_workload(spec.workload, vocab_size=1)
        self._progress("starting the engine", None)
        built = build_engine(
            engine=spec.engine,
            executor=spec.executor,
            executor_params=spec.executor_params,
            model=spec.model,
            device=spec.device,
            num_blocks=spec.num_blocks,
            kv_memory_bytes=spec.kv_memory_bytes,
            recorder=Recorder(),
            progress=self._progress,
            requests=self._requests,
        )
        if spec.serve:
            workload: Any = ServedWorkload()
        else:
            self._progress("reading the workload", None)
            workload = load_workload(
                spec.workload, vocab_size=built.vocab_size, max_model_len=built.engine.config.effective_len
            )
        virtual = spec.virtual_time or built.engine.clock.virtual
        # A clock of its own, stopped until the loop starts it: loading is nobody's latency.
        built.engine.clock = VirtualClock() if virtual else RealClock()
        built.engine.clock.pause()
        info = {**built.info, "workload": workload.name, "clock": "virtual" if virtual else "real"}
        if spec.predicted_by is not None:
            info["predicted_by"] = spec.predicted_by
        info |= {"replay": workload.replay, "loop": "closed" if workload.num_chained else "open"}
        return built, workload, info

    def _answers(self, built: Any, text: Text) -> Answers:
        """What takes requests from outside."""
        engine = built.engine
        if text.stands_in:
            self.outlet.send([Notice(t_ns=0, text=NO_TOKENIZER, level="warning")])
        if self.spec.record_workload is not None:
            self.trace = ServedTrace(engine.config.block_size, Path(self.spec.record_workload))
        return Answers(engine, text, self.outlet.send, self.trace)

    def _requests(self, vocab_size: int, max_model_len: int) -> Iterator[RequestSpec]:
        """The whole workload beforehand, one prompt at a time, for an eviction policy that knows the future.

        Raises:
            UsageError: later requests depend on when earlier ones finish, so there is no future to know.
        """
        from kvtop.workloads.load import load_workload

        self._progress("reading the workload's future", None)
        source = load_workload(self.spec.workload, vocab_size=vocab_size, max_model_len=max_model_len).source()
        while (due_ns := source.next_due()) is not None:
            yield from source.pop_due(due_ns)
        if not source.exhausted:
            raise UsageError(f"eviction policy belady needs an open loop; {self.spec.workload.name} is a closed one")

    def _progress(self, text: str, fraction: float | None) -> None:
        if self.inbox.stop_wanted:
            raise Stopped
        self.outlet.send([Notice(t_ns=0, text=text, progress=fraction)])

    def _write_trace(self, end: RunEnded) -> RunEnded:
        """What came in, as a trace."""
        if self.trace is None or not len(self.trace):
            return end
        try:
            self.trace.write()
        except Exception as error:
            end = _failed_files(end, error)
        return end

    def _finish_files(self, end: RunEnded) -> RunEnded:
        """The recording's last event and the tables. A disk that refuses turns the end into a failed one."""
        if self.file is None or self.run_dir is None:
            return end
        writer = self.file.writer
        try:
            writer.write([end])
            writer.finish()
        except Exception as error:
            end = _failed_files(end, error)
        try:
            from kvtop.results.tables import write_tables

            self.outlet.send([Notice(t_ns=end.t_ns, text="writing the tables")])
            write_tables(
                self.run_dir,
                status=end.status,
                ideal=self.ideal(),
                events_dropped=self.outlet.num_dropped,
                error=end.error,
                **self.facts,
            )
        except Exception as error:
            end = _failed_files(end, error)
        finally:
            with suppress(Exception):  # told above, if the disk refuses
                writer.close()  # only now may another run use the directory
        return end


def _ideal(rows: Sequence[Row], config: EngineConfig) -> Ideal:
    """What an infinite cache would have served: the recording has no token to tell it by."""
    from kvtop.results.ideal import ideal_of

    return ideal_of(rows, config.block_size, config.effective_len - 1)


def _executor_notices(engine: Any) -> Sequence[str]:
    """What the user should know about the model: another one than asked for, a cache that could not be written."""
    return getattr(getattr(engine.executor, "info", None), "notices", ())


def _failed_files(end: RunEnded, error: Exception) -> RunEnded:
    """``end`` as failed because of ``error``, unless it had failed before: the first cause is the one to tell."""
    return end if end.status == "failed" else ended_by(error, end.t_ns)
