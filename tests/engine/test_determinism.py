"""Same workload, same configuration: the same bytes, in every process and under every hash seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from determinism_workload import run

SMALL = {"num_blocks": 24, "block_size": 4, "max_num_seqs": 8, "max_batched_tokens": 24}


def _in_a_process(config: dict[str, object], hash_seed: str) -> bytes:
    script = Path(__file__).with_name("determinism_workload.py")
    result = subprocess.run(
        [sys.executable, str(script), json.dumps(config)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout


@pytest.mark.parametrize(
    "choice",
    [
        {"policy": "lpm"},
        {"policy": "dfs-weight", "eviction": "lfu", "victim": "most-blocks"},
        {"policy": "fair", "eviction": "2q", "preemption": "swap", "host_blocks": 8},
        {"policy": "fcfs", "host_cache_blocks": 12},
    ],
    ids=lambda choice: choice["policy"],
)
def test_the_event_stream_does_not_depend_on_the_hash_seed(choice: dict[str, object]) -> None:
    config = {**SMALL, **choice}
    first = _in_a_process(config, "1")
    assert len(first) > 10_000
    assert first == _in_a_process(config, "2")
    assert first == run(config, seed=7)


def test_another_workload_gives_another_stream() -> None:
    config = {**SMALL, "policy": "lpm"}
    assert run(config, seed=7) != run(config, seed=8)


@pytest.mark.parametrize("policy", ["fcfs", "priority", "lpm"])
def test_two_engines_in_one_process_do_not_know_of_each_other(policy: str) -> None:
    config = {**SMALL, "policy": policy}
    assert run(config, seed=7) == run(config, seed=7)
