"""The pipe never blocks the engine: a slow reader loses steps, is told how many, and is put right by a keyframe."""

from __future__ import annotations

import os
import threading
import time

import pytest
from run_fakes import ListInbox, ListOutlet, ListSource, pool_of, request

from kvtop.bench.progress import Progress
from kvtop.engine.api import Engine, EngineConfig, NullExecutor, Recorder
from kvtop.engine.events import Event, Gap, Keyframe, RequestEvent, StepEvent, decode_many
from kvtop.run.loop import RunLoop
from kvtop.run.outlets import PipeOutlet
from kvtop.run.pipes import MessageReader, MessageWriter
from kvtop.state.model import RunState
from kvtop.state.reduce import reduce


@pytest.fixture
def pipe():
    read, write = os.pipe()
    for fd in (read, write):
        os.set_blocking(fd, False)
    yield MessageReader(read), MessageWriter(write)
    os.close(read)
    os.close(write)


class SlowReader(ListInbox):
    """Reads the pipe between two steps of the loop, but only every ``every``-th time and one piece at a time."""

    def __init__(self, reader: MessageReader, every: int) -> None:
        super().__init__()
        self.reader, self.every = reader, every
        self.events: list[Event] = []

    def poll(self):
        if self.num_polls % self.every == 0:
            self.read()
        return super().poll()

    def read(self) -> int:
        bodies = self.reader.read()
        for body in bodies:
            self.events += decode_many(body)
        return len(bodies)


def fold(events: list[Event]) -> RunState:
    state = RunState()
    for event in events:
        reduce(state, event)
    return state


def run_with_slow_reader(pipe, every: int) -> tuple[list[Event], list[Event], PipeOutlet]:
    """(events that got through, all events, the outlet)"""
    reader, writer = pipe
    engine = Engine(
        EngineConfig(num_blocks=48, block_size=4, max_batched_tokens=64), NullExecutor(), recorder=Recorder()
    )
    inbox = SlowReader(reader, every)
    outlet, whole = PipeOutlet(writer, lossless=False, max_pending_bytes=2_000), ListOutlet()
    source = ListSource([request(i, at_ns=i * 20_000_000, prompt=5 + i % 20, out=3 + i % 11) for i in range(300)])
    loop = RunLoop(engine, source, [outlet, whole], inbox)
    assert loop.run().status == "complete"
    if outlet.behind:
        outlet.resync(loop.keyframe())
    while outlet.writer.pending_bytes:
        outlet.flush()
        inbox.read()
    inbox.read()
    return inbox.events, whole.events, outlet


def test_a_slow_reader_gets_gaps_and_ends_with_the_right_state(pipe) -> None:
    seen, whole, outlet = run_with_slow_reader(pipe, every=150)
    gaps = [e for e in seen if isinstance(e, Gap)]
    assert gaps, "the reader was slow enough to lose something"
    assert sum(gap.dropped for gap in gaps) == outlet.num_dropped == fold(seen).events_dropped
    assert sum(isinstance(e, StepEvent) for e in seen) < sum(isinstance(e, StepEvent) for e in whole)
    for gap in gaps:
        assert isinstance(seen[seen.index(gap) + 1], Keyframe)
    slow, full = fold(seen), fold(whole)
    assert pool_of(slow).state == pool_of(full).state
    assert pool_of(slow).key == pool_of(full).key
    assert pool_of(slow).filled == pool_of(full).filled
    assert pool_of(slow).owners == pool_of(full).owners
    assert slow.sequences == full.sequences == {}
    assert slow.totals["output_tokens"] == full.totals["output_tokens"]


def test_arrivals_and_ends_outlive_a_gap(pipe) -> None:
    seen, whole, _ = run_with_slow_reader(pipe, every=150)
    assert [e for e in seen if isinstance(e, RequestEvent)] == [e for e in whole if isinstance(e, RequestEvent)]
    assert fold(seen).num_finished == 300


def test_a_fast_reader_loses_nothing(pipe) -> None:
    seen, whole, outlet = run_with_slow_reader(pipe, every=1)
    assert outlet.num_dropped == 0
    assert seen == whole


def test_a_brief_reader_knows_as_much_of_the_progress_as_one_that_gets_everything(pipe) -> None:
    reader, writer = pipe
    engine = Engine(EngineConfig(num_blocks=48, block_size=4), NullExecutor(), recorder=Recorder())
    inbox, whole = SlowReader(reader, every=1), ListOutlet()
    source = ListSource([request(i, at_ns=i * 20_000_000, prompt=5 + i % 20, out=3 + i % 11) for i in range(100)])
    assert RunLoop(engine, source, [PipeOutlet(writer, lossless=False, brief=True), whole], inbox).run().exit_code == 0
    inbox.read()
    told, known = Progress("run"), Progress("run")
    for events, progress in ((inbox.events, told), (whole.events, known)):
        for event in events:
            progress.fold(event)
    assert told == known
    assert (told.num_ended, told.step) == (100, engine.num_steps - 1)
    steps = [event for event in inbox.events if isinstance(event, StepEvent)]
    assert len(steps) < sum(isinstance(event, StepEvent) for event in whole.events)
    assert not any(event.decisions or event.emitted for event in steps)
    assert not any(isinstance(event, Keyframe) for event in inbox.events)
    assert any(event.decisions for event in whole.events if isinstance(event, StepEvent)), "others get all of it"


def test_sending_to_a_reader_that_stands_still_waits_for_nobody(pipe) -> None:
    """It would wait for ever: nobody ever reads."""
    _, writer = pipe
    outlet = PipeOutlet(writer, lossless=False)
    step = StepEvent(step=0, t_start_ns=0, t_planned_ns=0, t_done_ns=0, decisions=[("alloc", "a", 0, 1, 0)] * 500)
    for _ in range(2000):
        outlet.send([step])
    assert writer.pending_bytes < 10 << 20, "what is kept back is bounded"
    assert outlet.num_dropped > 0


def test_lossless_sending_waits_for_its_reader(pipe) -> None:
    reader, writer = pipe
    outlet = PipeOutlet(writer, lossless=True)
    step = StepEvent(step=0, t_start_ns=0, t_planned_ns=0, t_done_ns=0, decisions=[("alloc", "a", 0, 1, 0)] * 500)
    got: list[Event] = []

    def read_slowly() -> None:
        while len(got) < 300:
            time.sleep(0.001)
            for body in reader.read():
                got.extend(decode_many(body))

    thread = threading.Thread(target=read_slowly, daemon=True)
    thread.start()
    for _ in range(300):
        outlet.send([step])
    thread.join(60)
    assert len(got) == 300
    assert outlet.num_dropped == 0


def test_a_reader_that_is_gone_holds_nobody_up() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.close(read)
    outlet = PipeOutlet(MessageWriter(write), lossless=True)
    outlet.send([Gap(t_ns=0, dropped=1)])
    assert outlet.writer.closed
    assert outlet.flush()
    os.close(write)
