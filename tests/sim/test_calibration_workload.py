"""The workload made for ``kvtop calibrate``: what it runs tells all constants apart."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import pytest

from kvtop.cli.main import main
from kvtop.cost.files import Basis, cost_file, write_cost_file
from kvtop.cost.fit import fit_machine
from kvtop.cost.presets import work_of
from kvtop.cost.steps import steps_of_run
from kvtop.engine.executors.sim_cost import CostModel, Machine
from kvtop.model_shape import find_shape
from kvtop.results.load import find_runs, open_run

TRUE = Machine(
    weight_bytes_s=1e12, flops_s=300e9, kv_bytes_s=1e12, attention_flops_s=200e9, step_ns=20e6, seq_ns=1e6
)  # as a CPU of two cores was measured
NOISE = 0.03


def test_constants_are_told_apart_by_the_steps_of_the_calibration_workload(tmp_path: Path) -> None:
    work = work_of(find_shape("smollm2-135m"), kv_dtype="fp32", bytes_per_param=4)
    basis = Basis(model="smollm2-135m", device="cpu", dtype="fp32", kv_dtype="fp32", bytes_per_param=4)
    true = tmp_path / "true.json"
    write_cost_file(true, cost_file(CostModel(name="true", work=work, machine=TRUE), basis, None))
    words = ["bench", "-w", "calibration", "-p", "fcfs", "--executor", "sim", "--cost-model", str(true)]
    assert main([*words, "-o", str(tmp_path / "runs")]) == 0
    [path] = find_runs(tmp_path / "runs")
    run = open_run(path)
    run = dataclasses.replace(run, manifest={**run.manifest, "clock": "real"})  # its times stand for measured ones
    steps = steps_of_run(run)
    draw = np.random.Generator(np.random.PCG64(0))
    steps = dataclasses.replace(steps, ns=steps.ns * np.exp(NOISE * draw.standard_normal(len(steps))))
    found = fit_machine(steps, work).machine
    for name in ("flops_s", "attention_flops_s", "step_ns", "seq_ns"):
        wanted = msgspec.structs.asdict(TRUE)[name]
        assert getattr(found, name) == pytest.approx(wanted, rel=0.15), name
