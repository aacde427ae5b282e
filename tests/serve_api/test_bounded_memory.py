"""A server that has answered many requests is as large as one that has answered some: what is kept is bounded."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from types import FunctionType, ModuleType
from typing import Any, cast

import msgspec
import pytest

from kvtop.engine.api import Engine, EngineConfig, NullExecutor, SamplingParams
from kvtop.engine.events import Answered, AnswerEnd, AnswerPart, Command, Event, RunStarted, Submit
from kvtop.engine.recorder import Recorder
from kvtop.engine.types import RequestSpec
from kvtop.exporter.meter import Exporter
from kvtop.run.session import RunSession
from kvtop.serve_api.broker import Broker
from kvtop.serve_api.fields import parse
from kvtop.state import cache_log, model, request_logs

EACH, AT_ONCE = 1_000, 50
LOGS = (
    (cache_log, "LOOKUPS_KEPT"), (cache_log, "REGRETS_KEPT"), (cache_log, "GHOSTS_KEPT"), (model, "HISTORY_STEPS"),
    (request_logs, "STEPS_KEPT"), (request_logs, "ENDED_KEPT"),
)  # fmt: skip
"""What is kept of requests and steps up to a number, which the first thousand would not reach."""
STEP_NS = 10_000_000_000  # what is kept for so long as a minute is kept of a few steps
PROMPT = msgspec.json.encode({"prompt": [1, 2, 3, 4, 5, 6, 7, 8], "max_tokens": 1})


class FakeEngineProcess:
    """A real engine in this process behind a session's face: commands in, events and answers out."""

    def __init__(self) -> None:
        config = EngineConfig(num_blocks=512, block_size=4, max_num_seqs=AT_ONCE, max_model_len=64)
        self.engine = Engine(config, NullExecutor(step_time_ns=STEP_NS), recorder=Recorder())
        self.events: list[Event] = [RunStarted(run_id="x", manifest={"model": "m"}), self.engine.keyframe()]
        self.asked: list[str] = []
        self.count = 0

    def send(self, command: Command) -> None:
        assert isinstance(command, Submit)
        self.count += 1
        spec = RequestSpec([self.count % 977, *range(7)], SamplingParams(max_tokens=1), request_id=command.request_id)
        self.engine.submit_spec(spec)
        self.asked.append(command.request_id)

    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        if self.asked:
            self.engine.run()
            answers = Answered(
                t_ns=0,
                accepted=[(name, 8) for name in self.asked],
                parts=[AnswerPart(seq_id=name, text="x", num_tokens=1) for name in self.asked],
                ended=[AnswerEnd(name) for name in self.asked],
            )
            self.events += [*self.engine.recorder.drain(), answers]
            self.asked = []
        events, self.events = self.events, []
        return events


def kept_by(*roots: object, but: object) -> Counter[str]:
    """Objects that can be reached from ``roots``, by kind; not through ``but``."""
    seen = {id(but)}
    found: Counter[str] = Counter()
    waiting: list[Any] = list(roots)
    while waiting:
        one = waiting.pop()
        if id(one) not in seen and not isinstance(one, type | ModuleType | FunctionType):
            seen.add(id(one))
            found[type(one).__name__] += 1
            waiting += gc.get_referents(one)
    return found


def test_two_thousand_answers_leave_no_more_than_one_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broker, tickets, the fold behind the metrics: all that the parent keeps, where its logs are full."""
    for module, name in LOGS:
        monkeypatch.setattr(module, name, 20)
    process = FakeEngineProcess()
    meter = Exporter(None).open()

    def pass_on(events: list[Event]) -> None:
        for event in events:
            meter.fold(event)

    broker = Broker(cast(RunSession, process), pass_on, AT_ONCE)
    broker.pump()

    async def serve() -> None:
        for _ in range(EACH // AT_ONCE):
            tickets = [broker.submit(parse(PROMPT, chat=False)) for _ in range(AT_ONCE)]
            broker.pump()
            for ticket in tickets:
                await ticket.wait_accepted()
                assert await ticket.items()
                ticket.close()

    asyncio.run(serve())
    before = kept_by(broker, meter, but=process)
    asyncio.run(serve())
    more = kept_by(broker, meter, but=process) - before
    assert (broker.num_live, process.count) == (0, 2 * EACH)
    assert more.total() < EACH / 10, more
