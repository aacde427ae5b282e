"""The CPU kernels against the same sums in fp64: odd shapes, strided rows, one thread and two."""

from __future__ import annotations

import copy
import importlib.abc
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from kvtop.kernels.cpu import jit, ops
from kvtop.kernels.cpu.jobs import Jobs

pytestmark = pytest.mark.skipif(jit.missing() is not None, reason=f"no CPU kernels here: {jit.missing()}")

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 50, 260)


@pytest.fixture(autouse=True, params=[1, 2])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("depth", [16, 48, 576, 2064])
def test_linears_that_share_their_input(rows: int, depth: int) -> None:
    """Every size of a tile, groups of outputs that are not whole, strips of rows that are not whole."""
    x = torch.randn(rows, depth + 16)[:, :depth]  # rows with something between them
    weights = [torch.randn(n, depth) for n in (1, 11, 12, 13, 100)]
    biases = [torch.randn(len(w)) for w in weights]
    outs = [torch.full((rows, len(w)), float("nan")) for w in weights]
    ops.Packed(weights, biases)(x, outs)
    for w, b, out in zip(weights, biases, outs, strict=True):
        exact = x.double() @ w.double().T + b.double()
        rounding = 4e-7 * (x.double().abs() @ w.double().abs().T + b.double().abs())  # of terms of either sign
        assert ((out.double() - exact).abs() <= rounding).all()


def test_a_linear_into_columns_leaves_the_others_alone() -> None:
    packed = torch.full((5, 40), -7.0)
    x, w = torch.randn(5, 16), torch.randn(13, 16)
    ops.Packed([w], [torch.zeros(13)])(x, [packed[:, 20:33]])
    assert relative(packed[:, 20:33], x.double() @ w.double().T) < 3e-7
    assert (packed[:, :20] == -7).all()
    assert (packed[:, 33:] == -7).all()


def test_one_value_that_is_not_finite_stays_in_its_row() -> None:
    x, w = torch.randn(6, 32), torch.randn(25, 32)
    x[2, 5], x[4, 0] = float("nan"), float("inf")
    out = torch.empty(6, 25)
    ops.Packed([w], [torch.zeros(25)])(x, [out])
    assert out.isfinite().all(-1).tolist() == [True, True, False, True, False, True]


@pytest.mark.parametrize("shape", [(1, 1, 16), (3, 7, 64), (1, 300, 576)])
def test_rms_norm(shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape), torch.randn(shape[-1])
    d = x.double()
    want = d / (d.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert relative(ops.rms_norm(x, weight, 1e-5), want) < 3e-7


@pytest.mark.parametrize(("tokens", "heads", "dim"), [(1, 3, 32), (70, 5, 64), (200, 12, 96)])
def test_rotary_turns_the_named_heads_only(tokens: int, heads: int, dim: int) -> None:
    packed, cos, sin = torch.randn(tokens, heads + 2, dim), torch.randn(tokens, dim), torch.randn(tokens, dim)
    d, half = packed.double(), dim // 2
    turned = torch.cat((-d[..., half:], d[..., :half]), -1)
    want = d * cos[:, None].double() + turned * sin[:, None].double()
    rest = packed[:, heads:].clone()
    ops.rotary_(packed[:, :heads], cos, sin)
    assert relative(packed[:, :heads], want[:, :heads]) < 3e-7
    assert torch.equal(packed[:, heads:], rest)


@pytest.mark.parametrize("size", [0.0, 1.0, 30.0, 1000.0])
def test_attention_survives_large_scores(size: float) -> None:
    """Softmax shifts by the maximum: scores of thousands give a hard choice, not infinity."""
    q, pool = torch.randn(2, 1, 16) * size, torch.randn(4, 1, 4, 16)
    items, tables = torch.tensor([[0, 1, 12, 0]]), torch.tensor([3, 1, 0, 2])
    got = ops.attention(q, pool, pool.clone(), items, tables, 13, scaling=1.0)
    keys = pool[tables].reshape(16, 16)[:13].double()
    want = (q[:, 0].double() @ keys.T).softmax(-1) @ keys
    assert (got[0].double() - want).abs().max() < 1e-5 * max(1.0, size)


def test_threads_do_not_change_a_bit() -> None:
    x, w = torch.randn(37, 64), torch.randn(500, 64)

    def once(threads: int) -> torch.Tensor:
        torch.set_num_threads(threads)
        out = torch.empty(37, 500)
        ops.Packed([w], [torch.zeros(500)])(x, [out])
        return out

    assert torch.equal(once(1), once(2))


def test_a_row_is_the_same_whatever_it_is_computed_with() -> None:
    """Alone, in any tile, in any strip: a token's numbers do not depend on who shares its step. Also of any depth."""
    x, w, b = torch.randn(301, 67), torch.randn(100, 67), torch.randn(100)
    product, alone, together = ops.Packed([w], [b]), torch.empty(301, 100), torch.empty(301, 100)
    product(x, [together])
    for row in range(301):
        product(x[row : row + 1], [alone[row : row + 1]])
    assert torch.equal(alone, together)
    assert relative(together, x.double() @ w.double().T + b.double()) < 3e-7


def test_a_copy_of_packed_weights_stands_by_itself() -> None:
    w, x, out = torch.randn(50, 32), torch.randn(3, 32), torch.empty(3, 50)
    product = ops.Packed([w], [torch.zeros(50)])
    twin = copy.deepcopy(product)
    product.weights[0].zero_()
    twin(x, [out])
    assert relative(out, x.double() @ w.double().T) < 3e-7


@pytest.mark.parametrize(("rows", "outputs", "threads"), [(1, 48, 16), (512, 576, 16), (5000, 49_152, 2), (65, 13, 64)])
def test_strips_and_tasks_cover_all_rows_once(rows: int, outputs: int, threads: int, monkeypatch) -> None:
    """Of many threads each gets some, if there are rows enough."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    product = ops.Packed([torch.empty(outputs, 16)], [torch.empty(outputs)])
    strip, tasks = product.strip(rows), product.num_tasks(rows)
    strips = -(-rows // strip)
    assert strip % 8 == 0
    assert (strips - 1) * strip < rows <= strips * strip
    assert tasks % strips == 0
    assert tasks >= min(threads, rows // 64)


def test_no_rows_are_no_work() -> None:
    product = ops.Packed([torch.randn(13, 16)], [torch.zeros(13)])
    assert product.num_tasks(0) == 0
    product(torch.empty(0, 16), [torch.empty(0, 13)])


def test_a_library_that_does_not_load_is_a_reason_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname, path=None, target=None):
            if fullname == "kvtop.kernels.cpu.ir_tools":
                raise OSError("Could not find/load shared object file")
            return

    monkeypatch.delitem(sys.modules, "kvtop.kernels.cpu.ir_tools", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    monkeypatch.delattr("kvtop.kernels.cpu.ir_tools", raising=False)
    assert jit.missing.__wrapped__() == "llvmlite cannot be loaded: Could not find/load shared object file"


def test_kernels_that_do_not_compile_are_a_reason_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("LLVM ERROR:\n no such instruction")

    monkeypatch.setattr(jit, "_library", broken)
    assert jit.unusable.__wrapped__() == "they do not compile: LLVM ERROR: no such instruction"


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 48), (70, 1536)])
def test_gate(rows: int, width: int) -> None:
    """From where e^-x overflows to where it is nothing; what is no number stays in its place."""
    gate, up = torch.randn(2, rows, width + 16).mul(20).unbind()
    gate[0, :4] = torch.tensor([-200.0, 200.0, 0.0, -87.5])
    before = gate.clone()
    gate[-1, 5] = float("nan")
    jit.run("gate", ops.num_tasks(rows, width), ops.gate_job(gate[:, :width], up[:, :width]))
    want = before.double() * torch.sigmoid(before.double()) * up.double()
    assert gate[-1, 5].isnan()
    gate[-1, 5] = want[-1, 5]
    assert relative(gate[:, :width], want[:, :width]) < 3e-7
    assert torch.equal(gate[:, width:], before[:, width:])


def test_add_norm_keeps_the_sum() -> None:
    x, y, weight, out = torch.randn(70, 48), torch.randn(70, 48), torch.randn(48), torch.empty(70, 48)
    total = x.double() + y.double()
    jit.run("add_norm", ops.num_tasks(70, 48), ops.norm_job(x, weight, 1e-5, out, y))
    assert relative(x, total) < 1e-7
    assert relative(out, total / (total.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()) < 3e-7


def test_jobs_run_in_order_and_again() -> None:
    """Every job reads what the one before it wrote; a second run takes no task for done."""
    weights = [torch.randn(48, 48) / 7 for _ in range(3)]
    buffers = [torch.randn(130, 48), *(torch.empty(130, 48) for _ in range(3))]
    jobs, pointed_to = Jobs(3, ("packed",)), []
    for i, weight in enumerate(weights):
        product = ops.Packed([weight], [torch.zeros(48)])
        fields, table = product.job(buffers[i], [buffers[i + 1]])
        jobs.put(i, 0, fields)
        jobs.set_tasks(0, product.num_tasks(130))
        pointed_to.append((product, table))
    for _ in range(2):
        buffers[0].normal_()
        jobs.run()
        exact = buffers[0].double()
        for weight in weights:
            exact = exact @ weight.double().T
        assert relative(buffers[3], exact) < 1e-6


def test_jobs_end_with_fewer_threads_than_were_asked_for() -> None:
    """A limit of the user's environment makes the team smaller: nobody may wait for who is not there."""
    code = """
import torch
from kvtop.kernels.cpu import ops
from kvtop.kernels.cpu.jobs import Jobs
torch.manual_seed(0)
torch.set_num_threads(4)
weight, x, out = torch.randn(500, 48), torch.randn(200, 48), torch.empty(200, 500)
product, jobs = ops.Packed([weight], [torch.zeros(500)]), Jobs(2, ("packed",))
for i in range(2):
    fields, table = product.job(x, [out])
    jobs.put(i, 0, fields)
jobs.set_tasks(0, product.num_tasks(200))
jobs.run()
print(float((out - x @ weight.T).abs().max()) < 1e-4)
"""
    limited = {**os.environ, "OMP_THREAD_LIMIT": "2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=limited)
    assert done.stdout == "True\n", done.stderr
