"""The executor alone: tokens equal ``generate``, and what it reads and writes in the pool."""

from __future__ import annotations

import pytest
import torch
from plan_driver import compute, make_sequence, poison, prompts_of, serve
from reference_greedy import Greedy

from kvtop.engine.errors import ConfigError, ModelError
from kvtop.engine.executors.torch_executor import TorchExecutor
from kvtop.engine.types import Chunk, Plan, SamplingParams

LENGTHS = (1, 15, 16, 17, 33, 100, 257, 600)


@pytest.mark.parametrize("budget", [16, 64, None])
@pytest.mark.parametrize("block_size", [16, 5])
def test_packed_prompts_equal_generate(
    tiny: TorchExecutor, tiny_greedy: Greedy, budget: int | None, block_size: int
) -> None:
    prompts = prompts_of(LENGTHS, tiny.vocab_size)
    for prompt, tokens in zip(prompts, serve(tiny, prompts, 12, block_size=block_size, budget=budget), strict=True):
        tiny_greedy.assert_equal(prompt, tokens)
    assert tiny_greedy.excused <= 1


@pytest.mark.parametrize("length", [4, 5])
def test_decode_writes_the_next_position_and_reads_no_poison(
    tiny: TorchExecutor, tiny_greedy: Greedy, length: int
) -> None:
    prompt = prompts_of([length], tiny.vocab_size)[0]
    tiny.allocate(8, 4)
    poison(tiny)
    seq = make_sequence(prompt, [6, 1, 3])
    seq.tokens += compute(tiny, seq, 0, length, 1)
    for _ in range(3):
        seq.tokens += compute(tiny, seq, seq.num_computed, 1, 1)
    tiny_greedy.assert_equal(prompt, seq.output)
    written = {(b, o) for b, o in (~tiny.pool.k[0][:, 0, :, 0].isnan()).nonzero().tolist()}
    assert written == {(seq.block_table[p // 4], p % 4) for p in range(length + 3)}


def test_adopted_blocks_are_read_and_not_written_again(tiny: TorchExecutor, tiny_greedy: Greedy) -> None:
    prompt = prompts_of([9], tiny.vocab_size)[0]
    tiny.allocate(8, 4)
    poison(tiny)
    first = make_sequence(prompt, [5, 2, 7])
    cold = compute(tiny, first, 0, 9, 1)
    before = [tensor[[5, 2]].clone() for tensor in (*tiny.pool.k.values(), *tiny.pool.v.values())]
    second = make_sequence(prompt, [5, 2, 0])
    assert compute(tiny, second, 8, 1, 1) == cold
    tiny_greedy.assert_equal(prompt, cold)
    after = [tensor[[5, 2]] for tensor in (*tiny.pool.k.values(), *tiny.pool.v.values())]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_rewound_sequence_equals_a_cold_one(tiny: TorchExecutor, tiny_greedy: Greedy) -> None:
    old, new = prompts_of([10, 2], tiny.vocab_size)
    tiny.allocate(8, 4)
    poison(tiny)
    seq = make_sequence(old, [5, 2, 7])
    compute(tiny, seq, 0, 10)
    rewound = make_sequence(old[:6] + new, [5, 2])
    tiny_greedy.assert_equal(rewound.tokens, compute(tiny, rewound, 6, 2, 1))


def test_copies_happen_before_the_chunks(tiny: TorchExecutor, tiny_greedy: Greedy) -> None:
    prompt = prompts_of([6], tiny.vocab_size)[0]
    tiny.allocate(8, 4)
    poison(tiny)
    seq = make_sequence(prompt, [5, 2])
    compute(tiny, seq, 0, 5)
    copied = make_sequence(prompt, [5, 3])
    plan = Plan(0, [Chunk(copied.seq_id, 5, 1, 1, copied)], copies=[(2, 3)])
    tiny_greedy.assert_equal(prompt, tiny.execute(plan).samples[copied.seq_id].tokens)
    assert tiny.pool.k[0][2, :, 1].isnan().all()  # position 5 went to the copy, not to the source


def test_swapped_blocks_come_back_elsewhere_with_their_content(tiny: TorchExecutor, tiny_greedy: Greedy) -> None:
    prompt = prompts_of([6], tiny.vocab_size)[0]
    tiny.allocate(8, 4, host_blocks=3)
    poison(tiny)
    seq = make_sequence(prompt, [5, 2])
    compute(tiny, seq, 0, 5)
    tiny.execute(Plan(0, swap_out=[(5, 2), (2, 0)], copies=[(7, 5), (7, 2)]))  # out first, then overwritten
    back = make_sequence(prompt, [1, 3])
    plan = Plan(1, [Chunk(back.seq_id, 5, 1, 1, back)], swap_in=[(2, 1), (0, 3)])
    tiny_greedy.assert_equal(prompt, tiny.execute(plan).samples[back.seq_id].tokens)


def test_only_chunks_that_sample_return_tokens(tiny: TorchExecutor) -> None:
    tiny.allocate(8, 4)
    a, b = (make_sequence(p, t) for p, t in zip(prompts_of([6, 3], tiny.vocab_size), ([0, 1], [2]), strict=True))
    result = tiny.execute(Plan(0, [Chunk(a.seq_id, 0, 4, 0, a), Chunk(b.seq_id, 0, 3, 1, b)]))
    assert set(result.samples) == {b.seq_id}
    assert result.device_ns > 0
    assert tiny.execute(Plan(1, [Chunk(a.seq_id, 4, 1, 0, a)])).samples == {}


def test_tokens_are_the_same_alone_and_in_a_batch(tiny: TorchExecutor, tiny_greedy: Greedy) -> None:
    prompts = prompts_of([30, 8, 19, 45, 3, 60, 12], tiny.vocab_size, seed=9)
    alone = serve(tiny, prompts[:1], 10, budget=3)[0]
    assert serve(tiny, prompts, 10)[0] == alone
    tiny_greedy.assert_equal(prompts[0], alone)


def test_two_executors_in_one_process_do_not_share_anything(tiny: TorchExecutor) -> None:
    other = TorchExecutor.load("tiny", device="cpu")
    prompt = prompts_of([9], tiny.vocab_size)[0]
    tiny.allocate(8, 4)
    other.allocate(8, 4)
    poison(tiny)
    poison(other)
    a, b = make_sequence(prompt, [1, 2, 3]), make_sequence(prompt, [1, 2, 3])
    compute(tiny, a, 0, 8)
    assert other.pool.k[0].isnan().all()
    compute(other, b, 0, 8)
    assert compute(tiny, a, 8, 1, 1) == compute(other, b, 8, 1, 1)
    other.close()


def test_branches_sampled_from_one_row_differ_and_are_reproducible(tiny: TorchExecutor) -> None:
    params = SamplingParams(n=2, seed=7, temperature=1.0, max_tokens=8)
    prompt = prompts_of([9], tiny.vocab_size)[0]

    def pair() -> list[list[int]]:
        tiny.allocate(12, 4)
        seq = make_sequence(prompt, [0, 1, 2, 3, 4], params)
        firsts = compute(tiny, seq, 0, 9, 2)
        branches = []
        for branch, first in enumerate(firsts):
            seq = make_sequence(prompt, [0, 1, 5 + 3 * branch, 6 + 3 * branch, 7 + 3 * branch], params)
            compute(tiny, seq, 0, 9)
            seq.branch, seq.tokens = branch, [*prompt, first]
            while seq.num_output < 8:
                seq.tokens += compute(tiny, seq, seq.num_tokens - 1, 1, 1)
            branches.append(seq.output)
        return branches

    one, two = pair()
    assert one != two
    assert pair() == [one, two]


def test_a_seeded_request_draws_the_same_tokens_alone_and_in_a_batch(tiny: TorchExecutor) -> None:
    params = SamplingParams(seed=3, temperature=0.8, top_k=50, top_p=0.9)
    prompt, other = prompts_of([9, 30], tiny.vocab_size)
    tiny.allocate(12, 4)
    alone = compute(tiny, make_sequence(prompt, [0, 1, 2], params), 0, 9, 1)
    seqs = [make_sequence(other, list(range(3, 11))), make_sequence(prompt, [0, 1, 2], params)]
    plan = Plan(0, [Chunk(s.seq_id, 0, s.num_tokens, 1, s) for s in seqs])
    assert tiny.execute(plan).samples[seqs[1].seq_id].tokens == alone


def test_nan_logits_name_the_request(tiny: TorchExecutor) -> None:
    tiny.allocate(4, 4)
    poison(tiny)
    seq = make_sequence(prompts_of([6], tiny.vocab_size)[0], [0, 1])
    with pytest.raises(ModelError, match=rf"NaN logits for {seq.seq_id}"):
        compute(tiny, seq, 5, 1, 1)  # positions 0-4 were never computed


def test_a_pool_that_does_not_fit_says_what_would(tiny: TorchExecutor) -> None:
    with pytest.raises(ConfigError, match=r"1000000000 blocks of 16 tokens need .* MiB free: at most \d+ blocks fit"):
        tiny.allocate(1_000_000_000, 16)


def test_kv_bytes_are_those_of_the_tensors(tiny: TorchExecutor) -> None:
    tiny.allocate(7, 5)
    tensors = (*tiny.pool.k.values(), *tiny.pool.v.values())
    assert 7 * tiny.kv_bytes_per_block(5) == sum(t.numel() * t.element_size() for t in tensors)
    assert tiny.info.kv_bytes_per_token == 4 * 2 * 2 * 32 * 4  # layers x (K, V) x KV heads x head size x fp32
