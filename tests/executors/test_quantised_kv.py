"""int8 and fp8 K and V through the executor and the whole engine: bytes, capacity, tokens, swaps, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from plan_driver import compute, make_sequence, prompts_of

from kvtop.calc import CacheShape
from kvtop.cli.main import main
from kvtop.engine.config import EngineConfig
from kvtop.engine.engine import Engine
from kvtop.engine.errors import ConfigError, ModelError, UnknownName
from kvtop.engine.executors.torch_executor import TorchExecutor
from kvtop.engine.recorder import Recorder
from kvtop.engine.types import Chunk, Plan, SamplingParams
from kvtop.engine.worker import Built, build_engine
from kvtop.kernels import quant

FORMATS = ("fp8", "int8")
LENGTHS = (1, 15, 16, 17, 33, 60, 90, 130)
# Share of 128 next tokens that are those of fp32. The best tokens of a random model lie close together.
CLOSE_TO_FP32 = {"int8": 0.9, "fp8": 0.7}


def poison(executor: TorchExecutor, blocks: list[int] | None = None) -> None:
    """NaN scales, and values of any bits, in all blocks or in some."""
    for tensor in executor.pool.tensors:
        where = slice(None) if blocks is None else blocks
        tensor[where] = float("nan") if tensor.is_floating_point() else 0x7F


def answers(executor: TorchExecutor, num_output: int = 16, **config: Any) -> list[list[int]]:
    """Greedy answers of the whole engine; after every step, whatever nobody holds is poisoned."""
    options = {"num_blocks": 60, "block_size": 16, "max_batched_tokens": 64, "prefix_caching": False, **config}
    settings = EngineConfig(**options)
    executor.allocate(settings.num_blocks, settings.block_size, settings.host_blocks)
    poison(executor)
    engine = Engine(settings, executor)
    prompts = prompts_of(LENGTHS, executor.vocab_size)
    ids = [engine.submit(p, SamplingParams(max_tokens=num_output)) for p in prompts]
    while engine.has_requests:
        engine.step()
        engine.check()
        poison(executor, list(engine.allocator.pool.fresh))
    if "host_blocks" in config:
        assert engine.counters().preemptions > 0
        assert engine.counters().restored_tokens > 0
    return [list(engine.request(rid).output) for rid in ids]


def agreement(some: list[list[int]], others: list[list[int]]) -> float:
    """Share of equal tokens; after a first difference an answer rarely comes back."""
    pairs = [pair for a, b in zip(some, others, strict=True) for pair in zip(a, b, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


def next_tokens(executor: TorchExecutor, texts: list[list[int]]) -> list[list[int]]:
    """The best token after each text: an early difference changes no later one."""
    executor.allocate(400, 16)
    poison(executor)
    engine = Engine(EngineConfig(num_blocks=400, max_batched_tokens=512, prefix_caching=False), executor)
    ids = [engine.submit(text, SamplingParams(max_tokens=1)) for text in texts]
    engine.run()
    return [list(engine.request(rid).output) for rid in ids]


@pytest.fixture(scope="module", params=FORMATS)
def quantised(request: pytest.FixtureRequest, tiny: TorchExecutor) -> TorchExecutor:
    return tiny.with_kv_dtype(request.param)


@pytest.fixture(scope="module")
def texts(tiny: TorchExecutor) -> list[list[int]]:
    """Every beginning of the fp32 answers, with its prompt."""
    prompts = prompts_of(LENGTHS, tiny.vocab_size)
    outputs = answers(tiny.with_kv_dtype("auto"))
    return [[*p, *output[:n]] for p, output in zip(prompts, outputs, strict=True) for n in range(len(output))]


@pytest.fixture(scope="module")
def exact(tiny: TorchExecutor, texts: list[list[int]]) -> list[list[int]]:
    return next_tokens(tiny.with_kv_dtype("auto"), texts)


def test_greedy_tokens_are_close_to_those_of_fp32(
    quantised: TorchExecutor, texts: list[list[int]], exact: list[list[int]]
) -> None:
    found = agreement(next_tokens(quantised, texts), exact)
    print(f"{quantised.kv_dtype}: {found:.1%}")
    assert found >= CLOSE_TO_FP32[quantised.kv_dtype]


@pytest.mark.parametrize("wrong", [0.5, 3.0])
def test_wrong_scales_would_show_in_the_tokens(
    tiny: TorchExecutor, texts: list[list[int]], exact: list[list[int]], wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = quant.quantise

    def scaled_wrongly(rows: torch.Tensor, kv_dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
        values, scales = own(rows, kv_dtype)
        return values, scales * wrong

    monkeypatch.setattr(quant, "quantise", scaled_wrongly)
    found = agreement(next_tokens(tiny.with_kv_dtype("int8"), texts), exact)
    print(f"scales x {wrong}: {found:.1%}")
    assert found < min(CLOSE_TO_FP32.values())


@pytest.mark.parametrize(
    "config",
    [
        {"max_batched_tokens": 16},
        {"max_batched_tokens": 512},
        {"block_size": 5, "num_blocks": 180},
        {"prefix_caching": True},
        {"preemption": "swap", "host_blocks": 60, "num_blocks": 14},
        {"allocator": "contiguous-max", "max_model_len": 160},
    ],
    ids=lambda config: " ".join(map(str, config.values())),
)
def test_tokens_do_not_depend_on_how_they_were_computed(quantised: TorchExecutor, config: dict[str, Any]) -> None:
    # Rounding in another order may tip an element to the neighbouring number: close ties may fall the other way.
    found = agreement(answers(quantised, **config), answers(quantised))
    print(f"{config}: {found:.1%}")
    assert found >= 0.9


def test_a_prompt_found_in_the_cache_is_answered_as_when_it_was_computed(quantised: TorchExecutor) -> None:
    quantised.allocate(40, 16)
    poison(quantised)
    engine = Engine(EngineConfig(num_blocks=40, block_size=16), quantised)
    prompt = prompts_of([100], quantised.vocab_size)[0]
    outputs = []
    for _ in range(2):
        rid = engine.submit(prompt, SamplingParams(max_tokens=8))
        engine.run()
        outputs.append(engine.request(rid).output)
    assert engine.request(rid).cached_tokens == 96
    assert outputs[0] == outputs[1]


def stored(executor: TorchExecutor, blocks: list[int]) -> list[torch.Tensor]:
    return [tensor[blocks].clone() for tensor in executor.pool.tensors]


def test_a_copied_block_has_its_scales_and_the_source_stays(quantised: TorchExecutor) -> None:
    prompt = prompts_of([6], quantised.vocab_size)[0]
    quantised.allocate(8, 4)
    poison(quantised)
    seq = make_sequence(prompt, [5, 2])
    compute(quantised, seq, 0, 5)
    source = stored(quantised, [2])
    copied = make_sequence(prompt, [5, 3])
    plan = Plan(0, [Chunk(copied.seq_id, 5, 1, 1, copied)], copies=[(2, 3)])
    tokens = quantised.execute(plan).samples[copied.seq_id].tokens
    for before, after, copy in zip(source, stored(quantised, [2]), stored(quantised, [3]), strict=True):
        assert torch.equal(before.nan_to_num(), after.nan_to_num())
        assert torch.equal(before[:, :, 0], copy[:, :, 0])  # position 4
    assert tokens == compute(quantised, seq, 5, 1, 1)


def test_swapped_blocks_come_back_elsewhere_with_their_scales(quantised: TorchExecutor) -> None:
    prompt = prompts_of([9], quantised.vocab_size)[0]
    quantised.allocate(8, 4, host_blocks=3)
    poison(quantised)
    seq = make_sequence(prompt, [5, 2, 6])
    compute(quantised, seq, 0, 8)
    before = stored(quantised, [5, 2])
    assert not torch.equal(before[-1][0], before[-1][1])  # scales differ by block
    quantised.execute(Plan(0, swap_out=[(5, 2), (2, 0)], copies=[(7, 5), (7, 2)]))
    back = make_sequence(prompt, [1, 3, 4])
    plan = Plan(1, [Chunk(back.seq_id, 8, 1, 1, back)], swap_in=[(0, 3), (2, 1)])
    tokens = quantised.execute(plan).samples[back.seq_id].tokens
    assert all(torch.equal(a, b) for a, b in zip(before, stored(quantised, [1, 3]), strict=True))
    cold = make_sequence(prompt, [0, 2, 5])
    assert tokens == compute(quantised, cold, 0, 9, 1)


def test_slots_that_were_never_computed_are_an_error_and_not_a_guess(quantised: TorchExecutor) -> None:
    quantised.allocate(4, 4)
    poison(quantised)
    with pytest.raises(ModelError, match="NaN logits"):
        compute(quantised, make_sequence(prompts_of([6], quantised.vocab_size)[0], [0, 1]), 5, 1, 1)


# Bytes and capacity -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kv_dtype", "dtype"), [("auto", "fp32"), ("int8", "int8"), ("fp8", "fp8")])
@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_calc_counts_the_bytes_of_the_executor_and_of_its_tensors(
    tiny: TorchExecutor, kv_dtype: str, dtype: str, block_size: int
) -> None:
    executor = tiny.with_kv_dtype(kv_dtype)
    info = executor.info
    shape = CacheShape(info.num_layers, info.num_kv_heads, info.head_dim, dtype)
    per_block = executor.kv_bytes_per_block(block_size)
    assert shape.request_bytes(block_size) == per_block == block_size * info.kv_bytes_per_token
    assert executor.stored_dtype == dtype
    executor.allocate(7, block_size, host_blocks=2)
    assert sum(t.numel() * t.element_size() for t in executor.pool.tensors) == 7 * per_block


def built(kv_memory_bytes: int | None = 2**20, **engine: Any) -> Built:
    return build_engine(
        engine={"block_size": 16, **engine},
        executor="torch",
        executor_params={},
        model="tiny",
        device="cpu",
        num_blocks=None,
        kv_memory_bytes=kv_memory_bytes,
        recorder=Recorder(),
        progress=lambda text, _: None,
    )


def test_capacity_and_manifest_follow_the_kv_dtype() -> None:
    plain, quantised = built(), built(kv_dtype="int8")
    assert (plain.info["kv_dtype"], quantised.info["kv_dtype"]) == ("fp32", "int8")
    for found, per_token in ((plain, 4 * 2 * 2 * 32 * 4), (quantised, 4 * 2 * 2 * (32 + 4))):
        assert found.info["kv_bytes_per_block"] == 16 * per_token
        assert found.info["num_blocks"] == found.engine.config.num_blocks == 2**20 // (16 * per_token)
        assert found.info["dtype"] == "fp32"
        rid = found.engine.submit([1, 2, 3], SamplingParams(max_tokens=2))
        found.engine.run()
        assert len(found.engine.request(rid).output) == 2


# What is refused ----------------------------------------------------------------------------------------------------


def test_an_unknown_kv_dtype_is_answered_with_the_nearest(tiny: TorchExecutor) -> None:
    with pytest.raises(UnknownName, match=r"unknown KV dtype 'int4'; did you mean 'int8'\? \(valid: auto, fp8, int8\)"):
        EngineConfig(num_blocks=1, kv_dtype="int4")
    with pytest.raises(UnknownName, match="did you mean 'fp8'"):
        tiny.with_kv_dtype("fp6")
    with pytest.raises(UnknownName, match="unknown KV dtype 'int9'"):
        built(kv_dtype="int9")


def test_the_null_executor_stores_nothing_to_quantise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"num_blocks": 4, "kv_memory_bytes": None}
    with pytest.raises(ConfigError, match="kv_dtype is int8, but the null executor has no model"):
        build_engine(
            engine={"kv_dtype": "int8"}, executor="null", executor_params={}, model="", device="", **sizes,
            recorder=Recorder(), progress=lambda text, _: None,
        )  # fmt: skip
    words = ["bench", "-w", "default", "--executor", "null", "-o", str(tmp_path), "--kv-dtype"]
    assert main([*words, "int8"]) == 2
    assert "--kv-dtype int8: the null executor has no model" in capsys.readouterr().err
    assert main([*words, "int7"]) == 2
    assert "did you mean 'int8'" in capsys.readouterr().err
