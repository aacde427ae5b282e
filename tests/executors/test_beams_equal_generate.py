"""Beam search over real models: answers equal transformers' own ``generate(num_beams=k)``, whatever the engine does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from plan_driver import poison, prompts_of
from reference_beams import Beams
from test_model_families import FAMILIES, build, reference

from kvtop.engine.api import Engine, EngineConfig, KVCounters, SamplingParams
from kvtop.engine.executors.torch_executor import TorchExecutor
from kvtop.engine.windows import Windows

LENGTHS = (1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33)  # around the boundaries of blocks of 4 and 16
STOPS = ((), (3,), (3, 7, 9), tuple(range(0, 64, 6)))  # of 64 tokens: from never to often
Case = tuple[list[int], SamplingParams]


@dataclass(frozen=True)
class Model:
    executor: TorchExecutor
    beams: Beams
    windows: Windows = (None,)


def load(family: str, folder: Path, windows: Windows = (None,)) -> Model:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FAMILIES, family, {**FAMILIES[family], "vocab_size": 64})
        build(family, folder)
    return Model(TorchExecutor.load(str(folder), device="cpu"), Beams(reference(folder)), windows)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    model = load("llama", tmp_path_factory.mktemp("llama"))
    yield model
    model.executor.close()


def cases(vocab_size: int = 64) -> list[Case]:
    """Every penalty with every early stopping and number of beams, once; the rest goes round."""
    whole = itertools.product((0.0, 1.0, 2.0, -1.0), (True, False, "never"), (1, 2, 3, 4))
    made = []
    for i, (penalty, early, num_beams) in enumerate(whole):
        most = (1, 2, 5, 9, 14)[i % 5]
        params = SamplingParams(
            max_tokens=most,
            min_tokens=(0, 0, most // 2)[i % 3],
            num_beams=num_beams,
            n=1 + i % num_beams,
            length_penalty=penalty,
            early_stopping=early,
            stop_token_ids=STOPS[(i // 4 + i) % 4],
        )
        made.append((prompts_of((LENGTHS[i % len(LENGTHS)],), vocab_size, seed=i)[0], params))
    return made


def serve(model: Model, requests: list[Case], **config: Any) -> KVCounters:
    """All requests at once over a pool full of NaN: every answer equals the reference. Returns what it took."""
    options = EngineConfig(kv_groups=model.windows, **{"block_size": 4, "max_num_seqs": 8, **config})
    model.executor.allocate(options.num_blocks, options.block_size, options.host_blocks, kv_groups=options.kv_groups)
    poison(model.executor)
    engine = Engine(options, model.executor)
    ids = [engine.submit(prompt, params) for prompt, params in requests]
    while engine.has_requests:
        engine.step()
        engine.check()
    excused = model.beams.excused
    for rid, (prompt, params) in zip(ids, requests, strict=True):
        names = [rid, *(f"{rid}#{i}" for i in range(1, params.n))]
        model.beams.assert_equal(prompt, params, [engine.request(name).output for name in names])
    print(f"excused ties: {model.beams.excused - excused} of {len(requests)} requests")
    assert model.beams.excused - excused <= 1, "more ties than chance explains"
    return engine.counters()


@pytest.mark.parametrize("budget", [8, 64, 2048])
@pytest.mark.parametrize("caching", [True, False], ids=["cached", "uncached"])
def test_batched_with_each_other_and_in_chunks(llama: Model, budget: int, caching: bool) -> None:
    counters = serve(llama, cases(), num_blocks=300, max_batched_tokens=budget, prefix_caching=caching)
    assert counters.copies > 20


@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_other_block_sizes(llama: Model, block_size: int) -> None:
    serve(llama, cases()[::2], num_blocks=400 // block_size, block_size=block_size, max_num_seqs=12)


@pytest.mark.parametrize(
    "config",
    [
        {"num_blocks": 14},
        {"num_blocks": 14, "prefix_caching": False, "max_batched_tokens": 8},
        {"num_blocks": 13, "preemption": "swap", "host_blocks": 30, "prefix_caching": False},
        {"num_blocks": 13, "preemption": "swap", "host_blocks": 4, "deferred_free_steps": 1},
        {"num_blocks": 14, "policy": "sjf", "victim": "most-blocks", "batch_policy": "prefill-first"},
    ],
    ids=["recompute", "uncached", "swap", "little-host-memory", "other-policies"],
)
def test_a_tight_pool_changes_no_answer(llama: Model, config: dict[str, Any]) -> None:
    counters = serve(llama, cases(), max_model_len=52, **config)
    assert counters.preemptions > 20


def test_beams_that_do_not_fit_together_go_on_one_after_the_other(llama: Model) -> None:
    """Four beams of up to 15 blocks each in a pool of 15, nothing cached: three always wait."""
    prompt = prompts_of((47,), 64, seed=3)[0]
    params = SamplingParams(max_tokens=10, num_beams=4, n=4)
    counters = serve(llama, [(prompt, params)], num_blocks=15, prefix_caching=False)
    assert counters.preemptions > 20


@pytest.mark.parametrize("allocator", ["contiguous-max", "contiguous-pow2", "contiguous-oracle"])
@pytest.mark.parametrize("num_blocks", [104, 16], ids=["roomy", "one-at-a-time"])
def test_contiguous_forks_copy(llama: Model, allocator: str, num_blocks: int) -> None:
    counters = serve(llama, cases()[::2], num_blocks=num_blocks, max_model_len=52, allocator=allocator)
    # Where one reservation is the whole pool, each beam is computed again from its first token.
    assert (counters.copies > 0) == (num_blocks == 104 or allocator != "contiguous-max")
    assert counters.recomputed_tokens > 0 or num_blocks == 104


@pytest.mark.parametrize(("family", "windows"), [("mistral", (8,)), ("gemma2", (None, 8, 8))])
def test_window_groups(family: str, windows: Windows, tmp_path: Path) -> None:
    model = load(family, tmp_path, windows)
    serve(model, cases()[1::3], num_blocks=200, max_model_len=52)
    counters = serve(model, cases()[1::3], num_blocks=39, max_model_len=52, prefix_caching=False)
    assert counters.preemptions > 0 or windows == (8,)  # windows alone stay small
    model.executor.close()


def test_the_end_token_of_the_model_ends_an_answer(llama: Model) -> None:
    """As ``stop_token_ids``, but known to the engine: it is ignored unless asked for."""
    prompt = prompts_of((9,), 64, seed=1)[0]
    llama.executor.allocate(64, 4)
    engine = Engine(EngineConfig(num_blocks=64, block_size=4, eos_token_ids=STOPS[3]), llama.executor)
    params = SamplingParams(max_tokens=14, num_beams=3, n=3)
    engine.submit(prompt, replace(params, ignore_eos=False), request_id="ends")
    engine.submit(prompt, params, request_id="goes on")
    engine.run()
    for rid, stops in (("ends", STOPS[3]), ("goes on", ())):
        answers = [engine.request(name).output for name in (rid, f"{rid}#1", f"{rid}#2")]
        llama.beams.assert_equal(prompt, replace(params, stop_token_ids=stops), answers)
    assert engine.request("ends").finish_reason == "stop"
    assert engine.request("goes on").finish_reason == "length"


def test_what_is_compared_depends_on_every_parameter(llama: Model) -> None:
    """Equal answers prove nothing about a parameter that changes none of them."""
    base = SamplingParams(max_tokens=14, num_beams=3, n=3, stop_token_ids=STOPS[3])
    prompts = prompts_of(LENGTHS[::2], 64, seed=21)

    def answers(**changes: Any) -> list[list[list[int]]]:
        return [llama.beams.generate(prompt, replace(base, **changes))[0] for prompt in prompts]

    plain = answers()
    for changes in (
        {"length_penalty": 0.0},
        {"length_penalty": 2.0},
        {"length_penalty": -1.0},
        {"early_stopping": True},
        {"early_stopping": "never"},
        {"num_beams": 4},
        {"min_tokens": 6},
        {"stop_token_ids": (3,)},
    ):
        assert answers(**changes) != plain, changes
    ends = [answer[-1] in STOPS[3] for answer in itertools.chain(*plain)]
    assert len(set(ends)) == 2  # some stop, some are cut off


@pytest.mark.parametrize(
    ("penalty", "early", "num_beams"),
    [
        (1.0, False, 4),
        pytest.param(2.0, "never", 3, marks=pytest.mark.slow),
        pytest.param(-1.0, True, 2, marks=pytest.mark.slow),
        pytest.param(0.0, True, 4, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_smollm2(smollm2: TorchExecutor, smollm2_beams: Beams, penalty: float, early: Any, num_beams: int) -> None:
    questions = ("What is the capital of France?", "Say one word.")
    stops = smollm2.eos_token_ids[:1]
    params = SamplingParams(
        max_tokens=12,
        num_beams=num_beams,
        n=num_beams,
        length_penalty=penalty,
        early_stopping=early,
        stop_token_ids=stops,
    )
    requests = [(smollm2.encode_chat(question), params) for question in questions]
    serve(Model(smollm2, smollm2_beams), requests, num_blocks=24, block_size=16, max_batched_tokens=32)
