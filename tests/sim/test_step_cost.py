"""Costs of steps worked out by hand for a model and a machine with round numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.cost.presets import GENERIC, machine_of, preset_cost, work_of
from kvtop.engine.errors import ConfigError, ModelError
from kvtop.engine.executors.sim_cost import CostModel, Machine, Work, attention_work, num_pairs
from kvtop.model_shape import ModelShape, find_shape
from kvtop.presets import GPUS

MS = 1_000_000

# 2 layers, 4 heads over 2 KV heads of 8 elements, hidden 32, 1,000 parameters.
SHAPE = ModelShape("tiny", "by hand", 2, 2, 8, num_params=1000, num_heads=4, hidden_size=32, num_active_params=1000)
WORK = Work(
    weight_bytes=2000,  # 1,000 of 2 bytes
    flops_per_token=2000,
    kv_bytes_per_token=128,  # K and V x 2 layers x 2 KV heads x 8 elements x 2 bytes: GQA, not 4 heads
    flops_per_pair=256,  # 2 products x 2 operations x 2 layers x 4 heads x 8 elements
)
MACHINE = Machine(
    weight_bytes_s=1e6,  # all weights in 2 ms
    flops_s=1e6,  # 2 ms a token
    kv_bytes_s=1.28e6,  # 0.1 ms a token of context
    attention_flops_s=2.56e6,  # 0.1 ms a pair
    step_ns=0.5 * MS,
    seq_ns=0.01 * MS,
    ingest_ns=3 * MS,
)
COST = CostModel(name="by hand", work=WORK, machine=MACHINE)


def test_work_of_a_shape() -> None:
    assert work_of(SHAPE) == WORK


def test_a_prompt_is_bound_by_arithmetic() -> None:
    # 0.5 + 0.01 + 3 for the new request; 3 tokens x 2 ms; pairs 1 + 2 + 3 = 6 -> 0.6 ms, K and V of 3 tokens -> 0.3 ms
    assert COST.step_ns([(0, 3)], num_new=1) == round((0.5 + 0.01 + 3 + 6 + 0.6) * MS)


def test_decodes_read_their_whole_context() -> None:
    # positions 3 and 9 attend to 4 and 10 tokens: 1.4 ms; 2 tokens x 2 ms are more than the 2 ms of the weights
    assert COST.step_ns([(3, 1), (9, 1)]) == round((0.5 + 0.02 + 4 + 1.4) * MS)


def test_one_token_is_bound_by_the_weights() -> None:
    slow = CostModel(name="slow memory", work=WORK, machine=machine(weight_bytes_s=2e5))  # 10 ms for the weights
    assert slow.step_ns([(0, 1)]) == round((0.5 + 0.01 + 10 + 0.1) * MS)
    assert slow.step_ns([(0, 5)]) == round((0.5 + 0.01 + 10 + 1.5) * MS)  # 5 tokens x 2 ms: no more than the weights


def test_a_later_chunk_attends_to_what_was_before_it() -> None:
    # 2 tokens from position 10: pairs 11 + 12 = 23; K and V of 12 tokens are cheaper
    assert COST.step_ns([(10, 2)]) == round((0.5 + 0.01 + 4 + 2.3) * MS)


def test_chunks_are_bound_one_by_one() -> None:
    # bandwidth 10 times slower: a decode at 9 reads 10 tokens (10 ms > 1 ms); the chunk has 55 pairs (5.5 ms < 10 ms)
    slow = CostModel(name="slow cache", work=WORK, machine=machine(kv_bytes_s=1.28e5))
    assert slow.step_ns([(9, 1), (0, 10)]) == round((0.5 + 0.02 + 22 + 10 + 10) * MS)
    fast = CostModel(name="fast cache", work=WORK, machine=machine(kv_bytes_s=1.28e7))
    assert fast.step_ns([(9, 1), (0, 10)]) == round((0.5 + 0.02 + 22 + 1 + 5.5) * MS)


def test_a_step_of_nothing_costs_its_fixed_part() -> None:
    assert COST.step_ns([]) == round(0.5 * MS)


def test_two_gpus_share_the_work_and_pay_for_the_exchange() -> None:
    work = work_of(SHAPE, tp=2)
    assert (work.weight_bytes, work.flops_per_token, work.kv_bytes_per_token, work.flops_per_pair) == (
        1000,
        1000,
        64,
        128,
    )
    assert work.num_allreduces == 4  # two a layer
    # a ring of 2 sends 2 x (2 - 1) / 2 = 1 times the 32 x 2 bytes of a token's hidden state, 4 times a step
    assert work.wire_bytes_per_token == 4 * 64
    cost = CostModel(name="two", work=work, machine=machine(link_bytes_s=2.56e5, allreduce_ns=0.25 * MS))
    # 0.51; matrices 3 x 1 ms; 6 pairs x 0.05 ms; all-reduces 4 x 0.25 ms + 3 x 256 B / 256 kB/s
    assert cost.step_ns([(0, 3)]) == round((0.51 + 3 + 0.3 + 1 + 3) * MS)


def test_windowed_layers_stop_growing() -> None:
    shape = ModelShape(
        "window", "by hand", 2, 2, 8, num_params=1000, num_heads=4, hidden_size=32, num_active_params=1000,
        sliding_window=4, num_sliding_layers=1,
    )  # fmt: skip
    work = work_of(shape)
    assert work.pool_bytes_per_token == 128
    # 64 bytes a token and layer. A decode at position 9: 10 tokens in the full layer, 4 in the other.
    assert attention_work(work, 9, 1) == (64 * 10 + 64 * 4, 128 * 10 + 128 * 4)
    # From position 2, 4 tokens: 3 + 4 + 5 + 6 pairs in the full layer, 3 + 4 + 4 + 4 in the other, which needs the
    # 3 tokens before the first and the 4 themselves, of which only 6 exist.
    assert attention_work(work, 2, 4) == (64 * 6 + 64 * 6, 128 * 18 + 128 * 15)
    assert attention_work(work, 100, 2) == (64 * 102 + 64 * 5, 128 * (101 + 102) + 128 * 8)


@given(st.integers(0, 200), st.integers(1, 200), st.integers(1, 50))
def test_pairs_by_counting(start: int, count: int, window: int) -> None:
    assert num_pairs(start, count) == sum(p + 1 for p in range(start, start + count))
    work = Work(
        weight_bytes=1, flops_per_token=1, kv_bytes_per_token=0, flops_per_pair=0, sliding_window=window,
        window_kv_bytes_per_token=1, window_flops_per_pair=1.0,
    )  # fmt: skip
    seen = [range(max(0, p + 1 - window), p + 1) for p in range(start, start + count)]
    assert attention_work(work, start, count) == (len(set().union(*seen)), sum(map(len, seen)))


def machine(**changes: float) -> Machine:
    values = {name: getattr(MACHINE, name) for name in MACHINE.__struct_fields__}
    return Machine(**{**values, **changes})


SPANS = st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 600)), min_size=1, max_size=8)
PRESET = preset_cost(find_shape("llama-3-8b"), "h100-80gb", GPUS["h100-80gb"])
WINDOWED = preset_cost(find_shape("gemma-2-9b"), "h100-80gb", GPUS["h100-80gb"])


@given(SPANS, st.data(), st.sampled_from([COST, PRESET, WINDOWED]))
def test_more_is_never_cheaper(spans: list[tuple[int, int]], data: st.DataObject, cost: CostModel) -> None:
    before = cost.step_ns(spans)
    index = data.draw(st.integers(0, len(spans) - 1))
    start, count = spans[index]
    longer, later = list(spans), list(spans)
    longer[index] = (start, count + data.draw(st.integers(1, 100)))
    later[index] = (start + data.draw(st.integers(1, 1000)), count)
    assert cost.step_ns(longer) >= before
    assert cost.step_ns(later) >= before
    assert cost.step_ns([*spans, (0, 1)]) > before
    assert cost.step_ns(spans, num_new=1) > before


@given(SPANS)
def test_the_order_of_the_chunks_does_not_matter(spans: list[tuple[int, int]]) -> None:
    assert abs(PRESET.step_ns(spans) - PRESET.step_ns(spans[::-1])) <= 1  # sums of floats


@given(SPANS, st.sampled_from(["weight_bytes_s", "flops_s", "kv_bytes_s", "attention_flops_s"]))
def test_a_faster_machine_is_never_slower(spans: list[tuple[int, int]], rate: str) -> None:
    fast = CostModel(name="fast", work=WORK, machine=machine(**{rate: 2 * getattr(MACHINE, rate)}))
    assert fast.step_ns(spans) <= COST.step_ns(spans)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_more_gpus_have_less_each(tp: int) -> None:
    one, many = work_of(find_shape("llama-3-70b")), work_of(find_shape("llama-3-70b"), tp=tp)
    assert many.weight_bytes == -(-one.weight_bytes // tp)
    assert many.kv_bytes_per_token == one.kv_bytes_per_token // tp
    assert many.flops_per_token == one.flops_per_token / tp
    assert many.num_allreduces == 160


def test_tensor_parallelism_without_links_is_refused() -> None:
    with pytest.raises(ConfigError, match="link_bytes_s"):
        CostModel(name="no links", work=work_of(SHAPE, tp=2), machine=MACHINE)


def test_moving_blocks_costs_the_host_link() -> None:
    cost = CostModel(name="host", work=WORK, machine=machine(host_bytes_s=1e6))
    assert cost.step_ns([], host_bytes=2000) == round((0.5 + 2) * MS)
    assert cost.step_ns([], copied_bytes=1280) == round((0.5 + 2) * MS)  # read and written at 1.28 MB/s
    with pytest.raises(ConfigError, match="host_bytes_s"):
        COST.step_ns([], host_bytes=1)


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_is_a_positive_number(value: float) -> None:
    with pytest.raises(ConfigError, match="flops_s"):
        machine(flops_s=value)


def test_the_hash_is_that_of_the_numbers() -> None:
    assert CostModel(name="another name", work=WORK, machine=machine()).hash == COST.hash
    assert CostModel(name="by hand", work=WORK, machine=machine(step_ns=0.0)).hash != COST.hash


def test_llama_on_an_h100_by_hand() -> None:
    """One decode at 1,000 tokens of context: weights 8,030,261,248 x 2 B at 85 % of 3.35 TB/s, K and V 131,072 B a
    token at 70 %."""
    read_ms = 8_030_261_248 * 2 / (3.35e12 * 0.85) * 1e3
    cache_ms = 1000 * 131_072 / (3.35e12 * 0.70) * 1e3
    fixed_ms = (GENERIC.step_ns + GENERIC.seq_ns) / 1e6
    assert PRESET.step_ns([(999, 1)]) / MS == pytest.approx(read_ms + cache_ms + fixed_ms, abs=1e-5)
    assert 5.6 < read_ms < 5.7


def test_a_mixture_computes_with_what_a_token_passes() -> None:
    work = work_of(find_shape("mixtral-8x7b"))
    assert work.weight_bytes == 2 * 46_702_792_704
    assert work.flops_per_token == 2 * 12_879_925_248


def test_a_shape_without_numbers_has_no_cost() -> None:
    with pytest.raises(ModelError, match="no step has a cost"):
        work_of(ModelShape("x", "somewhere", 2, 2, 8))
    with pytest.raises(ModelError, match="mixture"):
        work_of(ModelShape("x", "somewhere", 2, 2, 8, num_params=10, num_heads=4, hidden_size=32))


@pytest.mark.parametrize("name", GPUS)
def test_presets_are_plausible(name: str) -> None:
    gpu = GPUS[name]
    assert 1e11 < gpu.bandwidth_bytes_s < 1e13
    assert 5e13 < gpu.flops_s < 3e15
    assert gpu.host_bytes_s <= gpu.link_bytes_s < gpu.bandwidth_bytes_s
    assert gpu.source
    assert machine_of(gpu).weight_bytes_s < gpu.bandwidth_bytes_s
