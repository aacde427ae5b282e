"""A server in this process, its engine in a child: what the tests of the API talk to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from kvtop.engine.events import Event, RunEnded, RunStarted
from kvtop.run.spec import RunSpec
from kvtop.serve_api.session import ApiSession, ServeOptions
from kvtop.workloads.spec import WorkloadSpec

LIMIT_S = 60.0  # for what must not take long; a busy machine may need it
PROMPT = {"prompt": [1, 2, 3, 4, 5, 6, 7, 8], "max_tokens": 4}


def null_spec(num_blocks: int = 2000, **more: Any) -> RunSpec:
    """No model: token i is 1000 + i, shown as ``<1000> ``; the clock is virtual, so it answers at once."""
    values = {"engine": {"max_model_len": 4096}, "executor": "null", "num_blocks": num_blocks} | more
    return RunSpec(workload=WorkloadSpec(name="serve-api"), **values)


class Served:
    def __init__(self, session: ApiSession) -> None:
        self.session, self.url = session, session.url
        self.events: list[Event] = []
        self.stopped = False
        self.plain = self.client()  # one for all looks: a new one costs more than what it asks for

    def client(self, **more: Any) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=30, **more)

    def post(self, path: str, body: Any, **more: Any) -> httpx2.Response:
        with self.client() as client:
            return client.post(path, json=body, **more)

    def metric(self, name: str, **labels: str) -> float:
        families = text_string_to_metric_families(self.plain.get("/metrics").text)
        samples = [s for family in families for s in family.samples if s.name == name]
        return sum(s.value for s in samples if labels.items() <= s.labels.items())

    def until(self, name: str, value: float, **labels: str) -> None:
        """Wait for a metric to be ``value``."""
        deadline_s = time.monotonic() + LIMIT_S
        while (found := self.metric(name, **labels)) != value:
            assert time.monotonic() < deadline_s, (name, labels, found, value)
            time.sleep(0.02)

    def until_at_least(self, name: str, least: float) -> None:
        """Wait for a counter: what the engine decided is told a moment after it was answered."""
        deadline_s = time.monotonic() + LIMIT_S
        while (found := self.metric(name)) < least:
            assert time.monotonic() < deadline_s, (name, found, least)
            time.sleep(0.02)

    def assert_empty(self, num_blocks: int) -> None:
        """Nothing runs or waits, and every block is fresh or idle."""
        self.until("vllm:num_requests_running", 0)
        self.until("vllm:num_requests_waiting", 0)
        deadline_s = time.monotonic() + LIMIT_S
        while (found := self._blocks()) != (0, num_blocks):  # one page: two may be of two moments
            assert time.monotonic() < deadline_s, found
            time.sleep(0.02)

    def _blocks(self) -> tuple[float, float]:
        """Used, and fresh or idle, as one page has them."""
        families = text_string_to_metric_families(self.plain.get("/metrics").text)
        found = {s.labels["state"]: s.value for f in families for s in f.samples if s.name == "kvtop_blocks"}
        return found["used"], found["fresh"] + found["idle"]

    def end(self) -> RunEnded:
        """Stop it; how the run ended."""
        self.stopped = True
        self.session.stop()
        self.events += self.session.poll()
        last = self.events[-1]
        assert isinstance(last, RunEnded)
        return last


@contextmanager
def serving(spec: RunSpec | None = None, **options: Any) -> Iterator[Served]:
    """A server on a free port, ready; stopped at the end, and then its engine's invariants held."""
    session = ApiSession(spec or null_spec(), ServeOptions(port=0, **options))
    session.start()
    served = Served(session)
    try:
        deadline_s = time.monotonic() + 90
        while not any(isinstance(event, RunStarted) for event in served.events):
            assert time.monotonic() < deadline_s, served.events
            served.events += session.poll(0.5)
            assert not session.ended, served.events[-1]
        yield served
    finally:
        if not served.stopped:
            end = served.end()
            assert end.status == "interrupted", end  # the child checks the engine before it says so
        served.plain.close()
