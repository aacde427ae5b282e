"""CSV traces other than Azure's: units, failures, sessions, files without arrivals."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_files import arrivals_s, lengths, refused, turn

from kvtop.workloads.builtins import AZURE_CONV_SLICE
from kvtop.workloads.files import read_text
from kvtop.workloads.formats.registry import load_trace, read_lengths, read_trace
from kvtop.workloads.load import load_workload
from kvtop.workloads.sessions import predecessors
from kvtop.workloads.spec import WorkloadSpec

BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST_SESSIONS = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "100.0,x,4,GPT-4,10,20,30,Conversation log\n"
    "102.5,,1,ChatGPT,7,8,15,API log\n"
    "110.0,x,30,GPT-4,40,0,40,Conversation log\n"
    "120.0,x,30,GPT-4,40,50,90,Conversation log\n"
    "140.0,x,1,GPT-4,100,5,105,Conversation log\n"
)


def written(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_burstgpt_drops_failures_and_counts_them(tmp_path: Path):  # W47
    rows = "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,API log\n118,GPT-4,417,276,693,API log\n"
    path = written(tmp_path / "b.csv", BURST + rows)
    trace = read_trace(path)
    assert (trace.format, trace.num_dropped) == ("burstgpt", 1)
    assert lengths(trace) == [(472, 18), (417, 276)]
    assert arrivals_s(trace) == [0.0, 113.0]
    assert [row.klass for row in trace.rows] == ["Conversation log", "API log"]
    assert trace.notices == ["1 row with 0 output tokens dropped (failed requests)"]
    more = load_workload(WorkloadSpec(name=str(path), limit=10), vocab_size=99)  # W47: rows are not made up
    assert more.num_requests == 2
    assert "limit 10 is more than there is: 2 requests served" in more.notices


def test_burstgpt_without_request_tokens_is_dropped_apart(tmp_path: Path):
    trace = read_trace(written(tmp_path / "b.csv", BURST + "5,ChatGPT,0,18,18,API log\n7,ChatGPT,3,4,7,API log\n"))
    assert lengths(trace) == [(3, 4)]
    assert trace.notices == ["1 row with 0 request tokens dropped"]


def test_turns_of_a_burstgpt_session_wait_for_the_answer_before(tmp_path: Path):
    trace = read_trace(written(tmp_path / "b.csv", BURST_SESSIONS))
    assert [(row.session_id, row.turn) for row in trace.rows] == [("x", 1), ("", 0), ("x", 2), ("x", 3)]
    assert turn(trace, "x", 1).think_ns is None
    assert turn(trace, "x", 2).think_ns == 16_000_000_000  # from 104 s, when the answer had ended, to 120 s
    assert turn(trace, "x", 3).think_ns == 0  # 140 s, but the answer of 120 s took 30 s
    assert "1 turn arrived before the answer of the turn before had ended: think time 0" in trace.notices
    assert predecessors(trace.rows) == {2: (0,), 3: (2,)}


@pytest.mark.parametrize("order", ["recorded", "reversed"])
def test_burstgpt_sessions_do_not_depend_on_the_files_order(order: str, tmp_path: Path):
    header, *lines = BURST_SESSIONS.splitlines(keepends=True)
    shuffled = lines if order == "recorded" else list(reversed(lines))
    trace = read_trace(written(tmp_path / "b.csv", header + "".join(shuffled)))
    assert trace.rows == read_trace(written(tmp_path / "a.csv", BURST_SESSIONS)).rows


VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"


def test_vidur_arrivals_are_exact_seconds(tmp_path: Path):
    path = written(tmp_path / "v.csv", VIDUR + "0.1,5,6\n0.3,7,8\n1e1,9,1\n12.0000000005,1,1\n")
    assert [row.arrival_ns for row in read_trace(path).rows] == [0, 200_000_000, 9_900_000_000, 11_900_000_000]


def test_lengths_without_arrivals_say_which_option_gives_them(tmp_path: Path):
    text = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.8\n2015,156,2171,12.9\n"
    path = written(tmp_path / "lengths.csv", text)
    refused(path, "records no arrival times", "arrival_rate", "requests per second")
    assert load_trace([path]).arrivals == "not recorded"
    assert read_lengths(path) == [(3772, 54), (2015, 156)]
    trace = read_trace(path, arrival_rate=4.0)
    assert lengths(trace) == [(3772, 54), (2015, 156)]
    assert arrivals_s(trace)[0] == 0.0 < arrivals_s(trace)[1]
    assert "arrivals are not from the trace: 2 requests, Poisson, 4 per second, seed 0" in trace.notices
    assert set(arrivals_s(read_trace(path, arrival_rate=float("inf")))) == {0.0}
    served = load_workload(WorkloadSpec(name=str(path), arrival_rate=4.0), vocab_size=99)
    assert served.rows == trace.rows


def test_lengths_can_be_the_histogram_of_a_generator(tmp_path: Path):
    written(tmp_path / "lengths.csv", "num_prefill_tokens,num_decode_tokens\n" + "37,5\n" * 9)
    from kvtop.workloads.generators.distributions import trace_lengths

    assert trace_lengths({"path": str(tmp_path / "lengths.csv"), "format": None}, "") == [(37, 5)] * 9


def test_recorded_arrivals_are_not_replaced(tmp_path: Path):
    path = written(tmp_path / "v.csv", VIDUR + "0.1,5,6\n0.3,7,8\n")
    refused(path, "arrival_rate is given, but arrivals are recorded", arrival_rate=2.0)
    refused(written(tmp_path / "l.csv", VIDUR[11:] + "5,6\n"), "arrival_rate is -1.0", arrival_rate=-1.0)


def test_a_misspelt_arrival_column_is_no_file_of_lengths(tmp_path: Path):
    refused(
        written(tmp_path / "v.csv", VIDUR.replace("arrived_at", "arrived at") + "0,5,6\n"), "nearest is 'arrived at'"
    )


def test_splitwise_columns(tmp_path: Path):
    text = (
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
        "0,2,0,0.5,1,30,4\n1,2,0,0.75,1,20,6\n"
    )
    trace = read_trace(written(tmp_path / "s.csv", text))
    assert (trace.format, lengths(trace), arrivals_s(trace)) == ("splitwise", [(30, 4), (20, 6)], [0.0, 0.25])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BURST + "abc,GPT-4,1,2,3,API log\n", ["Timestamp is 'abc'", "a number of seconds"]),
        (BURST + "nan,GPT-4,1,2,3,API log\n", ["Timestamp is 'nan'", "a number of seconds"]),
        (BURST + "1,GPT-4,1.5,2,3,API log\n", ["Request tokens is '1.5'", "an integer"]),
        (BURST.replace("Response", "Respons") + "1,GPT-4,1,2,3,API log\n", ["'Response tokens' is missing"]),
        (VIDUR + "1,2\n", ["found 2 columns, expected 3"]),
        (VIDUR + "1,2,99999999999\n", ["num_decode_tokens is 99,999,999,999"]),
    ],
)
def test_a_broken_row_is_named_with_its_reason(text: str, words: list[str], tmp_path: Path):
    refused(written(tmp_path / "t.csv", text), str(tmp_path), *words)


def test_milliseconds_read_as_seconds_are_noticed(tmp_path: Path):  # W42
    rows = "".join(f"{i * 3000},5,6\n" for i in range(1179))
    trace = read_trace(written(tmp_path / "v.csv", VIDUR + rows))
    assert trace.notices == [
        "arrived_at: 1,179 rows span 40.9 days if read as seconds: check their unit",
    ]


def test_times_that_are_missing_are_those_of_the_row_before(tmp_path: Path):  # W46
    trace = read_trace(written(tmp_path / "v.csv", VIDUR + ",5,6\n100,7,8\n,9,1\n"))
    assert arrivals_s(trace) == [0.0, 100.0, 100.0]
    assert lengths(trace) == [(5, 6), (7, 8), (9, 1)]
    assert trace.notices == [
        "2 rows without arrived_at (first: row 2) placed at the time of the row before, or at the start"
    ]


def test_a_bom_and_other_line_ends_change_no_row_of_the_azure_file(tmp_path: Path):  # W50
    want = read_trace(AZURE_CONV_SLICE).rows
    text = read_text(AZURE_CONV_SLICE).text
    assert "\r\n" in text
    for name, changed in {"bom": "\ufeff" + text, "unix": text.replace("\r\n", "\n")}.items():
        assert read_trace(written(tmp_path / name, changed)).rows == want, name


def test_a_row_back_in_time_is_named(tmp_path: Path):  # W60
    trace = read_trace(written(tmp_path / "v.csv", VIDUR + "0,1,1\n9,2,2\n3,3,3\n"))
    assert lengths(trace) == [(1, 1), (3, 3), (2, 2)]
    assert trace.notices == [
        "timestamps are not sorted (1 step back in time, first at row 4): rows were sorted by arrival"
    ]
