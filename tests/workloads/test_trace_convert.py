"""``kvtop trace convert``: what is written is read back the same, and what a format cannot hold is said."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_files import arrivals_s, document, json_lines, lengths, refused

from kvtop.cli.main import main
from kvtop.workloads.builtins import AZURE_CONV_SLICE, MOONCAKE_SLICE
from kvtop.workloads.formats.base import ReadOptions, Trace
from kvtop.workloads.formats.registry import FORMATS, load_trace, read_trace
from kvtop.workloads.load import load_workload
from kvtop.workloads.rows import Row
from kvtop.workloads.spec import WorkloadSpec


def convert(source: Path | list[Path], out: Path, *words: str) -> Path:
    sources = source if isinstance(source, list) else [source]
    assert main(["trace", "convert", *map(str, sources), "-o", str(out), *words]) == 0
    return out


def written(trace: Trace, name: str, path: Path) -> Path:
    write = FORMATS[name].write
    assert write is not None
    path.write_bytes(b"".join(write(trace).lines))
    return path


NAMES = st.sampled_from(["", "a", "b/c", "müller"])
ROW = st.builds(
    Row,
    arrival_ns=st.integers(0, 2**50),
    prompt_tokens=st.integers(1000, 9000),
    output_tokens=st.integers(0, 500),
    hash_ids=st.lists(st.integers(0, 2**62), max_size=4).map(tuple),
    hash_block_tokens=st.integers(1, 64),
    shared_tokens=st.integers(0, 1000),
    shared_id=st.integers(0, 3),
    n=st.integers(1, 4),
    num_beams=st.integers(1, 4),
    temperature=st.floats(0, 2),
    priority=st.integers(-3, 3),
    tenant=NAMES,
    klass=NAMES,
    session_id=NAMES,
    turn=st.integers(0, 9),
    think_ns=st.none() | st.integers(0, 2**50),
    after=st.lists(st.tuples(NAMES, st.integers(0, 9)), max_size=2).map(tuple),
    conversation=st.none() | st.integers(0, 9),
)


@given(rows=st.lists(ROW, min_size=1, max_size=6), nominal=st.booleans())
@settings(deadline=None, max_examples=60)
def test_kvtops_own_format_holds_every_field_of_every_row(rows: list[Row], nominal: bool, tmp_path_factory: Any):
    rows.sort(key=lambda row: row.arrival_ns)
    rows = [msgspec.structs.replace(row, arrival_ns=row.arrival_ns - rows[0].arrival_ns) for row in rows]
    trace = Trace(
        rows=rows, notices=["a", "b"], format="x", trace_sha256="y", rounding="ceil", nominal_arrivals=nominal
    )
    got = load_trace([written(trace, "kvtop", tmp_path_factory.mktemp("k") / "t.jsonl")])
    assert got.rows == rows
    assert (got.notices, got.rounding, got.nominal_arrivals) == (["a", "b"], "ceil", nominal)


def test_mooncake_through_kvtop_and_back_is_the_published_file(tmp_path: Path):
    own = convert(MOONCAKE_SLICE, tmp_path / "own.jsonl.gz")
    back = convert(own, tmp_path / "back.jsonl", "--to", "mooncake")
    want = [json.loads(line) for line in gzip.decompress(MOONCAKE_SLICE.read_bytes()).splitlines()]
    assert [json.loads(line) for line in back.read_text().splitlines()] == want
    assert read_trace(own).rows == read_trace(MOONCAKE_SLICE).rows
    hashes = {load_workload(WorkloadSpec(name=str(path)), vocab_size=999).hash for path in (own, back, MOONCAKE_SLICE)}
    assert len(hashes) == 1


def test_azure_through_vidur_keeps_every_tick(tmp_path: Path):
    out = convert(AZURE_CONV_SLICE, tmp_path / "v.csv", "--to", "vidur")
    assert out.read_text().startswith("arrived_at,num_prefill_tokens,num_decode_tokens\n")
    assert read_trace(out).rows == read_trace(AZURE_CONV_SLICE).rows


def test_lengths_without_arrivals_stay_without_until_they_get_some(tmp_path: Path):
    source = tmp_path / "l.csv"
    source.write_text("num_prefill_tokens,num_decode_tokens\n600,6\n700,8\n")
    for name in ("kvtop", "mooncake", "vidur"):
        out = convert(source, tmp_path / name, "--to", name)
        assert load_trace([out]).arrivals == "not recorded"
        assert lengths(load_trace([out])) == [(600, 6), (700, 8)]
    timed = read_trace(convert(source, tmp_path / "timed", "--arrival-rate", "2", "--seed", "5"))
    assert timed.rows == read_trace(source, arrival_rate=2.0, options=ReadOptions(seed=5)).rows
    assert timed.rows[1].arrival_ns > 0
    assert any("Poisson, 2 per second, seed 5" in notice for notice in timed.notices)


def session(name: str = "s") -> dict[str, Any]:
    calls = [
        {"t": t, "type": "n", "in": tokens, "out": out, "hash_ids": list(range(tokens // 64)), "think_time": 1.0}
        for t, tokens, out in ((0.0, 150, 3), (9.0, 250, 0))
    ]
    return {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": calls}


def test_sessions_written_as_mooncake_keep_their_prefixes_and_say_what_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    source = document(tmp_path / "trace_1.json", session())
    out = convert(source, tmp_path / "m.jsonl", "--to", "mooncake")
    notes = capsys.readouterr().err
    assert "note: sessions are not written: 1 turn will arrive at the recorded time (open loop)" in notes
    assert "note: a hash id stands for 64 tokens: read the file with hash_block_tokens 64" in notes
    assert "note: 1 request with 0 output tokens recorded: 1 is served" in notes
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["timestamp"] for row in rows] == [0, 9000]
    assert [row["output_length"] for row in rows] == [3, 1]
    assert [len(row["hash_ids"]) for row in rows] == [3, 4]  # ceil(150 / 64), ceil(250 / 64)
    assert rows[0]["hash_ids"][:2] == rows[1]["hash_ids"][:2]
    assert rows[0]["hash_ids"][2] not in rows[1]["hash_ids"]  # a partial block is the row's own
    assert read_trace(out, hash_block_tokens=64).format == "mooncake"
    refused(out, "3 ids", "input_length 150 needs 1", "512 tokens", "blocks of 64 would fit (hash_block_tokens)")


def test_sessions_through_kvtops_format_are_the_same_workload(tmp_path: Path):
    folder = tmp_path / "sessions"
    folder.mkdir()
    for name in "ab":
        document(folder / f"trace_{name}.json", session(name))
    out = convert(folder, tmp_path / "own.jsonl")
    want, got = read_trace(folder), read_trace(out)
    assert got.rows == want.rows
    assert got.notices == want.notices


def test_conversations_become_ids_of_whole_blocks(tmp_path: Path):
    talk = [
        {"from": sender, "value": "x" * 4 * tokens}
        for sender, tokens in (("human", 600), ("gpt", 30), ("human", 900), ("gpt", 5))
    ]
    source = document(tmp_path / "s.json", [{"conversations": talk}])
    out = convert(source, tmp_path / "m.jsonl", "--to", "mooncake", "--arrival-rate", "inf")
    first, second = (json.loads(line)["hash_ids"] for line in out.read_text().splitlines())
    assert (len(first), len(second)) == (2, 3)
    assert first[0] == second[0]
    assert first[1] not in second  # 88 of 512 tokens


def test_a_slice_keeps_the_time_from_start_up_to_end(tmp_path: Path):
    trace = read_trace(MOONCAKE_SLICE)
    got = read_trace(convert(MOONCAKE_SLICE, tmp_path / "part.jsonl", "--start", "60", "--end", "120"))
    want = [row for row in trace.rows if 60 <= row.arrival_ns / 1e9 < 120]
    assert [row.hash_ids for row in got.rows] == [row.hash_ids for row in want]
    assert got.rows[0].arrival_ns == 0
    assert [row.arrival_ns + want[0].arrival_ns for row in got.rows] == [row.arrival_ns for row in want]
    assert f"{len(want)} of 1,000 requests: those that arrive from 60 s to 120 s" in got.notices


def test_sampled_arrivals_that_were_written_can_be_cut(tmp_path: Path):
    source = tmp_path / "l.csv"
    source.write_text("num_prefill_tokens,num_decode_tokens\n" + "600,6\n" * 50)
    timed = convert(source, tmp_path / "timed", "--arrival-rate", "1")
    part = read_trace(convert(timed, tmp_path / "part", "--start", "10", "--end", "20"))
    times = [row.arrival_ns for row in read_trace(timed).rows if 10e9 <= row.arrival_ns < 20e9]
    assert [row.arrival_ns + times[0] for row in part.rows] == times


def test_scales_and_limit_are_those_of_a_workload_and_are_written_down(tmp_path: Path):
    words = ["--limit", "40", "--time-scale", "0.5", "--length-scale", "0.125"]
    got = read_trace(convert(MOONCAKE_SLICE, tmp_path / "small.jsonl", *words))
    want = load_workload(
        WorkloadSpec(name=str(MOONCAKE_SLICE), limit=40, time_scale=0.5, length_scale=0.125), vocab_size=9
    )
    assert got.rows == want.rows
    assert got.notices == ["time_scale 0.5 was applied", "length_scale 0.125 was applied"]


def test_a_speed_up_halves_the_gaps_and_starts_at_zero(tmp_path: Path):  # W42
    rows = [
        {"timestamp": t, "input_length": 9, "output_length": 2, "hash_ids": [0]}
        for t in (1_000_000, 1_000_500, 1_001_500)
    ]
    source = json_lines(tmp_path / "m.jsonl", rows)
    got = read_trace(convert(source, tmp_path / "fast.jsonl", "--time-scale", "0.5"))
    assert arrivals_s(got) == [0.0, 0.25, 0.75]


def test_tiles_follow_each_other_and_share_nothing(tmp_path: Path):
    trace = read_trace(MOONCAKE_SLICE)
    got = read_trace(convert(MOONCAKE_SLICE, tmp_path / "three.jsonl", "--tile", "3"))
    assert len(got.rows) == 3000
    copies = [got.rows[i : i + 1000] for i in (0, 1000, 2000)]
    period_ns = copies[1][0].arrival_ns
    mean_gap_ns = trace.rows[-1].arrival_ns / 999
    assert period_ns == pytest.approx(trace.rows[-1].arrival_ns + mean_gap_ns, abs=1)
    ids = [{i for row in copy for i in row.hash_ids} for copy in copies]
    assert ids[0].isdisjoint(ids[1] | ids[2])
    assert ids[1].isdisjoint(ids[2])
    for number, copy in enumerate(copies):
        assert [row.arrival_ns - number * period_ns for row in copy] == [row.arrival_ns for row in trace.rows]
        assert [_pattern(row.hash_ids, copy[0].hash_ids[0]) for row in copy] == [
            _pattern(row.hash_ids, trace.rows[0].hash_ids[0]) for row in trace.rows
        ]
    assert any(notice.startswith("tiled: 3 copies") for notice in got.notices)


def _pattern(ids: tuple[int, ...], zero: int) -> list[int]:
    return [i - zero for i in ids]


def test_tiled_sessions_are_others(tmp_path: Path):
    source = document(tmp_path / "trace_1.json", session())
    rows = read_trace(convert(source, tmp_path / "two.jsonl", "--tile", "2")).rows
    assert [(row.session_id, row.turn) for row in rows] == [("s", 1), ("s", 2), ("s~1", 1), ("s~1", 2)]
    spec = tmp_path / "two.toml"
    spec.write_text('kind = "trace"\npath = "trace_1.json"\ntile = 2\nend_s = 5\n')
    cut = load_workload(WorkloadSpec(name=str(spec)), vocab_size=9)
    assert [(row.session_id, row.turn) for row in cut.rows] == [("s", 1), ("s~1", 1)]


def test_the_same_conversion_gives_the_same_bytes(tmp_path: Path):
    one, two = (convert(MOONCAKE_SLICE, tmp_path / name / "out.jsonl.gz") for name in _folders(tmp_path))
    assert one.read_bytes() == two.read_bytes()


def _folders(tmp_path: Path) -> list[str]:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    return ["a", "b"]


def test_the_answer_may_be_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    convert(MOONCAKE_SLICE, tmp_path / "o.jsonl", "--limit", "3", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found == {"path": str(tmp_path / "o.jsonl"), "format": "kvtop", "rows": 3, "notices": []}


WRONG = [
    (["--to", "azur"], "unknown format to write 'azur'"),
    (["--start", "10", "--end", "5"], "expected 0 <= start < end"),
    (["--start", "99999"], "nothing arrives"),
    (["--tile", "0"], "--tile"),
    (["--hash-block-tokens", "0"], "--hash-block-tokens"),  # W44
    (["--arrival-rate", "2"], "arrivals are recorded"),
    (["--tile", "1000000"], "tile is 1,000,000"),
    (["--limt", "3"], "did you mean --limit"),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=range(len(WRONG)))
def test_what_cannot_be_done_is_one_line_and_leaves_no_file(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "o.jsonl"
    assert main(["trace", "convert", str(MOONCAKE_SLICE), "-o", str(out), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize("name", ["t.jsonl", "link.jsonl", "folder/../t.jsonl"])
def test_what_is_read_is_never_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str):
    source = tmp_path / "t.jsonl"
    source.write_text('{"timestamp": 0, "input_length": 20, "output_length": 2, "hash_ids": [1]}\n')
    (tmp_path / "link.jsonl").symlink_to(source)
    (tmp_path / "folder").mkdir()
    before = source.read_bytes()
    assert main(["trace", "convert", str(source), "-o", str(tmp_path / name)]) == 2
    assert "is the trace that is read" in capsys.readouterr().err
    assert source.read_bytes() == before


def test_a_slice_without_an_end_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["trace", "convert", str(MOONCAKE_SLICE), "-o", str(tmp_path / "o.jsonl"), "--start"]
    assert main([*words, "300"]) == 0
    assert "those that arrive from 300 s on\n" in capsys.readouterr().err
    assert main([*words, "9000"]) == 2
    assert "nothing arrives from 9000 s on: the last arrival is at 330.000 s" in capsys.readouterr().err


BROKEN = [
    ('{"kvtop_trace": 1, "arrivals": "guessed"}\n', "arrivals is 'guessed', expected recorded or"),
    ('{"kvtop_trace": 2}\n', "kvtop_trace is 2, expected 1"),
    ('{"kvtop_trace": 1}\n', "no rows"),
    ('{"kvtop_trace": 1}\n{"arrival_ns": 5, "prompt_tokens": 1, "output_tokens": 1}', "the first arrival_ns is 5"),
    ('{"kvtop_trace": 1}\n{"arrival_ns": 0, "prompt_tokens": 1}', "'output_tokens' is missing"),
    (
        '{"kvtop_trace": 1}\n{"arrival_ns": 0, "prompt_tokens": 9, "output_tokens": 1, "hash_ids": [1]}',
        "need a hash_block",
    ),
    ('{"kvtop_trace": 1}\n{"arrival_ns": 0, "prompt_tokens": 9, "output_tokens": 1, "n": 0}', "n is 0"),
    ('{"kvtop_trace": 1}\n{"arrival_ns": 0, "prompt_tokens": 9, "output_tokens": 1, "turn": -1}', "turn is -1"),
    (
        '{"kvtop_trace": 1}\n{"arrival_ns": 0, "prompt_tokens": 9, "output_tokens": 1, "shared_tokens": 10}',
        "at most prompt",
    ),
]


@pytest.mark.parametrize(("text", "message"), BROKEN, ids=range(len(BROKEN)))
def test_a_broken_kvtop_trace_is_named(text: str, message: str, tmp_path: Path):
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    refused(path, str(path), message)


def test_rows_of_a_kvtop_trace_are_in_order(tmp_path: Path):
    row = '{{"arrival_ns": {}, "prompt_tokens": 1, "output_tokens": 1}}\n'
    path = tmp_path / "t.jsonl"
    path.write_text('{"kvtop_trace": 1}\n' + "".join(row.format(t) for t in (0, 9, 5)))
    assert refused(path, "arrival_ns is 5 after 9").row == 4
