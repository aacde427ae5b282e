"""Files that nobody means well with: every command ends with exit code 2 and one line that names the file."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from kvtop.cli.main import main

MOONCAKE = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}'
UNTIMED = '{"input_length": 600, "output_length": 5, "hash_ids": [0, 1], "more": %s}'
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03,%s,6\r\n"
KVTOP = '{"kvtop_trace": 1}\n'
DEEP = "[" * 5000 + "]" * 5000
HUGE = "9" * 4000


def mooncake(**changes: object) -> str:
    return json.dumps({**json.loads(MOONCAKE), **changes})


def own(**changes: object) -> str:
    """A trace of kvtop's own format with one row."""
    return KVTOP + json.dumps({"arrival_ns": 0, "prompt_tokens": 9, "output_tokens": 2, **changes})


def nested(levels: int) -> str:
    """A session of sub-agents of sub-agents."""
    call = '{"t": 0, "type": "n", "in": 130, "out": 5, "hash_ids": [1, 2]}'
    inner = call
    for _ in range(levels):
        inner = f'{call}, {{"t": 1, "type": "subagent", "agent_id": "x", "requests": [{inner}]}}'
    return f'{{"id": "a", "block_size": 64, "requests": [{inner}]}}'


CASES: dict[str, tuple[str | bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "only a mark": (b"\xef\xbb\xbf\r\n", "holds only blank lines"),
    "a header": (AZURE.partition("\n")[0], "no rows"),
    "old line ends": (f"{MOONCAKE}\r{MOONCAKE}", ":1: bad JSON at column"),
    "not UTF-8": (MOONCAKE.encode() + b"\n\xe9", ":2: byte 0xe9 is not UTF-8"),
    "UTF-16": (MOONCAKE.encode("utf-16"), "is UTF-16 text, expected UTF-8"),
    "binary": (MOONCAKE.encode() + b"\0", "is binary"),
    "cut gzip": (gzip.compress(MOONCAKE.encode() * 50)[:-9], "truncated gzip"),
    "NaN": (mooncake(timestamp=float("nan")), ":1: NaN is not JSON, expected a finite number"),
    "1e400": (MOONCAKE.replace("600", "1e400"), ":1: input_length is Infinity, expected an integer (tokens)"),
    "negative time": (mooncake(timestamp=-1), ":1: timestamp is -1, expected ms from 0 up"),
    "number as text": (mooncake(input_length="600"), ':1: input_length is "600", expected an integer (tokens)'),
    "no key": (MOONCAKE.replace("input_length", "input_len"), ":1: key 'input_length' is missing; nearest is"),
    "10^9 tokens": (AZURE % 10**9, ":2: ContextTokens is 1,000,000,000, expected 1 to 10,000,000 tokens"),
    "no column": (AZURE.replace("ContextTokens", "Tokens") % 5, ":1: column 'ContextTokens' is missing"),
    "extra column": (AZURE % "5,5", ":2: found 4 columns, expected 3"),
    "deep": ("[" * 200_000, ":1: format not recognised"),
    "deep in a value": (MOONCAKE + "\n" + UNTIMED % DEEP, ":2: bad JSON: nested too deeply"),
    "deep sessions": (nested(1000), "bad JSON: nested too deeply"),
    "half a character": (own(tenant="").replace('""', '"\\ud800"'), ":2: holds \\ud800, half of a character"),
    "5000 digits unread": (UNTIMED % ("9" * 5000), "records no arrival times"),
    "late arrival": (own() + "\n" + own(arrival_ns=2**63).removeprefix(KVTOP), ":3: arrival_ns is 9223372036854775808"),
    "4000 digits": (own(turn=0).replace('"turn": 0', f'"turn": -{HUGE}'), ":2: turn is -999"),
    "many branches": (own(n=10**9), ":2: n is 1000000000, expected 1 to 1,024"),
    "many beams": (own(num_beams=1025), ":2: num_beams is 1025, expected 1 to 1,024"),
    "priority": (own(priority=2**63), ":2: priority is 9223372036854775808, expected"),
    "cold": (own(temperature=-0.5), ":2: temperature is -0.5, expected 0 or more"),
    "large id": (own(hash_ids=[2**63], hash_block_tokens=16), ":2: hash_ids need a hash_block_tokens above 0 and ids"),
    "large block": (own(hash_ids=[1], hash_block_tokens=10**30), ":2: hash_block_tokens is 1000000000"),
    "more ids than prompt": (
        own(hash_ids=[1, 2], hash_block_tokens=16),
        ":2: hash_ids has 2 ids, but prompt_tokens 9 has room for 1 (one for each 16 tokens)",
    ),
}
COMMANDS = (["info"], ["info", "--json"], ["hit-rate"], ["convert", "-o", "OUT", "--tile", "2"])
READ_ALL_THE_SAME = {"5000 digits unread": ("info", "hit-rate", "convert")}  # only those that serve it need arrivals


def line_of(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a command refuses with."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert len(err) < 500
    assert err.startswith("kvtop: ")
    return err


@pytest.mark.parametrize("name", CASES)
def test_every_command_refuses_it_in_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    content, words = CASES[name]
    path = tmp_path / "trace"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    for command in COMMANDS:
        if command[0] in READ_ALL_THE_SAME.get(name, ()):
            continue
        argv = ["trace", *(str(tmp_path / "out") if word == "OUT" else word for word in command), str(path)]
        assert f"{path}{words}" in (found := line_of(argv, capsys)) or f"{path}: {words}" in found, found
        assert not (tmp_path / "out").exists()
    argv = ["bench", "-w", str(path), "--executor", "null", "-o", str(tmp_path / "runs")]
    assert words in line_of(argv, capsys)


@pytest.mark.parametrize("kind", ["directory", "pipe", "device"])
def test_what_is_no_file_is_refused_and_not_waited_for(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = {"directory": tmp_path, "pipe": tmp_path / "pipe", "device": Path("/dev/zero")}[kind]
    os.mkfifo(tmp_path / "pipe")
    bench = ["bench", "--executor", "null", "-o", str(tmp_path / "runs"), "-w"]
    words = "is a directory, expected a trace file" if kind == "directory" else "is not a regular file"
    for command in (["trace", "info"], ["trace", "hit-rate"], bench):
        assert f"{path}: {words}" in line_of([*command, str(path)], capsys)


def test_sessions_that_cannot_be_served_name_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Two turns of one number, and two sessions that wait for each other."""
    path = tmp_path / "trace"
    turn = {"arrival_ns": 0, "prompt_tokens": 9, "output_tokens": 2, "turn": 1, "think_ns": 5}
    for rows, words in (
        ([{"session_id": "a"}, {"session_id": "a"}], "session 'a': turn 1 comes after turn 1, expected turns in order"),
        (
            [{"session_id": "a", "after": [["b", 1]]}, {"session_id": "b", "after": [["a", 1]]}],
            "session 'a': turn 1 waits for turn 1 of session 'b', which arrives later",
        ),
    ):
        path.write_text(KVTOP + "\n".join(json.dumps(turn | row) for row in rows))
        argv = ["bench", "-w", str(path), "--executor", "null", "-o", str(tmp_path / "runs")]
        assert f"{path}: {words}" in line_of(argv, capsys)


def test_a_key_that_nobody_reads_may_hold_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "trace"
    for value in ("9" * 5000, "1e400", '{"a": [[1, {}]]}'):
        path.write_text(UNTIMED % value)
        assert main(["trace", "info", str(path)]) == 0
        assert "not recorded" in capsys.readouterr().out
