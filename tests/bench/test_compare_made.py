"""Runs that are made and compared in one go: what is kept of them, and the bound of their cache hits."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import polars as pl
import pytest

from kvtop.analysis.summary import load_run
from kvtop.cli.main import main
from kvtop.results.load import find_runs
from kvtop.results.manifest import build_manifest, read_manifest
from kvtop.results.rundir import run_dir_name
from kvtop.run.spec import RunSpec
from kvtop.workloads.spec import WorkloadSpec

TRACE = ["-w", "mooncake-conversation", "--length-scale", "0.0625", "--executor", "null"]


def made(out: Path, *words: str) -> list[Path]:
    assert main(["bench", *TRACE, "--limit", "40", "-o", str(out), *words]) == 0
    return find_runs(out)


def test_runs_that_are_made_are_compared_gated_and_listed_beside_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", *TRACE, "--limit", "30", "--num-blocks", "600", "-p", "fcfs", "-p", "sjf", "-o", str(tmp_path)]
    assert main([*words, "--json", "--fail-on", "evictions>=+0"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert [column["label"] for column in found["columns"]] == ["fcfs", "sjf"]
    assert found["gates"][0]["failed"] is True
    assert main(["compare", *(str(path) for path in sorted(tmp_path.iterdir()))]) == 0, "as a shell writes results/*"
    table = pl.read_parquet(tmp_path / "runs.parquet")
    assert table["run_dir"].to_list() == [run.name for run in find_runs(tmp_path)]
    assert table["run_id"].to_list() == [read_manifest(run)["run_id"] for run in find_runs(tmp_path)]
    assert table["policy"].to_list() == ["fcfs", "sjf"]
    assert table["num_requests"].to_list() == [30, 30]
    assert table["loop"].to_list() == ["open", "open"]


def test_tokens_objectives_and_warm_up_are_kept_with_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = made(
        tmp_path / "out", "-p", "fcfs", "--num-blocks", "600", "--tokens", "--slo", "ttft<100ms", "--warmup", "3"
    )  # fmt: skip
    assert "requests met ttft<100ms" in capsys.readouterr().out
    manifest = read_manifest(run)
    assert (manifest["slo"], manifest["warmup_requests"]) == (["ttft<100ms"], 3)
    requests = pl.read_parquet(run / "requests.parquet")
    ok = requests.filter(pl.col("status") == "ok")
    assert ok["slo_ok"].to_list() == (ok["ttft_ns"] < 100_000_000).to_list()
    assert requests.sort("t_sched_ns")["phase"].to_list()[:3] == ["warmup"] * 3
    assert pl.read_parquet(run / "tokens.parquet").height == requests["output_tokens"].sum()
    times = pl.read_parquet(run / "tokens.parquet")
    (run / "tokens.parquet").unlink()
    made(tmp_path / "out", "-p", "fcfs", "--num-blocks", "600", "--tokens", "--slo", "ttft<50ms", "--resume")
    again = pl.read_parquet(run / "requests.parquet").filter(pl.col("status") == "ok")
    assert again["slo_ok"].to_list() == (ok["ttft_ns"] < 50_000_000).to_list(), "a run that is kept is judged anew"
    assert pl.read_parquet(run / "tokens.parquet").equals(times)


def test_what_is_kept_of_a_run_and_how_it_is_judged_makes_no_other_run() -> None:
    plain = RunSpec(workload=WorkloadSpec(name="mooncake-conversation"), executor="null")
    told = msgspec.structs.replace(plain, tokens=True, slo=["ttft<1s"], warmup=7)
    assert run_dir_name(told) == run_dir_name(plain) != run_dir_name(msgspec.structs.replace(plain, seed=1))
    ids = [
        build_manifest(spec, {"clock": "virtual"}, workload_hash="a", trace_sha256=None, num_requests=1)["run_id"]
        for spec in (plain, told)
    ]
    assert ids[0] == ids[1]


def test_a_large_pool_without_overlap_finds_exactly_what_the_bound_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each request is done before the next comes, and nothing is evicted: all that is lost is lost to whole blocks."""
    words = ["-w", "poisson-shared-prefix", "--limit", "30", "--time-scale", "100", "--num-blocks", "20000"]
    assert main(["bench", *words, "--executor", "null", "-o", str(tmp_path)]) == 0
    (run,) = find_runs(tmp_path)
    requests = pl.read_parquet(run / "requests.parquet")
    assert requests["hit_tokens"].to_list() == requests["ideal_hit_tokens"].to_list()
    assert requests["hit_tokens"].sum() > 0
    assert (requests["shared_prefix_tokens"] - requests["ideal_hit_tokens"]).is_between(0, 15).all()
    hits = load_run(run).hits
    assert hits is not None
    assert (hits.capacity, hits.concurrency, hits.other, hits.beyond) == (0, 0, 0, 0)


def test_a_small_pool_loses_to_capacity_and_hits_stay_within_the_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run,) = made(tmp_path / "out", "-p", "fcfs", "--num-blocks", "450", "--limit", "200")
    requests = pl.read_parquet(run / "requests.parquet").filter(pl.col("hit_tokens").is_not_null())
    for name in ("hit_tokens", "ideal_hit_tokens", "shared_prefix_tokens"):
        assert requests.filter((pl.col(name) < 0) | (pl.col(name) > pl.col("prompt_tokens") - 1)).is_empty(), name
    hits = load_run(run).hits
    assert hits is not None
    assert hits.capacity > 0
    assert hits.found == requests["hit_tokens"].sum()
    lost = hits.block_rounding + hits.capacity + hits.concurrency + hits.other
    assert hits.shared_prefix - lost + hits.beyond == hits.found
