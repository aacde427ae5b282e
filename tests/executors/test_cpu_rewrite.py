"""What of a model kvtop's CPU modules replace, and what they leave alone; tokens stay those of transformers."""

from __future__ import annotations

import copy
import random
from collections import Counter

import pytest
import torch
from plan_driver import prompts_of, serve
from reference_greedy import Greedy
from test_model_families import FAMILIES
from torch import Tensor, nn

from kvtop.engine.executors import cpu_modules, cpu_rewrite, torch_attention
from kvtop.engine.executors.torch_executor import TorchExecutor
from kvtop.kernels.cpu import jit, ops

pytestmark = pytest.mark.skipif(jit.missing() is not None, reason=f"no CPU kernels here: {jit.missing()}")

# How many attentions, MLPs and whole layers are fused, of 3 layers (2 of gpt2).
FUSED = {
    "llama": (3, 3, 3),
    "qwen2": (3, 3, 3),
    "qwen3": (3, 3, 3),
    "mistral": (3, 3, 3),
    "phi3": (0, 0, 0),  # q, k, v and gate, up are one linear each already
    "gemma": (3, 3, 3),
    "gemma2": (3, 3, 0),  # four norms a layer
    "gemma3_text": (3, 3, 0),
    "qwen3_moe": (3, 0, 0),  # experts are no linears
    "gpt2": (0, 0, 0),
}


@pytest.mark.skipif(jit.missing() is None and jit.lanes() > 8, reason="heads of 16 are no whole vectors here")
@pytest.mark.parametrize("family", FUSED)
def test_what_is_replaced(family: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch_attention.register()
    config = dict(FAMILIES[family])
    if family != "gpt2":
        config["head_dim"] = 16
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(family, **config), attn_implementation=torch_attention.NAME
    )
    model.eval().requires_grad_(False)
    before, weights = {name: p.data_ptr() for name, p in model.named_parameters()}, num_weights(model)
    text = cpu_rewrite.rewrite(model, [])
    kinds = Counter(type(m) for m in model.modules())
    fused = (cpu_modules.FusedAttention, cpu_modules.FusedMLP, cpu_modules.FusedLayer)
    assert tuple(kinds[kind] for kind in fused) == FUSED[family], text
    assert kinds[nn.Linear] == 0
    if family != "gpt2":
        assert not [
            m for m in model.modules() if type(m).__name__.endswith("RMSNorm") and type(m).__module__[:5] != "kvtop"
        ]
    left = {name: p.data_ptr() for name, p in model.named_parameters()}
    assert left.items() <= before.items()  # what is not replaced was not copied,
    products = {id(p): p for m in model.modules() for p in vars(m).values() if isinstance(p, ops.Packed)}
    copied = sum(n * product.depth for product in products.values() for n in product.outputs)
    assert copied + num_weights(model) == weights  # and what is replaced is there once


def num_weights(model: nn.Module) -> int:
    """Elements of matrices; a tied one counts once."""
    return sum(p.numel() for p in model.parameters() if p.ndim > 1)


def test_an_embedding_reads_the_head_it_is_tied_to() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.other = nn.Embedding(50, 12), nn.Embedding(50, 12)
            self.head = nn.Linear(12, 50, bias=False)
            self.head.weight = self.embed.weight

    model = Tied().requires_grad_(False)
    rows, other, ids = model.embed.weight.clone(), model.other, torch.tensor([[0, 49, 7], [24, 23, 0]])
    x = torch.randn(3, 12)
    want = model.head(x)
    assert "1 linear, 1 embedding" in rewritten(model)
    assert model.other is other
    assert torch.equal(model.embed(ids), rows[ids])
    assert (model.head(x) - want).norm() < 1e-6 * want.norm()
    for wrong in (-1, 50, 71):  # 72 rows are there, with what fills the last panel
        with pytest.raises(IndexError, match=f"row {wrong} of a weight of 50"):
            model.embed(torch.tensor([3, wrong]))
    twin = copy.deepcopy(model)
    assert twin.embed.product is twin.head.product is not model.head.product


class Summed(nn.Embedding):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).cumsum(-1)


class Longer(nn.Embedding):
    def forward(self, input: Tensor) -> Tensor:
        return torch.nn.functional.pad(super().forward(input), (0, 1))


class OfTwo(nn.Embedding):
    def forward(self, input: Tensor, other: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(input + other)


@pytest.mark.parametrize("kind", [Summed, Longer, OfTwo])
def test_an_embedding_that_does_more_than_scale_keeps_its_weight(kind: type[nn.Embedding]) -> None:
    model = nn.ModuleList([kind(50, 12), nn.Linear(12, 50, bias=False)]).requires_grad_(False)
    embedding, head = model
    head.weight = embedding.weight
    assert rewritten(model) == "CPU kernels (1 linear)"
    assert model[0] is embedding


def rewritten(model: nn.Module) -> str:
    """What ``rewrite`` says of a model of any class."""
    return cpu_rewrite.rewrite(Typed(model), [])


class Typed(nn.Module):
    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


def test_a_layer_that_scales_by_position_keeps_its_own_attention() -> None:
    """Fused it would be wrong beyond the positions that a short check sees."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention

    class Scaled(LlamaAttention):
        def forward(self, hidden_states: Tensor, position_ids: Tensor, **other):  # type: ignore[override]
            return super().forward(hidden_states * (1 + position_ids[..., None] // 8192), **other)

    config = LlamaConfig(hidden_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=32)
    config._attn_implementation = torch_attention.NAME
    torch_attention.register()
    for kind, count in ((LlamaAttention, 1), (Scaled, 0)):
        model = nn.Sequential(kind(config, 0)).eval().requires_grad_(False)
        assert cpu_rewrite._replace(model, cpu_rewrite._attention) == count


def test_norms_of_another_formula_are_kept() -> None:
    class OddRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(32)), 1e-6

        def forward(self, x: Tensor) -> Tensor:
            return x / x.abs().mean(-1, keepdim=True) * self.weight

    assert cpu_rewrite._norm(OddRMSNorm().requires_grad_(False)) is None


def test_without_kernels_it_is_said_and_plain_torch_serves(
    monkeypatch: pytest.MonkeyPatch, tiny_greedy: Greedy
) -> None:
    monkeypatch.setattr(jit, "unusable", lambda: "the test says so")
    executor = TorchExecutor.load("tiny", device="cpu")
    assert "the test says so" in executor.info.computed_by
    assert any("the test says so" in notice for notice in executor.info.notices)
    executor.allocate(4, 16)
    assert executor.pool.attention == "torch"
    assert not [m for m in executor._model.modules() if type(m).__module__.startswith("kvtop.")]
    prompts = prompts_of((1, 17, 40), executor.vocab_size)
    for prompt, tokens in zip(prompts, serve(executor, prompts, 8), strict=True):
        tiny_greedy.assert_equal(prompt, tokens)


def test_the_default_model_is_replaced_whole(smollm2: TorchExecutor) -> None:
    assert (
        smollm2.info.modules
        == "CPU kernels (61 norms, 30 MLPs, 30 attentions, 30 layers, 1 stack, 1 linear, 1 embedding)"
    )
    smollm2.allocate(4, 16)
    assert smollm2.pool.attention == "cpu"


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_smollm2_two_hundred_random_prompts(smollm2: TorchExecutor, smollm2_greedy: Greedy) -> None:
    stream = random.Random(1)
    lengths = [stream.randint(1, 300) for _ in range(200)]
    prompts = prompts_of(lengths, smollm2.vocab_size, seed=17)
    for begin in range(0, 200, 25):
        part = prompts[begin : begin + 25]
        for prompt, tokens in zip(part, serve(smollm2, part, 8, budget=192), strict=True):
            smollm2_greedy.assert_equal(prompt, tokens)
    print(f"excused ties: {smollm2_greedy.excused} in {smollm2_greedy.compared} tokens")
    assert smollm2_greedy.excused <= 4
