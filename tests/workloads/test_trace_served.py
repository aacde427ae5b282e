"""Request logs of vLLM and LLMServingSim: exact arrivals, failures, files without arrivals."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from trace_files import arrivals_s, document, json_lines, lengths, refused

from kvtop.workloads.formats.registry import load_trace, read_trace


def logged(number: int, time: float | None, prompt: int = 20, output: int = 9) -> dict:
    row = {"request_id": f"bench-{number}", "input_toks": prompt, "output_toks": output, "arrival_time": time}
    return {
        **row,
        "queued_ts": 479748.34,
        "scheduled_ts": 479748.35,
        "first_token_ts": 479748.5,
        "last_token_ts": 479764.0,
    }


def test_unix_times_are_kept_to_the_microsecond(tmp_path: Path):
    rows = [logged(0, 1777142838.338653), logged(1, 1777142838.6237123, 7, 5), logged(2, 1777142839.0)]
    trace = read_trace(json_lines(tmp_path / "r.jsonl", rows))
    assert (trace.format, trace.time_unit) == ("llmservingsim", "seconds")
    assert [row.arrival_ns for row in trace.rows] == [0, 285_059_300, 661_347_000]
    assert lengths(trace) == [(20, 9), (7, 5), (20, 9)]


def test_arrivals_in_ns_and_a_missing_one_of_an_absolute_clock(tmp_path: Path):
    rows = [{"input_toks": 1, "output_toks": 2, "arrival_time_ns": t} for t in (5, 12)]
    assert [row.arrival_ns for row in read_trace(json_lines(tmp_path / "n.jsonl", rows), "llmservingsim").rows] == [
        0,
        7,
    ]
    mixed = [logged(0, None), logged(1, 1777142838.5), logged(2, None)]
    trace = read_trace(json_lines(tmp_path / "r.jsonl", mixed))
    assert arrivals_s(trace) == [0.0, 0.0, 0.0]
    assert any("2 rows without arrival_time (first: row 1)" in notice for notice in trace.notices)


RESULT = {"date": "x", "input_lens": [10, 20, 30, 40], "output_lens": [5, 0, 7, 8], "ttfts": [0.1, 0, 0.2, 0.3]}


def test_a_result_of_vllm_bench_holds_the_requests_that_succeeded(tmp_path: Path):
    found = {**RESULT, "start_times": [100.5, 101.0, 102.25, 103.0], "errors": ["", "timeout", "", "reset"]}
    trace = read_trace(document(tmp_path / "v.json", found))
    assert (trace.format, trace.num_dropped) == ("vllm-bench", 2)
    assert lengths(trace) == [(10, 5), (30, 7)]
    assert arrivals_s(trace) == [0.0, 1.75]


def test_an_older_result_records_no_arrivals(tmp_path: Path):
    path = document(tmp_path / "v.json", RESULT)
    refused(path, "records no arrival times")
    assert lengths(load_trace([path])) == [(10, 5), (30, 7), (40, 8)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"output_lens": [1]}, ["output_lens has 1 values, but input_lens 4"]),
        ({"input_lens": [10, 20, 0, 40]}, ["request 2", "input_lens is 0"]),
        ({"input_lens": "many"}, ["expected `array`", "$.input_lens"]),
        ({"ttfts": math.nan}, ["NaN is not JSON"]),
    ],
)
def test_a_broken_result_is_one_line(change: dict, words: list[str], tmp_path: Path):
    refused(document(tmp_path / "v.json", {**RESULT, **change}), str(tmp_path), *words, read=lambda p: load_trace([p]))
