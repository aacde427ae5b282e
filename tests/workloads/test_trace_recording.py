"""A recorded run, read back as a workload, is served exactly as it was."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from trace_files import refused

from kvtop.cli.main import main
from kvtop.workloads.formats.registry import load_trace, read_trace
from kvtop.workloads.load import load_workload
from kvtop.workloads.sessions import predecessors
from kvtop.workloads.spec import WorkloadSpec


def recorded(workload: str, out: Path, *more: str) -> Path:
    words = ["bench", "-w", workload, "--executor", "null", "--num-blocks", "200", "-o", str(out), *more]
    assert main(words) == 0
    (run,) = [path for path in out.iterdir() if path.is_dir()]
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded("poisson-shared-prefix", tmp_path_factory.mktemp("first"), "--limit", "25")


def requests(run: Path) -> pl.DataFrame:
    columns = ["t_sched_ns", "t_first_token_ns", "t_done_ns", "prompt_tokens", "output_tokens", "hit_tokens"]
    return pl.read_parquet(run / "requests.parquet").sort("req_index").select(columns)


def test_a_recording_has_the_arrivals_and_lengths_of_its_workload(run: Path):
    want = load_workload(WorkloadSpec(name="poisson-shared-prefix", limit=25), vocab_size=49_152).rows
    trace = read_trace(run)
    assert trace.format == "recording"
    assert [(r.arrival_ns, r.prompt_tokens, r.output_tokens) for r in trace.rows] == [
        (r.arrival_ns, r.prompt_tokens, r.output_tokens) for r in want
    ]
    assert load_trace([run / "requests.parquet"]).rows == trace.rows


def test_a_recording_shares_what_was_shared_in_whole_blocks(run: Path):
    rows = read_trace(run).rows
    heads = {row.hash_ids[:16] for row in rows}  # 256 tokens of system prompt in blocks of 16
    assert len(heads) == 1
    tails = [i for row in rows for i in row.hash_ids[16:]]
    assert len(tails) == len(set(tails))
    assert [len(row.hash_ids) for row in rows] == [row.prompt_tokens // 16 for row in rows]


def test_serving_a_recording_gives_the_same_run(run: Path, tmp_path: Path):
    again = recorded(str(run), tmp_path / "again")
    assert requests(again).equals(requests(run))


def test_without_a_log_lengths_and_arrivals_are_left_and_it_says_so(run: Path, tmp_path: Path):
    (tmp_path / "requests.parquet").write_bytes((run / "requests.parquet").read_bytes())
    trace = read_trace(tmp_path)
    assert {row.hash_ids for row in trace.rows} == {()}
    assert any("did not record which prefixes are shared" in notice for notice in trace.notices)


def table(path: Path, **columns: list) -> Path:
    count = len(next(iter(columns.values())))
    usual = {
        "req_index": list(range(count)),
        "request_id": [f"r{i}" for i in range(count)],
        "t_sched_ns": [0] * count,
        "t_done_ns": [None] * count,
        "prompt_tokens": [10] * count,
        "requested_output_tokens": [8] * count,
        "output_tokens": [8] * count,
        "status": ["ok"] * count,
    }
    pl.DataFrame({**usual, **columns}).write_parquet(path)
    return path


def test_think_times_are_from_the_recorded_end_of_the_turn_before(tmp_path: Path):
    path = table(
        tmp_path / "requests.parquet",
        t_sched_ns=[1000, 5000, 5000, 9000],
        t_done_ns=[3000, 7000, 6000, 9500],
        session_id=["a", "a", "b", "a"],
        turn=[1, 2, 1, 3],
    )
    trace = read_trace(path)
    assert [row.arrival_ns for row in trace.rows] == [0, 4000, 4000, 8000]
    assert [row.think_ns for row in trace.rows] == [None, 2000, None, 2000]
    (tmp_path / "run.json").write_text('{"replay": "open"}')
    assert {row.think_ns for row in read_trace(path).rows} == {None}


def test_a_sub_agent_and_the_parent_that_waited_for_it_wait_again(tmp_path: Path):
    path = table(
        tmp_path / "requests.parquet",
        t_sched_ns=[0, 2000, 9000],
        t_done_ns=[1000, 7000, 9500],
        session_id=["a", "a/x", "a"],
        turn=[1, 1, 2],
        parent_request_id=["", "r0", "r1"],
    )
    rows = read_trace(path).rows
    assert [row.think_ns for row in rows] == [None, 1000, 2000]
    assert [row.after for row in rows] == [(), (("a", 1),), (("a/x", 1),)]
    assert predecessors(rows) == {1: (0,), 2: (0, 1)}


def test_serving_a_recorded_agent_session_sends_every_call_when_it_was_sent(tmp_path: Path):
    calls = [
        {
            "t": t,
            "type": "n",
            "in": 40 * i + 100,
            "out": 6,
            "hash_ids": list(range((40 * i + 100) // 32)),
            "think_time": 0.5,
        }
        for i, t in enumerate((0.0, 8.0, 9.0))
    ]
    agent = {
        "t": 4.0,
        "type": "subagent",
        "agent_id": "x",
        "duration_ms": 3500,
        "requests": [calls[0], {**calls[1], "t": 1.0}],
    }
    source = tmp_path / "trace_1.json"
    source.write_text(json.dumps({"id": "s", "block_size": 32, "requests": [calls[0], agent, *calls[1:]]}))
    first = recorded(str(source), tmp_path / "first")
    again = recorded(str(first), tmp_path / "again")
    assert requests(again).drop("hit_tokens").equals(requests(first).drop("hit_tokens"))
    assert pl.read_parquet(first / "requests.parquet")["t_sched_ns"].n_unique() == 5  # one waits for the other


def test_a_request_that_did_not_end_well_is_as_long_as_it_asked_for(tmp_path: Path):
    status = ["ok", "cutoff", "rejected"]
    path = table(tmp_path / "requests.parquet", output_tokens=[5, 2, None], status=status)
    trace = read_trace(path)
    assert [row.output_tokens for row in trace.rows] == [5, 8, 8]
    assert any("2 requests did not end well" in notice for notice in trace.notices)


def test_tables_that_are_no_requests_are_refused(tmp_path: Path):
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "requests.parquet")
    refused(tmp_path, "column 'req_index' is missing", "requests table of a run")
    (tmp_path / "requests.parquet").write_bytes(b"nothing")
    refused(tmp_path, "is no Parquet table")
    refused(tmp_path / "absent.parquet", "no such file")
