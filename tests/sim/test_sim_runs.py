"""Simulated runs: the clock is the cost model's, everything says so, and the same run gives the same bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from tiny_config import TINY

from kvtop.cli.main import main
from kvtop.cost.files import Basis, cost_file, read_cost_file, write_cost_file
from kvtop.engine.api import Engine, EngineConfig, SamplingParams
from kvtop.engine.errors import UsageError
from kvtop.engine.executors.sim import SimExecutor
from kvtop.engine.executors.sim_cost import CostModel, Machine, Work

MS = 1_000_000
WORK = Work(weight_bytes=2000, flops_per_token=2000, kv_bytes_per_token=128, flops_per_pair=256)
MACHINE = Machine(
    weight_bytes_s=1e6, flops_s=1e6, kv_bytes_s=1.28e6, attention_flops_s=2.56e6, step_ns=0.5 * MS, seq_ns=0.01 * MS,
    ingest_ns=3 * MS,
)  # fmt: skip
COST = CostModel(name="by hand", work=WORK, machine=MACHINE)


def test_the_clock_of_a_request_by_hand() -> None:
    engine = Engine(EngineConfig(num_blocks=8, block_size=4), SimExecutor(COST, 4))
    assert engine.clock.virtual
    engine.submit([1, 2, 3], SamplingParams(max_tokens=3), request_id="a")
    engine.run()
    # prompt: 0.51 + 3 + 3 x 2 + 0.6; decode at 3: 0.51 + 2 + 0.4; decode at 4: 0.51 + 2 + 0.5
    times = engine.request("a").times
    assert times.t_first_token_ns == round(10.11 * MS)
    assert times.t_done_ns == round((10.11 + 2.91 + 3.01) * MS)


def test_a_request_is_taken_in_once_whatever_happens_to_it() -> None:
    """Two requests in a pool that holds one: the preempted one comes back without a second ingest."""
    engine = Engine(EngineConfig(num_blocks=3, block_size=4, prefix_caching=False), SimExecutor(COST, 4))
    for name in ("a", "b"):
        engine.submit([1, 2, 3, 4], SamplingParams(max_tokens=6), request_id=name)
    free = Engine(
        EngineConfig(num_blocks=3, block_size=4, prefix_caching=False),
        SimExecutor(CostModel(name="no ingest", work=WORK, machine=msgspec.structs.replace(MACHINE, ingest_ns=0.0)), 4),
    )
    for name in ("a", "b"):
        free.submit([1, 2, 3, 4], SamplingParams(max_tokens=6), request_id=name)
    engine.run()
    free.run()
    assert engine.counters().preemptions == free.counters().preemptions >= 1
    assert engine.clock.now_ns() - free.clock.now_ns() == 2 * 3 * MS


def test_a_cached_prompt_costs_its_rest_only() -> None:
    engine = Engine(EngineConfig(num_blocks=8, block_size=4), SimExecutor(COST, 4))
    engine.submit(list(range(8)), SamplingParams(max_tokens=1), request_id="a")
    engine.run()
    before = engine.clock.now_ns()
    engine.submit(list(range(8)), SamplingParams(max_tokens=1), request_id="b")
    engine.run()
    # 4 cached, 4 computed from position 4: 0.51 + 3 + 4 x 2; pairs 5 + 6 + 7 + 8 = 26 -> 2.6
    assert engine.clock.now_ns() - before == round((0.51 + 3 + 8 + 2.6) * MS)


# The command line -----------------------------------------------------------------------------------------------

SIM = (
    "--executor",
    "sim",
    "--gpu",
    "h100",
    "--tp",
    "2",
    "-m",
    "llama-3-70b",
    "--length-scale",
    "0.0625",
    "--limit",
    "8",
)


def bench(out: Path, *words: str, seed: str = "1") -> Path:
    """One point, in a process of its own; its directory."""
    command = [
        sys.executable,
        "-m",
        "kvtop",
        "bench",
        "-w",
        "mooncake-conversation",
        "-p",
        "fcfs",
        *words,
        "-o",
        str(out),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, env={"PYTHONHASHSEED": seed, "PATH": ""}
    )
    assert done.returncode == 0, done.stderr
    assert "simulated" in done.stdout
    return next(path for path in out.iterdir() if (path / "run.json").exists())


def without_time(path: Path) -> dict[str, Any]:
    return {k: v for k, v in json.loads((path / "run.json").read_text()).items() if k != "started_utc"}


def test_a_simulated_run_says_so_and_repeats_itself(tmp_path: Path) -> None:
    first, second = bench(tmp_path / "a", *SIM), bench(tmp_path / "b", *SIM, seed="2")
    manifest = without_time(first)
    assert manifest == without_time(second)
    for name in ("requests", "steps", "events"):
        assert (first / f"{name}.parquet").read_bytes() == (second / f"{name}.parquet").read_bytes()
    told = {key: manifest[key] for key in ("executor", "clock", "simulated", "model", "device", "dtype", "cost_model")}
    assert told == {
        "executor": "sim", "clock": "virtual", "simulated": True, "model": "llama-3-70b", "device": "2 x h100-80gb",
        "dtype": "bf16", "cost_model": "llama-3-70b on 2 x h100-80gb, generic",
    }  # fmt: skip
    cost = msgspec.convert(manifest["cost_model_values"], CostModel)
    assert cost.hash == manifest["cost_model_hash"]
    # 0.9 x 81,559 MiB less half of 141,107,412,992 bytes of weights, in blocks of 16 x 163,840 bytes
    assert manifest["kv_bytes_per_block"] == 16 * 2 * 80 * 4 * 128 * 2
    assert manifest["num_blocks"] == (int(81_559 * 2**20 * 9 / 10) - 141_107_412_992 // 2) // 2_621_440
    steps = pl.read_parquet(first / "steps.parquet")
    assert (steps["predicted_ns"] == steps["device_ns"]).all()
    assert (steps["t_done_ns"] - steps["t_start_ns"] == steps["device_ns"]).all()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--executor sim --gpu h10", "unknown GPU preset 'h10'; did you mean 'h100-80gb'?"),
        ("--executor sim -m lama-3-8b", "unknown model preset 'lama-3-8b'; did you mean 'llama-3-8b'?"),
        ("--executor sin", "unknown executor 'sin'; did you mean 'sim'?"),
        ("--gpu h100", "--gpu: says what is simulated; add --executor sim"),
        ("--executor sim -m llama-3-70b", "weights of 141.1 GB leave no room for K and V in 77.0 GB"),
        ("--executor sim --tp 3", "8 KV heads cannot be dealt out to 3 GPUs"),
        ("--executor sim --device cpu", "--device: a simulated run uses none"),
        ("--executor null --cost-model x.json", "computes nothing that could be predicted"),
        ("--executor sim --cost-model nowhere.json", "nowhere.json: No such file"),
    ],
)
def test_what_cannot_be_simulated_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: str, says: str
) -> None:
    assert main(["bench", "-w", "azure-conv", *words.split(), "-o", str(tmp_path / "out")]) == 2
    found = capsys.readouterr().err
    assert says in found
    assert found.count("\n") == 1
    assert not (tmp_path / "out").exists()


BASIS = Basis(model="smollm2-135m", device="cpu", dtype="fp32", kv_dtype="fp32", bytes_per_param=4, max_model_len=8192)


def test_a_cost_file_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    file = cost_file(COST, BASIS, {"fitted": None})
    write_cost_file(path, file)
    assert read_cost_file(path) == file
    assert read_cost_file(path).cost == COST


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "other"}, "is no cost model: format is 'other'"),
        ({"version": 2}, "version is 2, this kvtop reads 1"),
        ({"machine": {}}, "missing required field"),
        ({"surplus": 1}, "surplus"),
    ],
)
def test_a_broken_cost_file_is_one_line(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = tmp_path / "cost.json"
    write_cost_file(path, cost_file(COST, BASIS, None))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UsageError, match=says) as caught:
        read_cost_file(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_cost_file_brings_its_model_machine_and_sizes(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    write_cost_file(path, cost_file(COST, BASIS, None))
    run = bench(
        tmp_path / "out", "--executor", "sim", "--cost-model", str(path), "--limit", "4", "--num-blocks", "9000"
    )
    manifest = without_time(run)
    assert (manifest["model"], manifest["device"], manifest["dtype"]) == ("smollm2-135m", "cpu", "fp32")
    assert (manifest["max_num_seqs"], manifest["max_batched_tokens"]) == (32, 128)
    assert manifest["cost_model_hash"] == COST.hash


# Calibration ----------------------------------------------------------------------------------------------------


def test_a_real_run_is_predicted_then_calibrates_a_simulated_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tiny model, whose steps are measured: not how well it fits, but that every part fits together."""
    config = tmp_path / "tiny" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(TINY))
    guess, cost = tmp_path / "guess.json", tmp_path / "cost.json"
    write_cost_file(guess, cost_file(COST, BASIS, None))
    words = ["bench", "-w", "mooncake-conversation", "-p", "fcfs", "--limit", "5", "--length-scale", "0.04"]
    words += ["--time-scale", "0", "--num-blocks", "256"]
    assert main([*words, "-m", "tiny", "--cost-model", str(guess), "-o", str(tmp_path / "real")]) == 0
    (real,) = [path.parent for path in (tmp_path / "real").glob("*/run.json")]
    steps = pl.read_parquet(real / "steps.parquet").filter(pl.col("device_ns") > 0)
    first = steps.row(0, named=True)  # one prompt, of which the budget holds 128 tokens
    assert first["predicted_ns"] == COST.step_ns([(0, first["prefill_tokens"])], num_new=1)
    assert steps["predicted_ns"].null_count() == 0
    manifest = json.loads((real / "run.json").read_text())
    assert (manifest["clock"], manifest["cost_model"], manifest["predicted_by"]["name"]) == ("real", None, "by hand")

    capsys.readouterr()
    assert main(["calibrate", str(real)]) == 2
    assert "give --model with its directory or config.json" in capsys.readouterr().err
    assert main(["calibrate", str(real), "-m", "smollm2-135m"]) == 2
    assert "names another model than the one that ran" in capsys.readouterr().err
    assert main(["calibrate", str(tmp_path / "real"), "-m", str(config), "-o", str(cost), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fit"]["fitted"]["num_steps"] == len(steps) >= 20
    assert found["basis"]["runs"] == [manifest["run_id"]]

    assert main([*words, "--executor", "sim", "--cost-model", str(cost), "-o", str(tmp_path / "sim")]) == 0
    (simulated,) = [path.parent for path in (tmp_path / "sim").glob("*/run.json")]
    assert json.loads((simulated / "run.json").read_text())["model"] == "tiny"
    counted = ["request_id", "prompt_tokens", "output_tokens", "hit_tokens"]
    real_requests, sim_requests = (pl.read_parquet(run / "requests.parquet") for run in (real, simulated))
    assert real_requests.select(counted).equals(sim_requests.select(counted))
    capsys.readouterr()
    assert main(["calibrate", str(simulated), "-m", str(config)]) == 2
    assert "nothing was measured" in capsys.readouterr().err
