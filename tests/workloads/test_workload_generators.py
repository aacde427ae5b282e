"""Poisson arrivals with a shared system prompt, from TOML: seeded, absolute, refused in one line."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from kvtop.engine.errors import KvtopError, UnknownName, WorkloadError
from kvtop.workloads.builtins import MOONCAKE_SLICE
from kvtop.workloads.generators.registry import generate
from kvtop.workloads.load import load_workload
from kvtop.workloads.spec import WorkloadSpec


def poisson(seed: int = 0, **options):
    return generate("synthetic", {"rate": 4.0, "system_prompt_tokens": 256, "num_requests": 200, **options}, seed).rows


def load_toml(tmp_path: Path, text: str, **changes):
    path = tmp_path / "work.toml"
    path.write_text(text)
    return load_workload(WorkloadSpec(name=str(path), **changes), vocab_size=1000)


def test_gaps_are_exponential_with_the_asked_rate():
    rows = poisson(num_requests=20_001, user_prompt_tokens=1, output_tokens=1)
    gaps = [(b.arrival_ns - a.arrival_ns) / 1e9 for a, b in itertools.pairwise(rows)]
    mean = sum(gaps) / len(gaps)
    std = math.sqrt(sum((g - mean) ** 2 for g in gaps) / len(gaps))
    assert mean == pytest.approx(0.25, rel=4 / math.sqrt(20_000))
    assert std / mean == pytest.approx(1, abs=0.04)  # an exponential's coefficient of variation
    assert sum(g > 0.25 * math.log(2) for g in gaps) / len(gaps) == pytest.approx(0.5, abs=0.015)


def test_counts_in_a_window_are_poisson():
    counts = [sum(r.arrival_ns < 10 * 10**9 for r in poisson(seed, num_requests=200)) for seed in range(200)]
    mean = sum(counts) / 200
    variance = sum((c - mean) ** 2 for c in counts) / 199
    assert mean == pytest.approx(41, abs=2)  # rate * 10, and the one at 0
    assert variance == pytest.approx(40, rel=0.45)


def test_lengths_fill_their_ranges_and_the_system_prompt_is_in_every_prompt():
    rows = poisson(num_requests=2000, system_prompt_tokens=100, user_prompt_tokens=[5, 9], output_tokens=[1, 3])
    assert {r.prompt_tokens for r in rows} == set(range(105, 110))
    assert {r.output_tokens for r in rows} == {1, 2, 3}
    assert {r.shared_tokens for r in rows} == {100}
    assert rows[0].arrival_ns == 0


def test_seeds_change_the_rows_and_length_ranges_do_not_change_arrivals():
    assert poisson(1) == poisson(1)
    assert poisson(1) != poisson(2)
    assert [r.arrival_ns for r in poisson(1)] == [r.arrival_ns for r in poisson(1, output_tokens=[500, 900])]


def test_requests_share_exactly_the_system_prompt(tmp_path: Path):
    workload = load_toml(
        tmp_path, 'kind = "synthetic"\nrate = 2\nnum_requests = 30\nsystem_prompt_tokens = 48\nn = 3\ntemperature = 0.7'
    )
    specs = workload.source().pop_due(10**18)
    assert len(specs) == 30
    heads = {tuple(s.prompt[:48]) for s in specs}
    assert len(heads) == 1
    assert len({s.prompt[48] for s in specs}) == 30
    assert {(s.params.n, s.params.temperature) for s in specs} == {(3, 0.7)}
    assert len({s.params.seed for s in specs}) == 30
    assert workload.name == "work"


def test_beams_are_served_as_beams_and_change_the_hash(tmp_path: Path):
    text = 'kind = "synthetic"\nrate = 2\nnum_requests = 5\n'
    workload = load_toml(tmp_path, f"{text}n = 2\nnum_beams = 3")
    assert {(s.params.n, s.params.num_beams) for s in workload.source().pop_due(10**18)} == {(2, 3)}
    assert workload.notices == []
    hashes = {load_toml(tmp_path, f"{text}{options}").hash for options in ("", "num_beams = 1", "num_beams = 3")}
    assert len(hashes) == 2


def test_samples_that_must_all_be_equal_are_noticed(tmp_path: Path):
    assert load_toml(tmp_path, 'kind = "synthetic"\nrate = 2\nn = 4').notices == [
        "n is 4 at temperature 0: all samples of a request are equal"
    ]


def test_scales_limit_and_seed_of_a_spec_combine_with_the_users(tmp_path: Path):
    text = 'kind = "synthetic"\nrate = 2\ntime_scale = 0.5\nlength_scale = 0.5\nlimit = 20\nseed = 3\n'
    got = load_toml(tmp_path, text, time_scale=4.0, length_scale=0.5, limit=50, seed=2)
    plain = load_toml(tmp_path, 'kind = "synthetic"\nrate = 2', time_scale=2.0, length_scale=0.25, limit=20, seed=5)
    assert got.hash == plain.hash
    assert load_toml(tmp_path, text, limit=7).num_requests == 7


def test_a_spec_may_name_a_trace_beside_it(tmp_path: Path):
    (tmp_path / "t.jsonl.gz").write_bytes(MOONCAKE_SLICE.read_bytes())
    got = load_toml(tmp_path, 'kind = "trace"\npath = "t.jsonl.gz"\nformat = "mooncake"\nlimit = 9')
    want = load_workload(WorkloadSpec(name="mooncake-conversation", limit=9), vocab_size=1000)
    assert (got.hash, got.num_requests) == (want.hash, 9)


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ('kind = "syntetic"', "synthetic"),
        ('kind = "synthetic"\nrate = 1\nnum_request = 4', "num_requests"),
        ('kind = "trace"\npth = "x"', "path"),
    ],
)
def test_an_unknown_kind_or_key_names_the_file_and_the_nearest(text: str, nearest: str, tmp_path: Path):
    with pytest.raises(UnknownName) as caught:
        load_toml(tmp_path, text)
    assert caught.value.nearest == nearest
    assert "work.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rate = 1", "key 'kind' is missing"),
        ('kind = "synthetic"', "none is given, expected arrivals, rate or every_s"),
        ('kind = "synthetic"\nrate = -1', "rate is -1"),
        ('kind = "synthetic"\nrate = nan', "rate is nan"),
        ('kind = "synthetic"\nrate = inf', "rate is inf"),
        ('kind = "synthetic"\nrate = "2"', "rate is '2'"),
        ('kind = "synthetic"\nrate = true', "rate is True"),
        ('kind = "synthetic"\nrate = 1\nnum_requests = 0', "num_requests is 0"),
        ('kind = "synthetic"\nrate = 1\nnum_requests = 1.5', "num_requests is 1.5"),
        ('kind = "synthetic"\nrate = 1\nsystem_prompt_tokens = -1', "system_prompt_tokens is -1"),
        ('kind = "synthetic"\nrate = 1\nuser_prompt_tokens = [9, 5]', "user_prompt_tokens is \\[9, 5\\]"),
        ('kind = "synthetic"\nrate = 1\noutput_tokens = 0', "output_tokens is 0"),
        ('kind = "synthetic"\nrate = 1\nn = 0', "n is 0"),
        ('kind = "synthetic"\nrate = 1\ntemperature = -0.1', "temperature is -0.1"),
        ('kind = "synthetic"\nrate = 1\nnum_beams = 0', "num_beams is 0"),
        ('kind = "synthetic"\nrate = 1\nnum_beams = 2\ntemperature = 0.5', "num_beams is 2 at temperature 0.5"),
        ('kind = "synthetic"\nrate = 1\nnum_beams = 2\nn = 3', "n is 3, expected at most num_beams \\(2\\)"),
        ('kind = "synthetic"\nrate = 1\nlimit = 0', "limit is 0"),
        ('kind = "synthetic"\nrate = 1\ntime_scale = nan', "time_scale is nan"),
        ('kind = "synthetic"\nrate = 1\nlength_scale = 0', "length_scale is 0"),
        ('kind = "synthetic"\nrate = 1\nseed = "x"', "seed is 'x', expected an integer"),
        ('kind = "trace"', "key 'path' is missing"),
        ('kind = "trace"\npath = 3', "path is 3, expected a string"),
        ('kind = "trace"\npath = "absent.jsonl"', "absent.jsonl: no such file"),
        ("", "the file is empty, expected a workload spec"),
    ],
)
def test_a_wrong_spec_is_one_line_with_key_and_value(text: str, words: str, tmp_path: Path):
    with pytest.raises(WorkloadError, match=words) as caught:
        load_toml(tmp_path, text)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "row"), [('kind = "synthetic"\nrate =\nn = 1', 2), ('kind = "synthetic"\n\nrate =', 3), ("[a\nb", 1)]
)
def test_bad_toml_names_its_row(text: str, row: int, tmp_path: Path):
    with pytest.raises(WorkloadError, match="bad TOML") as caught:
        load_toml(tmp_path, text)
    assert caught.value.row == row


def test_an_unknown_trace_format_in_a_spec_is_refused(tmp_path: Path):
    (tmp_path / "t.jsonl").write_text("{}")
    with pytest.raises(KvtopError, match="did you mean 'azure'"):
        load_toml(tmp_path, 'kind = "trace"\npath = "t.jsonl"\nformat = "azur"')
