"""ServeGen: pairs of files, idle windows of integers, seeded sampling that keeps what the windows say."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import pytest
from trace_files import refused

from kvtop.workloads.formats.base import ReadOptions
from kvtop.workloads.formats.registry import load_trace, read_trace

ROWS = """\
0,0,0,,0,0
600,2.5,1.25,Gamma,0.64,0.625
1200,1,1.0,Gamma,1.0,0.0001
1800,0,0,,0,0
2400,3.0,2.0,Weibull,0.55,0.2
"""
PMFS = {
    "0": ({}, {}),
    "600": ({100: 0.5, 300: 0.25, 500: 0.25}, {7: 1.0}),
    "1800": ({}, {}),
    "2400": ({9: 1.0}, {3: 0.5, 5: 0.5}),
}


def client(folder: Path, name: str = "chunk-1", rows: str = ROWS, pmfs: dict[str, Any] = PMFS) -> Path:
    dataset = {t: {"input_tokens": str(i), "output_tokens": str(o)} for t, (i, o) in pmfs.items()}
    (folder / f"{name}-dataset.json").write_text(json.dumps(dataset, indent=2))
    path = folder / f"{name}-trace.csv"
    path.write_text(rows)
    return path


def test_every_window_has_as_many_requests_as_its_rate_says(tmp_path: Path):
    trace = read_trace(client(tmp_path))
    assert (trace.format, trace.arrivals) == ("servegen", "sampled")
    first_s = 600.0  # the windows' clock at the first arrival is not far behind the first window's start
    times = [row.arrival_ns / 1e9 + first_s for row in trace.rows]
    windows = Counter(int(time // 600) * 600 for time in times)
    assert len(trace.rows) == 1500 + 600 + 1800
    assert windows[600] == pytest.approx(1500, abs=5)
    assert windows[1200] == pytest.approx(600, abs=5)
    assert windows[2400] == pytest.approx(1800, abs=5)
    assert windows[1800] <= 5
    assert any("seed 0: no request was recorded" in notice for notice in trace.notices)


def test_gaps_have_the_coefficient_of_variation_of_their_family(tmp_path: Path):
    options = ReadOptions(start_s=600, end_s=1200)
    times = [row.arrival_ns for row in read_trace(client(tmp_path), options=options).rows]
    gaps = [b - a for a, b in pairwise(times)]
    assert pstdev(gaps) / mean(gaps) == pytest.approx(0.64**-0.5, rel=0.12)  # gamma: 1 / sqrt(shape)
    assert mean(gaps) == pytest.approx(0.4e9, rel=0.02)


def test_lengths_follow_the_distributions_of_the_time(tmp_path: Path):
    rows = read_trace(client(tmp_path), options=ReadOptions(start_s=600, end_s=1200)).rows
    share = {length: count / len(rows) for length, count in Counter(row.prompt_tokens for row in rows).items()}
    assert share == {
        100: pytest.approx(0.5, abs=0.05),
        300: pytest.approx(0.25, abs=0.05),
        500: pytest.approx(0.25, abs=0.05),
    }
    assert {row.output_tokens for row in rows} == {7}
    late = read_trace(client(tmp_path), options=ReadOptions(start_s=2400)).rows
    assert {row.prompt_tokens for row in late} == {9}
    assert {row.output_tokens for row in late} == {3, 5}


def test_a_part_of_the_trace_is_the_same_whatever_else_is_sampled(tmp_path: Path):
    path = client(tmp_path)
    whole, part = read_trace(path).rows, read_trace(path, options=ReadOptions(start_s=1200, end_s=1800)).rows
    sizes = [(row.prompt_tokens, row.output_tokens) for row in whole]
    inside = [(row.prompt_tokens, row.output_tokens) for row in part]
    at = len(sizes) - 1800 - len(inside)
    assert sizes[at : at + len(inside)] == inside
    gaps = [b.arrival_ns - a.arrival_ns for a, b in pairwise(part)]
    assert [b.arrival_ns - a.arrival_ns for a, b in pairwise(whole[at : at + len(inside)])] == gaps


def test_the_seed_decides_and_either_file_names_the_pair(tmp_path: Path):
    path = client(tmp_path)
    one = read_trace(path)
    assert read_trace(tmp_path / "chunk-1-dataset.json").rows == one.rows
    assert read_trace(path, options=ReadOptions(seed=1)).rows != one.rows


def test_a_directory_holds_many_clients_each_a_tenant(tmp_path: Path):
    client(tmp_path)
    client(tmp_path, "chunk-2", rows="0,0.5,1,Gamma,1,1\n")
    trace = read_trace(tmp_path)
    assert Counter(row.tenant for row in trace.rows) == {"chunk-1": 3900, "chunk-2": 300}


def test_what_cannot_be_held_says_which_part_would_do(tmp_path: Path):
    path = client(tmp_path, rows="0,0,0,,0,0\n600,9000,1,Gamma,1,1\n1200,1,1,Gamma,1,1\n")
    refused(path, "stands for 5,400,600 requests", "at most 1,000,000", "from 600 s to 1200 s")
    refused(path, "nobody sends anything from 0 s to 500 s", "busiest", read=read_trace, options=ReadOptions(end_s=500))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("0,1,1,Gamma,1\n", ["found 5 columns, expected 6"]),
        ("0,1,1,Pareto,1,1\n", ["family is 'Pareto'", "Gamma or Weibull"]),
        ("600,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n", ["window start is '0'", "more than 600"]),
        ("0,1,1,Gamma,0,1\n", ["shape is '0'"]),
        ("0,-1,1,Gamma,1,1\n", ["rate is '-1'", "a number from 0 up"]),
    ],
)
def test_a_broken_window_is_named(rows: str, words: list[str], tmp_path: Path):
    refused(client(tmp_path, rows=rows), str(tmp_path), *words, read=lambda p: load_trace([p], "servegen"))


def test_a_distribution_that_is_none_and_a_missing_half_are_named(tmp_path: Path):
    path = client(tmp_path, pmfs={"0": ("__import__('os')", {3: 1.0})})
    refused(path, "chunk-1-dataset.json: 0", "distribution is", "expected a text like")
    (tmp_path / "chunk-1-dataset.json").unlink()
    refused(path, "needs its other half beside it")
