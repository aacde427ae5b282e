"""The fit: constants that made the steps are found again, and least squares is what brute force finds."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.cost.fit import errors, fit_machine, predict
from kvtop.cost.nnls import nnls
from kvtop.cost.presets import work_of
from kvtop.cost.steps import Steps, join, make_steps
from kvtop.cost.tables import read_table
from kvtop.engine.errors import UsageError
from kvtop.engine.executors.sim_cost import CostModel, Machine
from kvtop.model_shape import find_shape

WORK = work_of(find_shape("llama-3-8b"))
TRUE = Machine(
    weight_bytes_s=1.5e12, flops_s=200e12, kv_bytes_s=1e12, attention_flops_s=100e12, step_ns=3e6, seq_ns=2e4,
    ingest_ns=5e6,
)  # fmt: skip


def made(num: int, *, seed: int = 0, machine: Machine = TRUE, noise: float = 0.0) -> tuple[Steps, list[int]]:
    """Steps with chunks of all kinds, timed by ``CostModel.step_ns`` one by one; and those times."""
    draw = np.random.Generator(np.random.PCG64(seed))
    cost = CostModel(name="true", work=WORK, machine=machine)
    ns, arrivals, step_of, starts, counts = [], [], [], [], []
    for step in range(num):
        spans = [(int(draw.integers(10, 6000)), 1) for _ in range(int(draw.integers(0, 60)))]
        spans += [(int(draw.integers(0, 3000)), int(draw.integers(2, 700))) for _ in range(int(draw.integers(0, 3)))]
        spans = spans or [(5, 1)]
        arrivals.append(int(draw.integers(0, 2)))
        ns.append(cost.step_ns(spans, num_new=arrivals[-1]))
        step_of += [step] * len(spans)
        starts += [start for start, _ in spans]
        counts += [count for _, count in spans]
    times = np.array(ns) * np.exp(noise * draw.standard_normal(num))
    return make_steps(times, *map(np.array, (arrivals, step_of, starts, counts))), ns


def test_arrays_cost_what_single_steps_cost() -> None:
    steps, ns = made(40)
    assert np.abs(predict(TRUE, steps, WORK) - ns).max() <= 1  # rounding


def test_constants_are_found_again() -> None:
    steps, _ = made(150)
    fit = fit_machine(steps, WORK)
    assert fit.fitted.p90 < 0.02
    assert fit.held_out is not None
    assert fit.held_out.p90 < 0.03
    assert fit.machine.flops_s == pytest.approx(TRUE.flops_s, rel=0.1)
    assert fit.machine.kv_bytes_s == pytest.approx(TRUE.kv_bytes_s, rel=0.1)
    assert fit.machine.ingest_ns == pytest.approx(TRUE.ingest_ns, rel=0.1)


def test_other_steps_are_predicted_from_noisy_ones() -> None:
    steps, _ = made(250, noise=0.1)
    fit = fit_machine(steps, WORK)
    other, _ = made(200, seed=1)
    found = errors(fit.machine, other, WORK)
    assert found.p50 < 0.05
    assert abs(found.total) < 0.05
    assert 0.04 < fit.fitted.p50 < 0.10  # the noise itself: half of a normal with 10 % is within 6.7 %


def test_a_few_wild_steps_change_little() -> None:
    steps, _ = made(150)
    steps.ns[::25] *= 20
    found = errors(fit_machine(steps, WORK).machine, made(200, seed=1)[0], WORK)
    assert found.p50 < 0.05
    assert abs(found.total) < 0.05  # a mean would be off by 4 % x 19 = 76 %


def test_held_out_steps_tell_what_the_fit_did_not_see() -> None:
    """Where times do not depend on what was computed, the fit to some says nothing about the others."""
    steps, _ = made(150)
    held = steps.held_out()
    steps.ns[held] *= 3
    fit = fit_machine(steps, WORK)
    assert fit.held_out is not None
    assert fit.held_out.num_steps == held.sum() == 30
    assert fit.held_out.p50 > 0.5


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(UsageError, match="19 steps were measured, expected at least 20"):
        fit_machine(made(19)[0], WORK)


def test_a_subset_keeps_whole_steps() -> None:
    steps, _ = made(30)
    keep = np.arange(30) % 3 == 1
    part = steps.subset(keep)
    assert np.array_equal(predict(TRUE, part, WORK), predict(TRUE, steps, WORK)[keep])
    both = join([part, steps])
    assert np.array_equal(
        predict(TRUE, both, WORK), np.concatenate([predict(TRUE, part, WORK), predict(TRUE, steps, WORK)])
    )


MATRICES = st.integers(1, 4).flatmap(
    lambda n: st.lists(
        st.tuples(st.lists(st.integers(-5, 5), min_size=n, max_size=n), st.integers(-9, 9)), min_size=n, max_size=8
    )
)


@settings(deadline=None)
@given(MATRICES)
def test_nnls_is_what_brute_force_finds(rows: list[tuple[list[int], int]]) -> None:
    a, b = np.array([r for r, _ in rows], dtype=float), np.array([v for _, v in rows], dtype=float)
    x = nnls(a, b)
    assert (x >= 0).all()
    best = float(b @ b)
    for size in range(1, a.shape[1] + 1):
        for columns in itertools.combinations(range(a.shape[1]), size):
            part = a[:, columns]
            y = np.linalg.lstsq(part, b, rcond=None)[0]
            if (y >= -1e-9).all():
                best = min(best, float(((part @ np.maximum(y, 0) - b) ** 2).sum()))
    assert float(((a @ x - b) ** 2).sum()) <= best + 1e-6


# Tables ---------------------------------------------------------------------------------------------------------


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "times.csv"
    path.write_text(text)
    return path


def test_a_plain_table(tmp_path: Path) -> None:
    steps = read_table(table(tmp_path, "tokens,batch,context,ms\n8,2,0,1.5\n3,3,100,2\n7,1,,4\n"), tp=1, num_layers=2)
    assert steps.ns.tolist() == [1.5e6, 2e6, 4e6]
    assert steps.tokens.tolist() == [8, 3, 7]
    assert steps.chunks.tolist() == [2, 3, 1]
    # two prompts of 4 tokens; three decodes behind 100; no context: no attention in that row
    assert steps.chunk_step.tolist() == [0, 0, 1, 1, 1]
    assert steps.counts.tolist() == [4, 4, 1, 1, 1]
    assert steps.starts.tolist() == [0, 0, 100, 100, 100]


def test_a_splitwise_table(tmp_path: Path) -> None:
    head = "prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel\n"
    path = table(tmp_path, head + "512,2,128,200,50,8\n512,1,128,300,60,2\n")
    steps = read_table(path, tp=8, num_layers=2)
    assert steps.ns.tolist() == [200e6, 50e6]  # the prompts in one step, then a token half way
    assert steps.tokens.tolist() == [1024, 2]
    assert steps.starts.tolist() == [0, 0, 576, 576]
    with pytest.raises(UsageError, match="no row for --tp 4; there are rows for 2, 8"):
        read_table(path, tp=4, num_layers=2)


def test_a_vidur_table(tmp_path: Path) -> None:
    names = [f"time_stats.{name}.median" for name in ("emb", "mlp_up_proj", "add")]
    head = ",".join([*names, "time_stats.add.max", "num_tokens", "num_tensor_parallel_workers"])
    steps = read_table(table(tmp_path, f"{head}\n1,2,0.5,9,64,1\n"), tp=1, num_layers=10)
    assert steps.ns.tolist() == [(1 + 10 * (2 + 2 * 0.5)) * 1e6]
    assert (steps.tokens.tolist(), steps.chunk_step.tolist()) == ([64], [])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "columns are a, b, expected tokens, batch, ms and context"),
        ("tokens,batch,context,ms\n8,3,0,1\n", "tokens 8, batch 3"),
        ("tokens,batch,context,ms\n8,2,0,0\n", "ms 0.0; expected"),
        ("tokens,batch,context,ms\n8,2,0,fast\n", "ms None; expected"),
        ("tokens,batch,context,ms\n8,2,-1,1\n", "context -1"),
        ("", "cannot be read as CSV"),
    ],
)
def test_a_broken_table_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        read_table(table(tmp_path, text), tp=1, num_layers=2)
    assert "times.csv" in str(caught.value)
    assert "\n" not in str(caught.value)
