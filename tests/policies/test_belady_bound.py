"""What belady is: the most hits any order of eviction can have, with one seat under fcfs.

One request after the other. Of the idle blocks those that stay through a request are at most the pool less the blocks
it needs at once, and a block may stay only where its parent does. Keeping a block from one use to the next is worth one
hit, whatever the block: dropping the one wanted furthest in the future is then optimal, as long as no block is
computed again before it can be a hit, which happens where a prompt ends at the end of a block.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations
from random import Random

import pytest
from policy_helpers import future_of, make_engine, submit, tree_prompts

from kvtop.engine.api import ConfigError, RequestSpec, SamplingParams
from kvtop.engine.policies.future import NEVER, FutureUses, stored_keys
from kvtop.engine.policies.registry import EVICTION

SIZE = 2
Prefix = tuple[int, ...]


def hits_of(policy: str, prompts: list[list[int]], num_blocks: int, m: int = 1, **config: int) -> int:
    """Blocks served from the cache when the prompts run one after the other."""
    future = future_of(prompts, SIZE, m) if policy == "belady" else None
    engine = make_engine(num_blocks, SIZE, eviction=policy, max_num_seqs=1, future=future, **config)
    for prompt in prompts:
        submit(engine, prompt, m)
    engine.run()
    engine.check()
    return engine.counters().hit_tokens // SIZE


def most_hits(prompts: list[list[int]], num_blocks: int) -> int:
    """By trying every choice of blocks to evict, with no engine: m = 1, so a request stores its prompt."""
    plans = [tuple(prompt) for prompt in prompts]

    @cache
    def best(index: int, cached: frozenset[Prefix]) -> int:
        if index == len(plans):
            return 0
        prompt = plans[index]
        chain = [prompt[: (i + 1) * SIZE] for i in range(len(prompt) // SIZE)]
        hits = []
        for prefix in chain[: (len(prompt) - 1) // SIZE]:
            if prefix not in cached:
                break
            hits.append(prefix)
        idle = cached - set(hits)
        room = num_blocks - -(-len(prompt) // SIZE)
        return len(hits) + max(best(index + 1, kept | set(chain)) for kept in _kept(idle, room, set(hits)))

    return best(0, frozenset())


def _kept(idle: frozenset[Prefix], room: int, hits: set[Prefix]) -> list[frozenset[Prefix]]:
    """Every way to keep as much as there is room for, no child without its parent."""
    choices = combinations(sorted(idle), min(room, len(idle)))
    sets = [frozenset(choice) for choice in choices]
    return [s for s in sets if all(len(p) == SIZE or p[:-SIZE] in s or p[:-SIZE] in hits for p in s)]


@pytest.mark.parametrize("start", range(0, 120, 40))
def test_no_choice_of_evictions_has_more_hits(start: int) -> None:
    differing = 0
    for seed in range(start, start + 40):
        rng = Random(seed)
        prompts = tree_prompts(rng, rng.randint(6, 10), SIZE, inside=True)
        num_blocks = rng.randint(5, 8)
        best = most_hits(prompts, num_blocks)
        assert hits_of("belady", prompts, num_blocks) == best, seed
        differing += hits_of("lru", prompts, num_blocks) < best
    assert differing >= 10, "workloads under which every order is optimal prove nothing"


@pytest.mark.parametrize("policy", [name for name in sorted(EVICTION.meanings()) if name != "belady"])
def test_no_policy_has_more_hits(policy: str) -> None:
    better = 0
    for seed in range(40):
        rng = Random(seed)
        prompts = tree_prompts(rng, 60, SIZE, inside=True)
        num_blocks, budget = rng.randint(6, 16), rng.choice([3, 4096])
        m = rng.choice([1, 4])
        bound = hits_of("belady", prompts, num_blocks, m, max_batched_tokens=budget)
        hits = hits_of(policy, prompts, num_blocks, m, max_batched_tokens=budget)
        assert hits <= bound, seed
        better += bound > hits
    assert better >= 20


def test_where_prompts_end_with_a_block_the_bound_is_still_close() -> None:
    missed = total = 0
    for seed in range(60):
        rng = Random(seed)
        prompts = tree_prompts(rng, 8, SIZE, inside=False)
        num_blocks = rng.randint(5, 8)
        hits, best = hits_of("belady", prompts, num_blocks), most_hits(prompts, num_blocks)
        assert hits <= best
        missed += best - hits
        total += best
    assert missed <= total // 50


def test_a_block_that_will_be_computed_anyway_is_not_worth_a_place() -> None:
    # A ends with its second block, so nobody can hit that one; B ends inside its second.
    specs = [
        RequestSpec([1, 2, 3, 4]),
        RequestSpec([5, 6, 7, 8, 9]),
        RequestSpec([1, 2, 3, 4]),
        RequestSpec([5, 6, 7, 8, 9]),
    ]
    future = FutureUses(specs, 2)
    (a1, a1_hit), (a2, a2_hit) = stored_keys(specs[0], 2)
    (b1, _), (b2, _) = stored_keys(specs[1], 2)
    assert (a1_hit, a2_hit) == (True, False)
    future.now = 1
    assert [future.next_use(key) for key in (a1, a2, b1, b2)] == [2, NEVER, 3, 3]
    assert future.next_mention(a2) == 2
    future.now = 3
    assert [future.next_use(key) for key in (a1, a2, b1, b2)] == [NEVER] * 4


def test_keys_go_with_time_while_a_block_stays_idle() -> None:
    # X was kept for request 2, which is aborted before it starts; once that is past, Y is wanted sooner than X.
    x, y, z = [1, 2, 0], [3, 4, 0], [5, 6, 0]
    prompts = [x, y, x, [7], z, y, x]
    engine = make_engine(3, SIZE, eviction="belady", max_num_seqs=1, future=future_of(prompts, SIZE))
    for index, prompt in enumerate(prompts):
        submit(engine, prompt, rid=str(index))
    engine.step()
    engine.abort("2")
    engine.run()
    assert [engine.request(str(index)).cached_tokens for index in (4, 5, 6)] == [0, 2, 0]


def test_keys_are_those_of_the_engine() -> None:
    output = tuple(range(50, 59))
    spec = RequestSpec(
        [*range(9)],
        SamplingParams(max_tokens=8, forced_output=output),
        "a",
        extra_key={"salt": "s", "adapter": "x"},
        block_keys={1: "image"},
    )
    engine = make_engine(16, SIZE)
    engine.submit_spec(spec)
    engine.run()
    cache = engine.allocator.cache  # pyright: ignore[reportAttributeAccessIssue]
    published = {key for key in cache.key if key is not None}
    assert published == {key for key, _ in stored_keys(spec, SIZE)}
    assert len(published) == (9 + 8 - 1) // SIZE


def test_rejected_prompts_want_nothing_and_count_as_requests() -> None:
    specs = [RequestSpec([1, 2, 3]), RequestSpec([1, 2, *range(50)]), RequestSpec([1, 2, 3])]
    future = FutureUses(specs, 2, max_prompt=10)
    ((key, _),) = stored_keys(specs[0], 2)
    future.now = 0
    assert future.next_use(key) == 2


def test_without_a_future_belady_is_refused() -> None:
    with pytest.raises(ConfigError, match="belady needs the whole workload beforehand"):
        make_engine(4, 2, eviction="belady")


def test_a_future_serves_one_engine_step_by_step() -> None:
    future = future_of([[1, 2, 3]] * 3, SIZE)
    engine = make_engine(8, SIZE, eviction="belady", max_num_seqs=1, future=future)
    seen = []
    for _ in range(3):
        submit(engine, [1, 2, 3])
        engine.run()
        seen.append(future.now)
    assert seen == [0, 1, 2]
