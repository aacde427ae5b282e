"""Counts and zeros in what the commands print: "1 request", never "1 requests"; a change of nothing has no sign."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvtop.cli.comparison_cells import format_relative, signed_ns
from kvtop.cli.main import main
from kvtop.cli.text import percent, signed
from kvtop.workloads.words import counted

WRONG = re.compile(r"(?<![\d.,/])1 (?!(?:does|has|is|was|plus|less)\b)[a-z]+s\b|-0(?:\.0+)?(?![\d.])[^\n]{0,12}")
"""One of several, or a zero below zero, with what follows it."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two policies on one request of one block, which asks for one token."""
    folder = tmp_path_factory.mktemp("tiny")
    row = {"timestamp": 0, "input_length": 8, "output_length": 1, "hash_ids": [0]}
    (folder / "trace.jsonl").write_text(json.dumps(row) + "\n")
    words = ["-w", str(folder / "trace.jsonl"), "-p", "fcfs", "-p", "sjf", "--num-blocks", "1", "--limit", "1"]
    main(["bench", *words, "--executor", "null", "-o", str(folder / "runs")])
    return folder


COMMANDS = (
    "bench -w {tmp}/trace.jsonl -p fcfs --executor null --num-blocks 1 --limit 1 -o {tmp}/again --force",
    "compare {tmp}/runs --slo e2e<1s",
    "report {tmp}/runs --html {tmp}/out.html",
    "why {tmp}/runs/{run} r0",
    "trace info {tmp}/trace.jsonl",
    "trace hit-rate {tmp}/trace.jsonl",
    "trace convert {tmp}/trace.jsonl -o {tmp}/out.jsonl",
    "calc --model llama-3-8b --batch 1 --seq-len 1 --block-size 1",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_one_is_no_plural(runs: Path, capfd: pytest.CaptureFixture[str], command: str) -> None:
    run = next(path for path in sorted((runs / "runs").iterdir()) if path.is_dir())
    capfd.readouterr()
    assert main([word.format(tmp=runs, run=run.name) for word in command.split()]) == 0
    out, err = capfd.readouterr()
    text = f"{out}\n{err}".replace(str(runs), "DIR")
    assert text.strip()
    assert [found[0] for found in WRONG.finditer(text)] == []
    if "--html" in command:
        page = re.sub(r"<(script|style|svg)\b.*?</\1>", "", (runs / "out.html").read_text(), flags=re.S)
        assert [found[0] for found in WRONG.finditer(re.sub("<[^>]+>", " | ", page))] == []


def test_the_pattern_finds_what_is_wrong() -> None:
    for wrong in ("1 requests", "(1 blocks)", "-0.0 %", "-0 to", "x -0.00 s"):
        assert WRONG.search(wrong), wrong
    for right in (
        "1 request",
        "11 requests",
        "1,001 blocks",
        "0.1 seconds",
        "-0.01 %",
        "-0.5",
        "1/1 requests",
        "1-0.5",
    ):
        assert not WRONG.search(right), right


def test_counts() -> None:
    found = [
        counted(n, noun) for n, noun in ((0, "row"), (1, "row"), (2000, "row"), (1, "copy"), (2, "copy"), (3, "day"))
    ]
    assert found == ["0 rows", "1 row", "2,000 rows", "1 copy", "2 copies", "3 days"]


def test_what_rounds_to_nothing_has_no_sign() -> None:
    assert [signed(v) for v in (-0.04, 0.04, -0.0, -0.06, 0.06, 1234.5)] == [
        "0.0",
        "0.0",
        "0.0",
        "-0.1",
        "+0.1",
        "+1,234.5",
    ]
    assert [format_relative(v) for v in (-0.0004, 0.0004, -0.0006, 0.0)] == ["0.0 %", "0.0 %", "-0.1 %", "same"]
    assert percent(-0.0004) == "0.0 %"
    assert signed_ns(-0.0) == "0 ms"
