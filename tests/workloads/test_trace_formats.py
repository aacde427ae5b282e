"""Traces are read exactly; what is served does not depend on how the file was stored."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import random
from datetime import datetime
from pathlib import Path

import pytest

from kvtop.engine.errors import UnknownName, WorkloadError
from kvtop.workloads.builtins import AZURE_CONV_SLICE, MOONCAKE_SLICE
from kvtop.workloads.formats.registry import read_trace

MOONCAKE_TEXT = gzip.decompress(MOONCAKE_SLICE.read_bytes())
AZURE_TEXT = gzip.decompress(AZURE_CONV_SLICE.read_bytes())


def mooncake_oracle() -> list[dict]:
    return [json.loads(line) for line in MOONCAKE_TEXT.decode().splitlines()]


def azure_oracle() -> list[tuple[int, int, int]]:
    """(ns since the first row, context, generated), through datetime and a separate seventh digit."""
    rows = list(csv.DictReader(io.StringIO(AZURE_TEXT.decode(), newline="")))

    def ticks(text: str) -> int:
        whole = datetime.strptime(text[:-1], "%Y-%m-%d %H:%M:%S.%f") - datetime(2023, 1, 1)
        return (whole.days * 86_400 + whole.seconds) * 10_000_000 + whole.microseconds * 10 + int(text[-1])

    first = ticks(rows[0]["TIMESTAMP"])
    return [((ticks(r["TIMESTAMP"]) - first) * 100, int(r["ContextTokens"]), int(r["GeneratedTokens"])) for r in rows]


def served(path: Path | str, name: str | None = None) -> list[tuple[int, int, int]]:
    return [(r.arrival_ns, r.prompt_tokens, r.output_tokens) for r in read_trace(path, name).rows]


def test_mooncake_slice_is_read_row_by_row():
    got = read_trace(MOONCAKE_SLICE)
    want = mooncake_oracle()
    assert got.format == "mooncake"
    assert got.notices == []
    assert len(got.rows) == 1000
    for row, line in zip(got.rows, want, strict=True):
        assert row.arrival_ns == line["timestamp"] * 1_000_000
        assert (row.prompt_tokens, row.output_tokens) == (line["input_length"], line["output_length"])
        assert list(row.hash_ids) == line["hash_ids"]
        assert row.hash_block_tokens == 512


def test_mooncake_slice_has_its_published_totals():
    rows = read_trace(MOONCAKE_SLICE).rows
    assert sum(r.prompt_tokens for r in rows) == 13_732_944
    assert sum(r.output_tokens for r in rows) == 349_357
    assert rows[-1].arrival_ns == 330_000_000_000
    assert len({i for r in rows for i in r.hash_ids}) == 21_514


def test_azure_slice_is_read_row_by_row_to_the_tick():
    got = read_trace(AZURE_CONV_SLICE)
    assert got.format == "azure"
    assert got.notices == []
    assert [(r.arrival_ns, r.prompt_tokens, r.output_tokens) for r in got.rows] == azure_oracle()
    assert len(got.rows) == 1000
    assert all(r.hash_ids == () and r.hash_block_tokens == 0 for r in got.rows)


@pytest.mark.parametrize("slice_path", [MOONCAKE_SLICE, AZURE_CONV_SLICE])
def test_plain_crlf_bom_and_blank_lines_change_nothing(slice_path: Path, tmp_path: Path):
    want = read_trace(slice_path).rows
    lines = gzip.decompress(slice_path.read_bytes()).decode().replace("\r\n", "\n").strip("\n").split("\n")
    variants = {
        "unix": "\n".join(lines),
        "dos": "\r\n".join(lines) + "\r\n",
        "bom": "\ufeff" + "\r\n".join(lines),
        "blank": "\n" + "\n\n".join(lines) + "\n\n  \n",
    }
    for name, text in variants.items():
        path = tmp_path / name
        path.write_bytes(text.encode())
        assert read_trace(path).rows == want, name


def test_gzip_is_recognised_by_content_not_by_name(tmp_path: Path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(gzip.compress(MOONCAKE_TEXT[:5000].rsplit(b"\n", 1)[0]))
    assert read_trace(path).rows == read_trace(MOONCAKE_SLICE).rows[: len(read_trace(path).rows)]


def test_trace_sha256_is_that_of_the_file_on_disk(tmp_path: Path):
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(MOONCAKE_TEXT)
    assert read_trace(MOONCAKE_SLICE).trace_sha256 == hashlib.sha256(MOONCAKE_SLICE.read_bytes()).hexdigest()
    assert read_trace(plain).trace_sha256 == hashlib.sha256(MOONCAKE_TEXT).hexdigest()


def test_shuffled_azure_rows_are_sorted_with_a_notice(tmp_path: Path):
    header, *lines = AZURE_TEXT.decode().strip().split("\r\n")
    random.Random(1).shuffle(lines)
    path = tmp_path / "shuffled.csv"
    path.write_bytes("\r\n".join([header, *lines]).encode())
    got = read_trace(path)
    assert sorted((r.arrival_ns, r.prompt_tokens, r.output_tokens) for r in got.rows) == sorted(azure_oracle())
    assert [r.arrival_ns for r in got.rows] == [time for time, _, _ in azure_oracle()]
    assert any("not sorted" in notice for notice in got.notices)


def test_sorting_keeps_the_order_of_equal_timestamps(tmp_path: Path):
    rows = [(5, 3), (0, 1), (5, 4), (0, 2)]
    lines = [
        json.dumps({"timestamp": t, "input_length": 10, "output_length": out, "hash_ids": [out]}) for t, out in rows
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(lines))
    assert [r.output_tokens for r in read_trace(path).rows] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("text", "offset_ns"),
    [
        ("2024-05-10 00:00:00.5+00:00", 500_000_000),
        ("2024-05-10T02:00:00.5+02:00", 500_000_000),
        ("2024-05-09 21:30:00.000000001-0230", 1),
        ("2024-05-10 00:00:01Z", 1_000_000_000),
    ],
)
def test_times_with_an_offset_are_compared_in_utc(text: str, offset_ns: int, tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00Z,5,6\n{text},7,8\n")
    assert served(path) == [(0, 5, 6), (offset_ns, 7, 8)]


def test_first_arrival_is_zero_whatever_the_files_clock_shows(tmp_path: Path):
    path = tmp_path / "late.jsonl"
    rows = [{"timestamp": t, "input_length": 9, "output_length": 2, "hash_ids": [0]} for t in (1_000_000, 1_000_500)]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert [r.arrival_ns for r in read_trace(path).rows] == [0, 500_000_000]


def test_rows_without_output_are_dropped_and_counted(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-01-01 00:00:00,5,0\n2024-01-01 00:00:01,5,6\n2024-01-01 00:00:02,5,0\n"
    )
    got = read_trace(path)
    assert [(r.arrival_ns, r.output_tokens) for r in got.rows] == [(0, 6)]
    assert got.notices == ["2 rows with 0 output tokens dropped (failed requests)"]


def test_hash_ids_that_are_no_prefix_hashes_are_noticed(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    rows = [{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": ids} for ids in ([0, 7], [1, 7])]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert any("1 hash id with more than one predecessor" in notice for notice in read_trace(path).notices)


def test_a_strange_rate_is_noticed(tmp_path: Path):
    path = tmp_path / "seconds.jsonl"
    row = {"input_length": 600, "output_length": 1, "hash_ids": [0, 1]}
    path.write_text("\n".join(json.dumps({"timestamp": i // 50, **row}) for i in range(200)))
    assert any("check their unit" in notice for notice in read_trace(path).notices)


def test_a_format_may_be_named_and_an_unknown_one_names_the_nearest(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 9, "output_length": 2, "hash_ids": [0]}')
    assert served(path, "mooncake") == [(0, 9, 2)]
    with pytest.raises(UnknownName) as caught:
        read_trace(path, "moncake")
    assert caught.value.nearest == "mooncake"


def test_another_hash_block_size_can_be_given(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 65, "output_length": 2, "hash_ids": [0, 1]}')
    assert read_trace(path, hash_block_tokens=64).rows[0].hash_block_tokens == 64


def test_a_missing_timestamp_is_that_of_the_row_before_or_the_start(tmp_path: Path):  # W46
    path = tmp_path / "t.jsonl"
    row = {"input_length": 9, "output_length": 2, "hash_ids": [0]}
    path.write_text("\n".join(map(json.dumps, [row, {"timestamp": 100, **row}, {"timestamp": None, **row}])))
    got = read_trace(path)
    assert [r.arrival_ns for r in got.rows] == [0, 100_000_000, 100_000_000]
    assert got.notices == [
        "2 rows without timestamp (first: row 1) placed at the time of the row before, or at the start"
    ]


def test_a_missing_time_of_day_is_not_the_year_one(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n,1,2\n2024-05-10 00:00:00,3,4\n")
    assert served(path) == [(0, 1, 2), (0, 3, 4)]


def test_a_misspelt_timestamp_is_not_a_missing_one(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestmp": 100, "input_length": 9, "output_length": 2, "hash_ids": [0]}')
    with pytest.raises(WorkloadError, match="'timestamp' is missing; nearest is 'timestmp'"):
        read_trace(path)
