"""The order of admission under every queue policy, and how long anybody can be passed over."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

import pytest
from policy_helpers import distinct, make_engine, serve, step_until, submit

from kvtop.engine.api import Engine, RequestSpec, SamplingParams
from kvtop.engine.policies.registry import AGING_STEPS, QUEUE

SIZE = 4


def admission_order(engine: Engine) -> list[str]:
    """Run until idle; who was admitted when."""
    order = []
    while engine.has_requests:
        order += engine.step().admitted
    return order


def one_seat(policy: str, **config: Any) -> Engine:
    return make_engine(64, SIZE, policy=policy, max_num_seqs=1, **config)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("fcfs", "b a d c"),  # by arrival
        ("priority", "c b a d"),  # the important one, then by arrival
        ("sjf", "c d b a"),  # by prompt: 3, 5, 7, 9
        ("sjf-remaining", "b c a d"),  # by prompt + output: 8, 10, 11, 30
        ("hrrn", "c b a d"),  # nobody has waited yet, so by priority; then by prompt + output
        ("lpm", "c b a d"),  # nothing is cached: ties by (priority, arrival)
        ("dfs-weight", "c b a d"),
        ("fair", "c b a d"),  # one tenant
    ],
)
def test_the_order_of_four_by_hand(policy: str, expected: str) -> None:
    engine = one_seat(policy)
    for name, length, m, arrival, priority in (
        ("a", 9, 2, 20, 1),
        ("b", 7, 1, 10, 1),
        ("c", 3, 7, 40, 0),
        ("d", 5, 25, 30, 1),
    ):
        submit(engine, distinct(length, ord(name)), m, name, arrival_ns=arrival, priority=priority)
    assert " ".join(admission_order(engine)) == expected


@pytest.mark.parametrize("policy", sorted(QUEUE.meanings()))
def test_equals_go_in_order_of_submission(policy: str) -> None:  # N3
    engine = one_seat(policy)
    names = list("edabc")
    for index in range(5):  # all prefixes are cached, each as long and as heavy as the others
        serve(engine, distinct(9, index), rid=f"before{4 - index}")
    for index, name in enumerate(names):
        submit(engine, [*distinct(8, 4 - index), 1, 2], 1, name, arrival_ns=10**12)
    assert admission_order(engine) == names


def test_lpm_follows_the_cache_and_sjf_remaining_counts_what_is_not_cached() -> None:
    for policy, expected in (("lpm", "long half none"), ("sjf-remaining", "none long half"), ("sjf", "none half long")):
        engine = one_seat(policy)
        serve(engine, distinct(17, 0))
        submit(engine, distinct(5, 1), 1, "none")  # 5 left
        submit(engine, [*distinct(8, 0), *distinct(7, 2)], 1, "half")  # 15, 8 of them cached
        submit(engine, [*distinct(16, 0), *distinct(6, 3)], 1, "long")  # 22, 16 of them cached
        assert " ".join(admission_order(engine)) == expected, policy


def test_dfs_weight_finishes_a_subtree_before_it_goes_on() -> None:
    # The tree: stem -> {left, right}. Three wait under right, two under left, one at the stem, one elsewhere.
    stem, left, right = distinct(4, 0), distinct(4, 1), distinct(4, 2)
    prompts = {
        "other": distinct(6, 9),
        "left1": [*stem, *left, 1],
        "right1": [*stem, *right, 1],
        "stem1": [*stem, 5],
        "left2": [*stem, *left, 2],
        "right2": [*stem, *right, 2],
        "right3": [*stem, *right, 3],
    }
    orders = {}
    for policy in ("dfs-weight", "lpm"):
        engine = one_seat(policy)
        serve(engine, [*stem, *left, 0])
        serve(engine, [*stem, *right, 0])
        for name, prompt in prompts.items():
            submit(engine, prompt, 1, name)
        orders[policy] = admission_order(engine)
    assert orders["dfs-weight"] == ["stem1", "right1", "right2", "right3", "left1", "left2", "other"]
    assert orders["lpm"] == ["left1", "right1", "left2", "right2", "right3", "stem1", "other"]


def test_hrrn_prefers_short_ones_until_a_long_one_has_waited_long_enough() -> None:
    engine = one_seat("hrrn")
    submit(engine, distinct(4, 0), 20, "running")
    engine.step()
    submit(engine, distinct(30, 1), 10, "long")  # ratio after 19 steps: 19 / 40
    for _ in range(10):
        engine.step()
    submit(engine, distinct(8, 2), 2, "short")  # 9 / 10
    submit(engine, distinct(38, 3), 2, "as long")  # 9 / 40
    assert admission_order(engine) == ["short", "long", "as long"]


def test_a_preempted_sequence_returns_to_its_own_place_under_fcfs() -> None:
    engine = make_engine(4, SIZE)
    for name in "ab":
        submit(engine, distinct(7, ord(name)), 9, name)
    out = engine.step()
    while not out.preempted:
        out = engine.step()
    submit(engine, distinct(3, 9), 1, "later")
    assert out.preempted == ["b"]
    assert admission_order(engine) == ["b", "later"]


# -- starvation ------------------------------------------------------------------------------------------------------


def _waits_under_a_stream(policy: str, limit: int, *, seats: int = 2, m: int = 5, **params: int) -> int | None:
    """Steps until a request that matches nothing starts, while 20 better ones wait at any time; None: ``limit``."""
    engine = make_engine(256, SIZE, policy=policy, policy_params=params, max_num_seqs=seats, max_batched_tokens=64)
    stem = distinct(16, 0)
    serve(engine, [*stem, 1])
    numbers = count()

    def keep_coming() -> None:
        while len(engine.scheduler.waiting) < 21:
            number = next(numbers)
            submit(engine, [*stem, number], m, f"stream{number}", priority=0)

    keep_coming()
    for _ in range(2 * m):
        engine.step()
        keep_coming()
    started = engine.num_steps
    submit(engine, distinct(30, 5), 1, "stranger", priority=1)
    for _ in range(limit):
        if "stranger" in engine.step().admitted:
            return engine.num_steps - started
        keep_coming()
    return None


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight", "sjf-remaining"])
@pytest.mark.parametrize("aging_steps", [0, 10, 64])
def test_whoever_matches_nothing_waits_no_longer_than_the_bound(policy: str, aging_steps: int) -> None:
    # Past aging_steps only earlier arrivals are ahead: 20 of them on 2 seats, 5 steps each, and one that runs.
    waited = _waits_under_a_stream(policy, 1000, aging_steps=aging_steps)
    assert waited is not None
    assert aging_steps <= waited <= aging_steps + (20 // 2 + 1) * 5 + 1


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight", "sjf-remaining"])
def test_the_bound_has_a_default_and_without_it_there_is_none(policy: str) -> None:
    waited = _waits_under_a_stream(policy, AGING_STEPS + 100)
    assert waited is not None
    assert waited >= AGING_STEPS
    assert _waits_under_a_stream(policy, 2 * AGING_STEPS, aging_steps=10**9) is None


def test_hrrn_bounds_the_wait_of_a_long_one_and_sjf_says_that_it_does_not() -> None:
    # Among 20 of 22 tokens that wait, the oldest has waited at most about 60 steps: ratio 2.7, reached in 85 steps.
    waited = _waits_under_a_stream("hrrn", 400)
    assert waited is not None
    assert waited <= 120
    assert _waits_under_a_stream("sjf", 400) is None
    assert "starve" in QUEUE.meanings()["sjf"]


def test_a_stream_of_important_ones_does_not_starve_an_aged_one() -> None:
    # The stream has the better priority and ages too; among the aged only the arrival counts.
    assert _waits_under_a_stream("lpm", 200, aging_steps=5) is not None
    assert _waits_under_a_stream("priority", 200) is None


def test_the_order_of_a_dynamic_policy_is_new_in_every_step() -> None:
    rng = Random(3)
    engine = make_engine(24, SIZE, policy="lpm", max_num_seqs=2, max_batched_tokens=16)
    for number in range(30):
        stem = distinct(16, rng.randrange(3))
        spec = RequestSpec([*stem[: rng.choice([4, 8, 16])], number], SamplingParams(max_tokens=3), f"r{number}")
        engine.submit_spec(spec)
    cached = engine.allocator.cached_tokens
    heads = 0
    while engine.has_requests:
        engine.scheduler.waiting.begin_step(engine.num_steps)
        waiting = list(engine.scheduler.waiting)
        assert [cached(seq) for seq in waiting] == sorted(map(cached, waiting), reverse=True)
        heads += bool(waiting and waiting[0].order != min(seq.order for seq in waiting))
        engine.step()
    assert heads > 5
    assert step_until(engine, lambda: True) == 0
