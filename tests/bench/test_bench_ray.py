"""``--ray``: points as tasks of a cluster of two workers, started here on the loopback interface."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench_process import kvtop, manifest, requests, run_dirs, started, write_trace

from kvtop.cli.main import main

LOOPBACK = "127.0.0.2"  # Ray takes 127.0.0.1 for the machine's outer address
TABLES = ("requests.parquet", "steps.parquet", "events.parquet")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without CPUs, and two workers with one each."""
    pytest.importorskip("ray", reason="kvtop[ray] is not installed")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        node = {"node_ip_address": LOOPBACK, "object_store_memory": 80 << 20}
        made = Cluster(initialize_head=True, head_node_args={**node, "num_cpus": 0, "include_dashboard": False})
        for _ in range(2):
            made.add_node(num_cpus=1, **node)
        made.wait_for_nodes()
        yield made
        made.shutdown()


def points(folder: Path, num_requests: int = 30) -> list[str]:
    """A trace and a policy of the user's own, which only this folder has."""
    trace = write_trace(folder / "trace.jsonl", [(5 * i, 16, 90 + i % 7) for i in range(num_requests)])
    (folder / "mine.py").write_text("def order(seq, context):\n    return (-seq.num_prompt,)\n")
    words = ["bench", "-w", str(trace), "-p", "fcfs", "-p", f"{folder / 'mine.py'}:order", "--max-num-seqs", "1"]
    return [*words, "--executor", "null", "--num-blocks", "64"]


@pytest.mark.slow
def test_the_cluster_leaves_what_this_machine_would(cluster: Any, tmp_path: Path) -> None:
    words = [*points(tmp_path), "--replicates", "2"]
    kvtop(*words, "-o", str(tmp_path / "local"))
    store = (tmp_path / "store").as_uri()
    done = kvtop(*words, "-o", store, "--ray", cluster.address)
    names = [path.name for path in run_dirs(tmp_path / "local")]
    assert [path.name for path in run_dirs(tmp_path / "store")] == names
    assert len(names) == 4
    for name in names:
        for table in TABLES:
            assert (tmp_path / "store" / name / table).read_bytes() == (tmp_path / "local" / name / table).read_bytes()
        assert not list((tmp_path / "store" / name).glob(".*"))
        assert f"-> {store}/{name}" in done.stdout
    assert "TTFT p99" in done.stdout
    again = kvtop(*words, "-o", store, "--ray", cluster.address, "--resume")
    assert again.stdout.count(": kept, 30/30 ok") == 4


@pytest.mark.slow
def test_interrupted_it_keeps_what_is_finished_and_is_resumed(cluster: Any, tmp_path: Path) -> None:
    words = [*points(tmp_path, 400), "-o", (tmp_path / "store").as_uri(), "--ray", cluster.address]
    with started(words) as process:
        assert process.stderr is not None
        while "/400" not in (line := process.stderr.readline()):  # a progress line of a run under way
            assert line
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=90)
    assert process.returncode == 130, err
    assert "interrupted; finished rows are kept" in err
    assert "failed" not in err
    kept = [path for path in run_dirs(tmp_path / "store") if manifest(path)["status"] == "interrupted"]
    assert kept
    assert any(0 < requests(path).filter(status="ok").height < 400 for path in kept)
    done = kvtop(*words, "--resume", timeout_s=150)
    assert done.stdout.count("400/400 ok") == 2
    assert sum(requests(path).height for path in run_dirs(tmp_path / "store")) == 800


@pytest.mark.slow
def test_a_lost_node_costs_time_and_no_run(cluster: Any, tmp_path: Path) -> None:
    words = [*points(tmp_path, 400), "-o", (tmp_path / "store").as_uri(), "--ray", cluster.address]
    lost = cluster.add_node(num_cpus=2, node_ip_address=LOOPBACK, object_store_memory=80 << 20)
    with started([*words, "--ray-cpus", "2"]) as process:  # only the new node has two
        assert process.stderr is not None
        while "/400" not in (line := process.stderr.readline()):
            assert line
        cluster.remove_node(lost, allow_graceful=False)
        time.sleep(1)
        cluster.add_node(num_cpus=2, node_ip_address=LOOPBACK, object_store_memory=80 << 20)
        out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert out.count("complete, 400/400 ok") == 2


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="kvtop[ray] is not installed")
    done = kvtop(*points(tmp_path, 3), "-o", str(tmp_path / "out"), "--ray", f"{LOOPBACK}:1", code=2)
    assert "no Ray cluster can be reached there" in done.stderr
    assert not run_dirs(tmp_path / "out")


def test_without_the_package_the_extra_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main([*points(tmp_path, 3), "-o", str(tmp_path / "out"), "--ray"]) == 2
    assert "pip install 'kvtop[ray]'" in capsys.readouterr().err
