"""Models with sliding windows, served with KV groups: tokens equal ``generate``, and old blocks are given back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from plan_driver import poison, prompts_of
from reference_greedy import Greedy
from test_model_families import FAMILIES, build, reference

from kvtop.engine.api import ConfigError, Engine, EngineConfig, Recorder, SamplingParams
from kvtop.engine.executors.torch_executor import TorchExecutor
from kvtop.engine.executors.torch_layout import group_layers, model_groups
from kvtop.engine.executors.torch_pool import LayerShape
from kvtop.engine.types import NULL_BLOCK
from kvtop.engine.windows import Windows
from kvtop.engine.worker import build_engine

WINDOW = 8
MODELS: dict[str, tuple[str, dict[str, Any], Windows]] = {
    "mistral": ("mistral", {}, (WINDOW,)),  # every layer has a window
    "gemma2": ("gemma2", {"num_hidden_layers": 4}, (None, WINDOW)),  # every other layer
    "gemma3": ("gemma3_text", {"num_hidden_layers": 6}, (None, *[WINDOW] * 5)),  # five of six layers
}
LENGTHS = (1, 7, 8, 9, 16, 17, 40, 70)  # below, at and above the window, and several times as long
NUM_OUTPUT = 14
BLOCK_SIZE = 4
MAX_LEN = LENGTHS[-1] + NUM_OUTPUT + 1
# Blocks and prompts under which some are preempted; the longest fits alone. With windows alone, only prompts shorter
# than the window grow beyond what admission counted.
TIGHT = {"mistral": (9, (1, 2, 3, 4, 5, 1, 2, 3)), "gemma2": (28, LENGTHS), "gemma3": (42, LENGTHS)}


@dataclass(frozen=True)
class Model:
    name: str
    folder: Path
    executor: TorchExecutor
    greedy: Greedy
    windows: Windows


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    family, changes, windows = MODELS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FAMILIES, family, {**FAMILIES[family], **changes})
        build(family, folder)
    executor = TorchExecutor.load(str(folder), device="cpu")
    yield Model(request.param, folder, executor, Greedy(reference(folder)), windows)
    executor.close()


class Server:
    """An engine over the model. After every step whatever nobody holds is NaN: a stale read would show at once."""

    def __init__(self, model: Model, **config: Any) -> None:
        options = {"num_blocks": 600, "block_size": BLOCK_SIZE, "max_num_seqs": 8, "max_model_len": MAX_LEN, **config}
        self.model = model
        self.config = EngineConfig(kv_groups=model.windows, **options)
        model.executor.allocate(
            self.config.num_blocks, BLOCK_SIZE, self.config.host_blocks, kv_groups=self.config.kv_groups
        )
        poison(model.executor)
        self.recorder = Recorder()
        self.engine = Engine(self.config, model.executor, recorder=self.recorder)

    def serve(self, prompts: list[list[int]]) -> list[str]:
        """Greedy answers to all prompts at once equal the model's own."""
        engine, greedy = self.engine, self.model.greedy
        ids = [engine.submit(p, SamplingParams(max_tokens=NUM_OUTPUT)) for p in prompts]
        before = greedy.excused
        while engine.has_requests:
            engine.step()
            engine.check()
            fresh = list(engine.allocator.pool.fresh)
            for k, v in self.model.executor.pool.slots:
                k[fresh] = v[fresh] = float("nan")
        for rid, prompt in zip(ids, prompts, strict=True):
            greedy.assert_equal(prompt, engine.request(rid).output)
        print(f"excused ties: {greedy.excused - before}")
        assert greedy.excused - before <= 2
        return ids


def test_the_groups_are_those_of_the_layers(model: Model) -> None:
    assert model.executor.groups.windows() == model.windows
    assert model.executor.groups.windows(max_len=WINDOW) == (None,)  # nothing ever falls out
    model.executor.allocate(7, BLOCK_SIZE, kv_groups=model.windows)
    tensors = [tensor for pair in model.executor.pool.slots for tensor in pair]
    per_block = model.executor.kv_bytes_per_block(BLOCK_SIZE, model.windows)
    assert 7 * per_block == sum(t.numel() * t.element_size() for t in tensors)
    assert per_block * len(model.windows) == model.executor.kv_bytes_per_block(BLOCK_SIZE)  # no slot is empty here


@pytest.mark.parametrize("budget", [5, 64, 2048])
@pytest.mark.parametrize("caching", [True, False], ids=["cached", "uncached"])
def test_tokens_equal_generate(model: Model, budget: int, caching: bool) -> None:
    server = Server(model, max_batched_tokens=budget, prefix_caching=caching)
    prompts = prompts_of(LENGTHS, model.executor.vocab_size)
    server.serve(prompts)
    frees = [d for event in server.recorder.drain() for d in getattr(event, "decisions", []) if d[0] == "free"]
    dropped = {d[2] for d in frees if d[-1] == "window"}
    assert dropped == {group for group, window in enumerate(model.windows) if window is not None}
    for rid, prompt in zip(server.serve(prompts), prompts, strict=True):
        whole = (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
        assert server.engine.request(rid).cached_tokens == (whole if caching else 0)
    answers = {tuple(model.greedy.generate(p, NUM_OUTPUT)[0]) for p in prompts}
    assert len(answers) > 3  # a model that always says the same would prove nothing


@pytest.mark.parametrize("budget", [5, 64])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_tokens_are_the_same_after_a_preemption(model: Model, budget: int, mode: str) -> None:
    swap = {"preemption": "swap", "host_blocks": 40} if mode == "swap" else {}
    num_blocks, lengths = TIGHT[model.name]
    server = Server(model, num_blocks=num_blocks, max_batched_tokens=budget, **swap)
    server.serve(prompts_of(lengths, model.executor.vocab_size, seed=6))
    counters = server.engine.counters()
    assert counters.preemptions > 0
    assert counters.recomputed_tokens > 0 or counters.restored_tokens > 0


def test_shared_beginnings_are_hit_where_every_group_still_has_them(model: Model) -> None:
    common, *tails = prompts_of((33, 1, 5, 12, 20), model.executor.vocab_size, seed=7)
    server = Server(model, num_blocks=160, max_batched_tokens=32)
    server.serve([common + tails[0]])
    ids = server.serve([common + tail for tail in tails])
    assert [server.engine.request(rid).cached_tokens for rid in ids] == [32] * 4


def test_the_first_blocks_of_windowed_layers_are_really_gone(model: Model) -> None:
    server = Server(model, max_batched_tokens=2048, prefix_caching=False)
    rid = server.engine.submit(prompts_of((40,), model.executor.vocab_size)[0], SamplingParams(max_tokens=4))
    server.engine.step()
    for window, table in zip(model.windows, server.engine.request(rid).block_tables, strict=True):
        gone = 0 if window is None else (40 - WINDOW + 1) // BLOCK_SIZE
        assert table.count(NULL_BLOCK) == gone
        assert NULL_BLOCK not in table[gone:]


def test_branches_of_one_prompt_equal_the_single_answer(model: Model) -> None:
    prompt = prompts_of((22,), model.executor.vocab_size)[0]
    server = Server(model, prefix_caching=True)
    server.engine.submit(prompt, SamplingParams(max_tokens=9, n=3), request_id="a")
    server.engine.run()
    server.engine.check()
    for rid in ("a", "a#1", "a#2"):
        model.greedy.assert_equal(prompt, server.engine.request(rid).output)
    assert server.engine.counters().copies == 2 * len(model.windows)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, "model"),
        ({"kv_groups": (None,)}, "all"),
        ({"allocator": "contiguous-max"}, "all"),
        ({"max_model_len": WINDOW}, "all"),
    ],
)
def test_the_worker_takes_the_groups_from_the_model_unless_told_otherwise(
    model: Model, asked: dict[str, Any], expected: str
) -> None:
    said: list[str] = []
    built = build_engine(
        engine={"block_size": BLOCK_SIZE, "max_model_len": MAX_LEN, **asked},
        executor="torch",
        executor_params={},
        model=str(model.folder),
        device="cpu",
        num_blocks=64,
        kv_memory_bytes=None,
        recorder=Recorder(),
        progress=lambda text, _: said.append(text),
    )
    windows = model.windows if expected == "model" else (None,)
    assert built.engine.config.kv_groups == windows
    assert built.info["kv_bytes_per_block"] == model.executor.kv_bytes_per_block(BLOCK_SIZE, windows)
    assert any(text.startswith("KV groups keep") for text in said) == (expected == "model")
    prompt = prompts_of((min(30, built.engine.config.effective_len - 2),), built.vocab_size)[0]
    rid = built.engine.submit(prompt, SamplingParams(max_tokens=2))
    built.engine.run()
    model.greedy.assert_equal(prompt, built.engine.request(rid).output)
    built.engine.close()


def test_groups_that_are_not_the_models_are_refused(model: Model) -> None:
    with pytest.raises(ConfigError, match=r"kv_groups is \(None, 5\), this model's layers keep"):
        model.executor.allocate(64, BLOCK_SIZE, kv_groups=(None, 5))


def layers(pattern: str) -> list[LayerShape]:
    """One layer a letter: w looks back 8 tokens, f sees all, x sees all with another KV shape."""
    return [LayerShape(i, 2, 16 if c == "x" else 8, 8, 8 if c == "w" else None) for i, c in enumerate(pattern)]


@pytest.mark.parametrize(
    ("pattern", "windows", "num_slots"),
    [
        ("w" * 32, (8,), 32),
        ("wf" * 13, (None, 8), 13),
        ("wwwwwf" * 10 + "ww", (None, *[8] * 5), 11),  # 62 layers in 66 slots
        ("wwwwwf" * 4 + "ww", (None, *[8] * 6), 4),  # 26 layers in 28 slots
        ("wfff", (None, None, None, 8), 1),
    ],
)
def test_layers_are_cut_into_groups_that_leave_little_empty(pattern: str, windows: Windows, num_slots: int) -> None:
    layout = group_layers(layers(pattern), None)
    assert layout is not None
    assert (layout.windows, len(layout.slots)) == (windows, num_slots)
    places = {(layout.group_of[i], layout.slot_of[i]) for i in range(len(pattern))}
    assert len(places) == len(pattern)  # no two layers in one place
    assert all(slot < num_slots for _, slot in places)
    for i, letter in enumerate(pattern):
        assert layout.windows[layout.group_of[i]] == (8 if letter == "w" else None)


@pytest.mark.parametrize(
    ("pattern", "says"), [("wx", "different KV shapes"), ("w" * 40 + "f", "more than half of a block")]
)
def test_layers_that_do_not_fit_into_groups_keep_every_token_and_say_why(pattern: str, says: str) -> None:
    groups = model_groups(layers(pattern))
    assert groups.windows() == (None,)
    assert groups.reason is not None
    assert says in groups.reason
    assert len(groups.layout((None,)).slots) == len(pattern)
