"""Every broken trace gives one line: file, row, what was found and what was expected."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.formats.registry import FORMATS, read_trace

GOOD = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}'
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
ROW = "2023-11-16 18:17:03.9799600,5,6\r\n"


def mooncake(**changes: object) -> str:
    return json.dumps({**json.loads(GOOD), **changes})


def failure(tmp_path: Path, content: str | bytes, name: str = "trace.jsonl", **options: object) -> WorkloadError:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(WorkloadError) as caught:
        read_trace(path, **options)  # type: ignore[arg-type]
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 300
    return caught.value


BAD_MOONCAKE = [
    (GOOD[:40], ["bad JSON", "column"]),
    (GOOD + GOOD, ["bad JSON", "extra data"]),
    ("[" + GOOD + "]", ["one JSON object a line"]),
    ("7", ["found 7", "one JSON object a line"]),
    ("[" * 100_000, ["bad JSON"]),
    (GOOD.replace("input_length", "input_len"), ["'input_length' is missing", "nearest is 'input_len'"]),
    ('{"timestamp": 0, "output_length": 3}', ["'input_length' is missing (found 'timestamp, output_length')"]),
    (mooncake(timestamp=float("nan")), ["NaN", "finite number"]),
    (mooncake(output_length=float("inf")), ["Infinity", "finite number"]),
    (mooncake(timestamp=float("-inf")), ["-Infinity", "finite number"]),
    (mooncake(timestamp=0.5), ["timestamp is 0.5", "integer (milliseconds)"]),
    (mooncake(timestamp=True), ["timestamp is true", "integer"]),
    (mooncake(timestamp=-1), ["timestamp is -1", "from 0 up"]),
    (mooncake(timestamp=10**30), ["timestamp is 1000", "from 0 up"]),
    (mooncake(input_length="600"), ['input_length is "600"', "integer (tokens)"]),
    (mooncake(input_length=None), ["input_length is null", "integer (tokens)"]),
    (mooncake(input_length=0, hash_ids=[]), ["input_length is 0", "1 to 10,000,000"]),
    (mooncake(input_length=-5), ["input_length is -5", "1 to 10,000,000"]),
    (mooncake(input_length=10**30), ["input_length is a number of more than 20 digits"]),
    ('{"timestamp": 0, "input_length": ' + "9" * 5000 + ', "output_length": 5, "hash_ids": [0]}', ["input_length"]),
    (mooncake(output_length=-1), ["output_length is -1", "0 to 10,000,000"]),
    (mooncake(hash_ids=None), ["hash_ids is null", "list of integers"]),
    (mooncake(hash_ids=[0, "1"]), ['hash_ids holds "1"', "integers"]),
    (mooncake(hash_ids=[0, -1]), ["hash_ids holds -1", "0 to 2^63 - 1"]),
    (mooncake(hash_ids=[0, 2**63]), ["hash_ids holds 9223372036854775808", "0 to 2^63 - 1"]),
    (mooncake(input_length=20), ["2 ids", "input_length 20 needs 1", "512"]),
    (mooncake(input_length=1536, hash_ids=[0, 1, 2, 3]), ["4 ids", "input_length 1,536 needs 3", "512"]),
    (mooncake(input_length=2049, hash_ids=[0, 1, 2, 3]), ["4 ids", "input_length 2,049 needs 5", "512"]),
]


@pytest.mark.parametrize(("bad", "words"), BAD_MOONCAKE, ids=range(len(BAD_MOONCAKE)))
def test_a_malformed_mooncake_row_is_named_with_its_reason(bad: str, words: list[str], tmp_path: Path):
    error = failure(tmp_path, f"{GOOD}\r\n\r\n{bad}\r\n{GOOD}\n")
    assert error.row == 3, "the blank row counts"
    for word in words:
        assert word in str(error)


@pytest.mark.parametrize("length", [1537, 2048])
def test_four_hash_ids_fit_from_1537_to_2048_tokens(length: int, tmp_path: Path):
    path = tmp_path / "t.jsonl"
    path.write_text(mooncake(input_length=length, hash_ids=[0, 1, 2, 3]))
    assert read_trace(path).rows[0].prompt_tokens == length


BAD_AZURE = [
    ("2023-11-16 18:17:04,5", ["2 columns", "expected 3"]),
    ("2023-11-16 18:17:04,5,6,7", ["4 columns", "expected 3"]),
    ("2023-11-16 18:17:04,five,6", ["ContextTokens is 'five'", "integer"]),
    ("2023-11-16 18:17:04,5.0,6", ["ContextTokens is '5.0'", "integer"]),
    ("2023-11-16 18:17:04,nan,6", ["ContextTokens is 'nan'", "integer"]),
    ("2023-11-16 18:17:04,,6", ["ContextTokens is ''", "integer"]),
    ("2023-11-16 18:17:04,1_000,6", ["ContextTokens is '1_000'", "integer"]),
    ("2023-11-16 18:17:04,٣,6", ["ContextTokens", "integer"]),
    ("2023-11-16 18:17:04,0,6", ["ContextTokens is 0", "1 to 10,000,000"]),
    ("2023-11-16 18:17:04,5,-6", ["GeneratedTokens is -6", "0 to 10,000,000"]),
    ("2023-11-16 18:17:04," + "9" * 50 + ",6", ["ContextTokens", "integer"]),
    ("1700158623.97,5,6", ["TIMESTAMP is '1700158623.97'", "a time like 2023-11-16 18:17:03.9799600"]),
    ("2023-13-16 18:17:04,5,6", ["'2023-13-16 18:17:04'", "no date"]),
    ("2023-11-16 25:17:04,5,6", ["'2023-11-16 25:17:04'", "no time of day"]),
    ("2023-11-16 18:17:04Z,5,6", ["with and without an offset"]),
    ('"2023-11-16 18:17:04,5,6', ["bad CSV"]),
]


@pytest.mark.parametrize(("bad", "words"), BAD_AZURE, ids=range(len(BAD_AZURE)))
def test_a_malformed_azure_row_is_named_with_its_reason(bad: str, words: list[str], tmp_path: Path):
    error = failure(tmp_path, f"\ufeff{HEADER}{ROW}\r\n{bad}", name="t.csv")
    assert error.row == 4
    for word in words:
        assert word in str(error)


def test_a_missing_azure_column_names_the_nearest(tmp_path: Path):
    error = failure(tmp_path, HEADER.replace("ContextTokens", "context_tokens") + ROW)
    assert error.row == 1
    assert "column 'ContextTokens' is missing; nearest is 'context_tokens'" in str(error)


def test_a_doubled_azure_column_is_refused(tmp_path: Path):
    error = failure(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens,ContextTokens\n")
    assert "column 'ContextTokens' appears 2 times" in str(error)


def test_microseconds_read_as_milliseconds_are_refused(tmp_path: Path):
    error = failure(tmp_path, GOOD + "\n" + mooncake(timestamp=3_536_999_000))
    assert error.row == 2
    assert "40.9 days" in str(error)
    assert "milliseconds" in str(error)


PACKED = gzip.compress("\n".join([GOOD] * 100).encode())
BAD_FILES = [
    ("t.jsonl", b"", "the file is empty"),
    ("t.jsonl", b"\n \n\r\n", "only blank lines"),
    ("t.jsonl", b"\xef\xbb\xbf", "only blank lines"),
    ("t.csv", HEADER.encode(), "no rows"),
    ("t.jsonl", mooncake(output_length=0).encode(), "every row has 0 output tokens"),
    ("t.jsonl", b"\x7fELF\x02\x00\x00", "is binary"),
    ("t.jsonl", GOOD.encode("utf-16"), "UTF-16"),
    ("t.txt", b"hello world\n", "format not recognised: found 'hello world', expected one of mooncake"),
    ("t.gz", b"\x1f", "is not gzip"),
    ("t.gz", b"\x1f\x8b", "truncated gzip"),
    ("t.gz", GOOD.encode(), "is not gzip"),
    ("t.gz", gzip.compress(b""), "holds no data"),
    ("t.gz", PACKED[:-12], "truncated gzip"),
    ("t.gz", PACKED[:40] + b"xxxx" + PACKED[44:], "corrupt gzip"),
    ("t.gz", PACKED[:-8] + b"abcdefgh", "corrupt gzip"),
    ("t.gz", PACKED + b"junk", "corrupt gzip"),
]


@pytest.mark.parametrize(("name", "content", "words"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_file_that_is_no_trace_says_why(name: str, content: bytes, words: str, tmp_path: Path):
    assert words in str(failure(tmp_path, content, name=name))


def test_bytes_that_are_not_utf8_name_their_row(tmp_path: Path):
    error = failure(tmp_path, b"\xef\xbb\xbf" + GOOD.encode() + b"\n" + b'{"timestamp": \xe9}')
    assert error.row == 2
    assert "0xe9" in str(error)


def test_missing_directory_and_special_files_are_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    cases = {
        tmp_path / "absent": "no such file",
        tmp_path / "dangling": "no such file",
        tmp_path / "loop": "cannot be read",
        tmp_path: "is a directory",
        tmp_path / "fifo": "not a regular file",
    }
    for path, words in cases.items():
        with pytest.raises(WorkloadError, match=words):
            read_trace(path)


def test_a_file_without_permission_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "t.jsonl"
    path.write_text(GOOD)

    def refused(self: Path) -> bytes:  # chmod does not stop root, who may run the tests
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(WorkloadError, match="permission denied"):
        read_trace(path)


@pytest.mark.parametrize("block", [0, -1])
def test_a_hash_block_below_one_is_a_usage_error(block: int, tmp_path: Path):
    error = failure(tmp_path, GOOD, hash_block_tokens=block)
    assert f"hash_block_tokens is {block}, expected at least 1" in str(error)


def test_a_hash_block_for_a_trace_without_ids_is_refused(tmp_path: Path):
    assert "azure traces have no hash ids" in str(failure(tmp_path, HEADER + ROW, hash_block_tokens=64))


@pytest.mark.parametrize("name", [name for name, found in FORMATS.items() if not found.suffix])
def test_a_named_format_does_not_make_a_trace_of_nothing(name: str, tmp_path: Path):
    for number, content in enumerate(("\n \n", "{}", "[]", "x,y\n", "null", '{"a": 1}\n')):
        failure(tmp_path, content, name=f"{number}-trace.csv", format_name=name)
