"""Belady for whole runs: the engine's process learns the workload beforehand, and nobody else needs to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kvtop.cli.main import main
from kvtop.engine.api import ConfigError
from kvtop.engine.recorder import NullRecorder
from kvtop.engine.types import RequestSpec
from kvtop.engine.worker import Built, build_engine


def build(executor: str, requests: Any) -> Built:
    return build_engine(
        engine={"eviction": "belady", "block_size": 4},
        executor=executor,
        executor_params={},
        model="tiny",
        device="cpu",
        num_blocks=8,
        kv_memory_bytes=None,
        recorder=NullRecorder(),
        progress=lambda text, fraction: None,
        requests=requests,
    )


@pytest.mark.parametrize("executor", ["null", "torch"])
def test_every_executor_gets_the_future_it_serves(executor: str) -> None:
    asked = []

    def requests(vocab_size: int, max_model_len: int) -> list[RequestSpec]:
        asked.append((vocab_size, max_model_len))
        return [RequestSpec([1, 2, 3, 4, 5]), RequestSpec([9] * max_model_len), RequestSpec([1, 2, 3, 4, 5])]

    built = build(executor, requests)
    assert asked == [(built.vocab_size, built.engine.config.effective_len)]
    future = built.engine._future
    assert future is not None
    assert sorted(future._mentions.values()) == [[2 * 0 + 1, 2 * 2 + 1]], "the rejected prompt wants something"
    built.engine.close()


def test_without_a_workload_belady_is_refused() -> None:
    with pytest.raises(ConfigError, match="belady needs the whole workload beforehand"):
        build("null", None)


def test_bench_with_belady_has_the_most_hits(tmp_path: Path) -> None:
    command = ["bench", "-w", "mooncake-conversation", "--limit", "150", "--length-scale", "0.02", "--executor", "null"]
    hits = {}
    for eviction in ("lru", "lfu", "belady"):
        out = tmp_path / eviction
        sizes = ["--num-blocks", "160", "--max-num-seqs", "1", "--max-model-len", "800", "--block-size", "8"]
        assert main([*command, *sizes, "--eviction", eviction, "-o", str(out)]) == 0
        (table,) = out.glob("*/requests.parquet")
        hits[eviction] = pl.read_parquet(table)["hit_tokens"].sum()
    assert hits["belady"] > max(hits["lru"], hits["lfu"]) > 0
