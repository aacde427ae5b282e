"""Decode steps padded to few shapes and replayed. On the CPU a step computed again stands in for the captured graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gpu_serving import DEVICES, Model, assert_equal, load, prompts, rerun, serve, start

from kvtop.engine.api import EngineConfig
from kvtop.engine.executors import gpu_graphs
from kvtop.engine.executors.gpu_graphs import DecodeGraphs, NotCapturable, padded_size, padded_sizes
from kvtop.engine.executors.indices import Indices, Padding
from kvtop.engine.executors.memory import MemoryProfile, profile
from kvtop.engine.executors.torch_executor import TorchExecutor

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


class Replays:
    """``rerun``, counting what is captured and replayed; as a factory too."""

    def __init__(self) -> None:
        self.num_captured = self.num_replayed = 0

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        self.num_captured += 1
        again = rerun(run)

        def replay() -> None:
            self.num_replayed += 1
            again()

        return replay


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def model(request: pytest.FixtureRequest, device: str, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(request.param, device, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load("llama", "cpu", tmp_path_factory.mktemp("llama"))


@pytest.fixture
def replays(llama: Model) -> Replays:
    found = Replays()
    llama.executor.make_capture = lambda: found
    return found


def captured(executor: TorchExecutor) -> tuple[Padding, ...]:
    assert executor._graphs is not None
    return executor._graphs.captured


def test_sizes_waste_at_most_an_eighth() -> None:
    assert padded_sizes(40) == [1, 2, 4, 8, 16, 24, 32, 40]
    assert padded_sizes(300)[-6:] == [208, 224, 240, 256, 288, 320]
    assert len(padded_sizes(1024)) == 43
    for n in range(1, 3000):
        assert n <= padded_size(n) <= max(2 * n if n < 8 else n + 7, n * 9 // 8 + 1)
        assert padded_size(padded_size(n)) == padded_size(n)


def test_replayed_tokens_equal_generate(model: Model) -> None:
    """Three prompts in steps padded to four, then fewer as answers end; tables of the first request keep nothing."""
    executor = model.executor
    if executor.device.type == "cpu":
        executor.make_capture = lambda: rerun
    engine = start(executor, model.windows, max_num_seqs=3)
    served = serve(engine, executor, prompts(model))
    assert_equal(model, prompts(model), served)
    assert served.num_decode_only >= 3
    assert "decode steps captured" in executor.info.computed_by
    assert {padding.num_rows for padding in captured(executor)} == {1, 4}
    again = serve(engine, executor, prompts(model, (2,), seed=9))
    assert_equal(model, prompts(model, (2,), seed=9), again)


def test_every_decode_only_step_is_one_copy_and_one_replay(
    llama: Model, replays: Replays, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(llama.executor, max_num_seqs=2, max_batched_tokens=6)
    assert replays.num_captured == 2  # the largest first, and the smallest
    assert captured(llama.executor)[0].num_rows == 2
    sent: list[Indices] = []
    send = Indices.send
    monkeypatch.setattr(Indices, "send", lambda self: (sent.append(self), send(self))[1])
    served = serve(engine, llama.executor, prompts(llama, (2, 9)))
    assert_equal(llama, prompts(llama, (2, 9)), served)
    assert served.num_mixed > 0
    assert replays.num_replayed == served.num_decode_only > 0
    assert (replays.num_captured, len(sent)) == (2, served.num_steps)


def test_capturing_all_sizes_writes_nothing(llama: Model, replays: Replays) -> None:
    llama.executor.allocate(6, 4, max_num_seqs=4)
    assert [padding.num_rows for padding in captured(llama.executor)] == [4, 1]
    llama.executor.prepare()
    assert [padding.num_rows for padding in captured(llama.executor)] == [4, 1, 2]
    assert not any(tensor.any() for tensor in llama.executor.pool.tensors)


def test_the_memory_profile_counts_every_graph(llama: Model, replays: Replays, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sizes 1 and 2, at two widths: the first and three more that take what the smallest took."""
    monkeypatch.setattr(DecodeGraphs, "_taken", lambda self, padding: (self._add(padding), padding.num_rows * 100)[1])
    found = profile(llama.executor, EngineConfig(num_blocks=1, block_size=4, max_num_seqs=2, max_batched_tokens=4))
    assert found.graphs == 200 + 3 * 100
    assert replays.num_captured == 2
    plain = MemoryProfile(found.total, found.weights, found.activation)
    assert plain.kv_bytes(0.5) - found.kv_bytes(0.5) == 500


def test_quantised_blocks_are_padded_too(llama: Model) -> None:
    executor = llama.executor.with_kv_dtype("int8")
    answers = []
    for max_num_seqs in (None, 3):
        executor.make_capture = lambda: rerun
        engine = start(executor, max_num_seqs=max_num_seqs)
        answers.append(serve(engine, executor, prompts(llama, (5, 9, 2), seed=3), max_tokens=3).answers)
    assert answers[0] == answers[1]


def test_longer_tables_get_graphs_of_their_own_and_the_oldest_go(
    llama: Model, replays: Replays, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_graphs, "LEAST_WIDTH", 1)
    monkeypatch.setattr(gpu_graphs, "WIDTH_FACTOR", 2)
    engine = start(llama.executor, max_num_seqs=1)
    served = serve(engine, llama.executor, prompts(llama, (2,)), max_tokens=8)
    assert_equal(llama, prompts(llama, (2,)), served)
    assert captured(llama.executor) == (Padding(1, 2), Padding(1, 4))  # 1 was the first, and there is room for two
    assert replays.num_replayed == 7


def test_more_rows_than_were_asked_for_are_launched_as_they_are(llama: Model, replays: Replays) -> None:
    executor = llama.executor
    engine = start(executor, max_num_seqs=3)
    executor.allocate(80, 4, max_num_seqs=1)
    served = serve(engine, executor, prompts(llama, (2, 3)), max_tokens=2)
    assert_equal(llama, prompts(llama, (2, 3)), served)
    assert replays.num_replayed == 0


def test_a_model_that_cannot_be_captured_is_served_and_it_is_said(llama: Model) -> None:
    def refuse(run: Callable[[], None]) -> Callable[[], None]:
        raise NotCapturable("it waits")

    llama.executor.make_capture = lambda: refuse
    engine = start(llama.executor, max_num_seqs=2)
    assert llama.executor.info.computed_by.endswith("decode steps not captured (it waits)")
    assert llama.executor.graph_bytes == 0
    assert_equal(llama, prompts(llama, (2, 5)), serve(engine, llama.executor, prompts(llama, (2, 5)), max_tokens=2))


@pytest.mark.gpu
@needs_cuda
def test_what_waits_for_the_device_is_not_captured() -> None:
    x = torch.zeros(3, device="cuda")

    def waits() -> None:
        x.add_(x.nonzero().numel())

    with pytest.raises(NotCapturable, match="synchron"):
        gpu_graphs.CudaCapture()(waits)


@pytest.mark.gpu
@needs_cuda
def test_a_captured_step_follows_its_tensors() -> None:
    x, y = torch.zeros(3, device="cuda"), torch.zeros(3, device="cuda")

    def double() -> None:
        y.copy_(x * 2)

    replay = gpu_graphs.CudaCapture()(double)
    x.fill_(4)
    replay()
    assert y.tolist() == [8, 8, 8]
