"""What a killed server keeps, by what names a model is asked for, and clients that come again and again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from serving import PROMPT, null_spec, serving

from kvtop.attach.address import address_of
from kvtop.attach.scrape import Scraper
from kvtop.state.attached import Engine, capacity
from kvtop.workloads.formats.registry import read_trace

sys.path.insert(0, str(Path(__file__).parents[1] / "perf"))

from api_clients import all_clients  # pyright: ignore[reportMissingImports]


def test_rows_of_requests_that_ended_survive_a_kill(tmp_path: Path) -> None:
    """The one under way is lost, those that ended before it are not; they are read in order of arrival."""
    path = tmp_path / "mine.jsonl"
    spec = null_spec(8000, engine={"max_model_len": 110_000}, record_workload=str(path))
    with serving(spec) as served:
        for tokens in (3, 5):
            served.post("/v1/completions", PROMPT | {"max_tokens": tokens})
        with served.client() as client:
            body = PROMPT | {"max_tokens": 100_000, "stream": True}
            with client.stream("POST", "/v1/completions", json=body) as answer:
                lines = answer.iter_lines()  # an iterator that is dropped closes the connection
                next(lines)
                for tokens in (7, 2):  # end before the one that came before them
                    served.post("/v1/completions", PROMPT | {"max_tokens": tokens})
                assert served.session.pid is not None
                os.kill(served.session.pid, signal.SIGKILL)
        deadline_s = time.monotonic() + 20
        while not served.session.ended:
            assert time.monotonic() < deadline_s
            served.session.poll(0.2)
        served.stopped = True
        served.session.stop()
    rows = read_trace(path).rows
    assert [row.output_tokens for row in rows] == [3, 5, 7, 2]
    assert rows[0].arrival_ns == 0
    assert sorted(row.arrival_ns for row in rows) == [row.arrival_ns for row in rows]


def test_a_trace_out_of_order_is_sorted_and_begins_at_0(tmp_path: Path) -> None:
    path = tmp_path / "killed.jsonl"
    row = '{{"arrival_ns":{},"prompt_tokens":4,"output_tokens":{}}}\n'
    path.write_text('{"kvtop_trace":1,"in_order":false}\n' + row.format(700, 1) + row.format(200, 2))
    assert [(row.arrival_ns, row.output_tokens) for row in read_trace(path).rows] == [(0, 2), (500, 1)]


def test_a_model_goes_by_the_name_it_was_started_by_and_the_one_it_is_served_as() -> None:
    with serving(null_spec(model="tiny"), model_name="mine") as served:
        for name, status in (("tiny", 200), ("mine", 200), ("other", 404)):
            answer = served.post("/v1/completions", PROMPT | {"model": name})
            assert answer.status_code == status, name
        served.until("vllm:request_success_total", 2, model_name="mine")
        sample = Scraper(address_of(served.url), timeout_s=10).look(1, 0)
        assert sample.kind == "kvtop"
        assert [(engine.model, capacity(Engine(engine))) for engine in sample.engines] == [("mine", 2000)]


def test_clients_that_come_again_for_some_seconds_lose_nothing() -> None:
    """Fewer are answered at a time than there are: some are told to come back."""
    with serving(null_spec(400), max_concurrency=60) as served:
        fates: Counter[str] = Counter()
        kinds: set[str] = set()
        num_tokens = 0
        # However slow the machine: until each of them has happened, and every kind was asked for.
        while len(kinds) < 8 or not all(fates[fate] for fate in ("whole", "left", "refused (429)")):
            tally = asyncio.run(all_clients(served.session.port, clients=100, seconds=2.0, leave=0.2, tokens=12))
            assert not tally.num_lost, tally.fates
            fates.update(tally.fates)
            kinds.update(tally.kinds)
            num_tokens += tally.tokens
        served.assert_empty(400)
        assert served.metric("vllm:generation_tokens_total") >= num_tokens
