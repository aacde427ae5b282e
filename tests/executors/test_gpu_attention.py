"""Triton's kernels in the executor: tokens equal ``generate``, whatever a step holds and however K and V are stored."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from gpu_serving import DEVICES, MODELS, Model, assert_equal, load, prompts, serve, start

from kvtop.engine.errors import ConfigError, UnknownName
from kvtop.engine.executors import attention_paths
from kvtop.engine.executors.attention_paths import choose_attention
from kvtop.engine.executors.indices import Indices, TableRows
from kvtop.engine.executors.torch_executor import TorchExecutor
from kvtop.engine.executors.torch_pool import LayerShape

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, device: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    model = load(request.param, device, tmp_path_factory.mktemp(request.param))
    yield model
    model.executor.close()


@pytest.fixture(scope="module")
def llama(device: str, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load("llama", device, tmp_path_factory.mktemp("llama"))


def test_tokens_equal_generate(model: Model) -> None:
    engine = start(model.executor, model.windows, prefix_caching=False)
    served = serve(engine, model.executor, prompts(model))
    assert_equal(model, prompts(model), served)
    assert model.executor.pool.attention == "triton"
    assert "attention by Triton kernels" in model.executor.info.computed_by


def test_decodes_and_chunks_in_one_step_over_a_cached_beginning(model: Model) -> None:
    common, *tails = prompts(model, (13, 1, 5), seed=7)
    texts = [common + tail for tail in tails]
    engine = start(model.executor, model.windows, max_batched_tokens=5)
    for num_cached in (0, 12):
        served = serve(engine, model.executor, texts)
        assert_equal(model, texts, served)
        assert served.num_mixed > 0 or num_cached
        assert engine.request(served.ids[0]).cached_tokens == num_cached


def test_swapped_and_copied_blocks_change_nothing(llama: Model) -> None:
    texts = prompts(llama, (3, 9))
    engine = start(llama.executor, num_blocks=4, host_blocks=9, preemption="swap", prefix_caching=False)
    assert_equal(llama, texts, serve(engine, llama.executor, texts, max_tokens=6))
    assert engine.counters().restored_tokens > 0
    engine = start(llama.executor, prefix_caching=False)
    served = serve(engine, llama.executor, texts, n=3, max_tokens=3)
    assert_equal(llama, texts, served)
    for rid, answer in zip(served.ids, served.answers, strict=True):
        assert [list(engine.request(f"{rid}#{branch}").output) for branch in (1, 2)] == [answer] * 2
    assert engine.counters().copies > 0


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_quantised_tokens_are_those_of_the_torch_path(llama: Model, kv_dtype: str) -> None:
    executor = llama.executor.with_kv_dtype(kv_dtype)
    plain = llama.executor.with_kv_dtype(kv_dtype, attention="torch")
    answers = []
    for each in (executor, plain):
        engine = start(each, max_batched_tokens=7, prefix_caching=False)
        answers.append(serve(engine, each, prompts(llama, (5, 9))).answers)
    assert answers[0] == answers[1]
    assert (executor.pool.attention, plain.pool.attention) == ("triton", "torch")


def test_a_step_sends_its_indices_in_one_copy(llama: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    send = Indices.send

    def counted(self: Indices) -> torch.Tensor:
        sent.append(len(self._waiting))
        return send(self)

    monkeypatch.setattr(Indices, "send", counted)
    served = serve(start(llama.executor, max_batched_tokens=6), llama.executor, prompts(llama, (2, 9)))
    assert served.num_mixed > 0
    assert len(sent) == served.num_steps
    assert max(sent) == 9  # ids, positions, slots, rows wanted; lengths and tables of decodes and of chunks; starts


def test_tables_are_looked_at_again_each_time() -> None:
    known = TableRows()
    table = [5, 6, 7]
    assert known.stack([table, [1]], [2, 1], 3, 4).tolist() == [[5, 6, -1, -1], [1, -1, -1, -1], [-1] * 4]
    table[1] = 9  # a block was exchanged for a published one
    table.append(-1)
    assert known.stack([table], [4], 1, 4).tolist() == [[5, 9, 7, -1]]


LAYERS = [LayerShape(0, 2, 64, 64)]


def choose(asked: str, device: torch.device = CPU, dtype: torch.dtype = torch.float32, kv_dtype: str = "auto") -> str:
    return choose_attention(asked, device, dtype, LAYERS, kv_dtype)


@pytest.fixture
def modern(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_paths, "_triton_version", lambda: "3.5.1")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(attention_paths.jit, "unusable", lambda: None)


@pytest.mark.usefixtures("modern")
def test_auto_is_triton_on_cuda_and_the_kernels_of_the_cpu_where_they_cover_it() -> None:
    assert choose("auto", CUDA, torch.bfloat16) == choose("auto", CUDA, kv_dtype="int8") == "triton"
    assert choose("auto") == "cpu"
    assert choose("auto", kv_dtype="fp8") == "torch"
    assert choose("torch", CUDA, torch.float16) == choose("torch") == "torch"
    assert choose("triton") == "triton"  # interpreted, as all tests here


@pytest.mark.usefixtures("modern")
@pytest.mark.parametrize(
    ("asked", "kv_dtype", "message"),
    [
        ("cpu", "int8", "attention by CPU kernels on cpu: they read fp32 blocks, found int8"),
        ("triton", "auto", "attention by Triton kernels on cpu: Triton compiles for CUDA devices"),
    ],
)
def test_what_was_asked_for_is_never_replaced_in_silence(
    asked: str, kv_dtype: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtop.kernels.gpu.launch.interpreted", lambda: False)
    with pytest.raises(ConfigError, match=message):
        choose(asked, kv_dtype=kv_dtype)


@pytest.mark.usefixtures("modern")
@pytest.mark.parametrize(
    ("version", "capability", "message"),
    [
        (None, (9, 0), r"on cuda: the package triton is not installed \(expected 3\.5 or later\)"),
        ("3.4.0", (9, 0), "on cuda: triton is 3.4.0, expected 3.5 or later"),
        ("3.10.0", (7, 5), "on cuda: the device has compute capability 7.5, Triton needs 8.0"),
    ],
)
def test_cuda_without_a_usable_triton_is_an_error_with_the_reason(
    version: str | None, capability: tuple[int, int], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_paths, "_triton_version", lambda: version)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with pytest.raises(ConfigError, match=message):
        choose("auto", CUDA, torch.bfloat16)
    assert choose("torch", CUDA, torch.bfloat16) == "torch"


def test_an_unknown_attention_gets_the_nearest() -> None:
    with pytest.raises(UnknownName, match="unknown attention 'tritn'; did you mean 'triton'"):
        TorchExecutor.load("tiny", device="cpu", attention="tritn")
