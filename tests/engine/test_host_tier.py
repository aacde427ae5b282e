"""The host tier: evicted prefixes found again in host memory. Small cases, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from engine_helpers import decisions, distinct, kv_engine, serve
from host_tier_helpers import LONG, A, B, forget_head, found, kept, tier_engine

from kvtop.engine.api import ConfigError, EngineConfig, Plan

# -- one request after the other -----------------------------------------------------------------------------------


def test_what_was_evicted_is_found_again() -> None:
    engine = tier_engine(2, 2)
    assert found(engine, A) == (0, 0)
    assert found(engine, B) == (0, 0)
    assert kept(engine) == [tuple(A), tuple(A[:4])]  # a chain goes deepest first
    decisions(engine)
    assert found(engine, A) == (0, 4)  # the second block holds the last token: it is computed
    counters = engine.counters()
    assert (counters.query_tokens, counters.hit_tokens, counters.host_hit_tokens) == (24, 0, 4)
    assert (counters.host_cached, counters.host_used) == (2, 0)
    # Room for what B leaves: the deep block of A first, then B's own deep block. The one being read stays.
    assert kept(engine) == [tuple(A[:4]), tuple(B[:4])]


def test_the_decisions_say_where_everything_went() -> None:
    engine = tier_engine(2, 2)
    serve(engine, A, rid="a")
    serve(engine, B, rid="b")
    log = decisions(engine, "evict", "host_store", "host_evict")
    assert [(d["kind"], d["request_id"], d["block"]) for d in log] == [
        ("evict", "b", 1), ("evict", "b", 0), ("host_store", "b", 1), ("host_store", "b", 0),
    ]  # fmt: skip
    assert [(d["other"], d["reason"]) for d in log[2:]] == [(0, "copied"), (1, "copied")]
    serve(engine, A, rid="c")
    log = decisions(engine, "host_load", "host_hit", "host_evict", "lookup")
    assert [d["kind"] for d in log] == ["host_evict", "host_evict", "host_load", "host_hit", "lookup"]
    # The second one had been stored for this very request: the copy is not made.
    assert [(d["request_id"], d["other"], d["idle_steps"]) for d in log[:2]] == [("c", 0, 1), ("c", 0, 0)]
    assert (log[2]["request_id"], log[2]["other"]) == ("c", 1)
    assert log[3]["num_tokens"] == 4
    assert (log[4]["num_tokens"], log[4]["reason"]) == (4, "last_token")


def test_a_match_goes_on_where_that_of_the_device_ends() -> None:
    engine = tier_engine(3, 2)
    serve(engine, LONG)
    serve(engine, distinct(5, 1))  # needs two blocks, one is fresh: only the deeper one goes
    decisions(engine)
    assert found(engine, LONG, rid="again") == (4, 4)
    kinds = [(d["kind"], d.get("reason")) for d in decisions(engine, "share", "host_load", "lookup")]
    assert kinds == [("share", "hit"), ("host_load", None), ("lookup", "last_token")]
    assert (engine.counters().hit_tokens, engine.counters().host_hit_tokens) == (4, 4)


def test_of_a_chain_longer_than_the_tier_its_head_is_kept() -> None:
    engine = tier_engine(3, 1)
    serve(engine, LONG)
    serve(engine, distinct(9, 1))
    assert kept(engine) == [(1, 2, 3, 4)]
    assert found(engine, LONG) == (0, 4)


def test_the_oldest_goes_first_and_a_hit_makes_young() -> None:
    engine = tier_engine(2, 2)
    w, x, y, z = (distinct(5, i) for i in range(4))  # one whole block each, and two blocks while they run

    def names() -> str:
        return "".join("wxyz"[[*map(tuple, (w[:4], x[:4], y[:4], z[:4]))].index(chain)] for chain in kept(engine))

    for prompt in (w, x, y):
        serve(engine, prompt)
    assert names() == "wx"
    assert found(engine, w) == (0, 4)  # y goes out, and x for it: it was not used since it was stored
    assert names() == "wy"
    serve(engine, z)  # w goes out once more
    assert names() == "yw"
    assert found(engine, y) == (0, 4)  # z goes out, and w for it
    assert names() == "yz"


def test_an_eviction_of_what_the_tier_has_moves_nothing() -> None:
    engine = tier_engine(2, 4)
    for prompt in (A, B, A):
        serve(engine, prompt)
    assert engine.counters().host_cached == 4
    decisions(engine)
    plans: list[Plan] = []
    engine.executor.on_execute = plans.append  # type: ignore[attr-defined]
    serve(engine, distinct(5, 3))
    stored = decisions(engine, "host_store")
    assert [d["reason"] for d in stored] == ["there"] * len(stored)
    assert stored
    assert not any(plan.swap_out for plan in plans)


def test_a_gap_ends_the_match_and_what_lies_behind_it_is_found_once_it_is_filled() -> None:
    engine = tier_engine(3, 2)
    serve(engine, LONG)
    serve(engine, distinct(9, 1))  # all of it is in the tier now
    forget_head(engine)
    assert found(engine, LONG[:6]) == (0, 0)  # computes and publishes the head alone
    assert found(engine, LONG) == (4, 4)


# -- identity ------------------------------------------------------------------------------------------------------


def test_a_collision_of_keys_is_only_a_miss() -> None:
    engine = kv_engine(3, 4, host_cache_blocks=6, key_fn=lambda parent, tokens, extra: tokens[-1])
    serve(engine, [1, 2, 3, 4, 5, 6, 7, 8, 0])
    serve(engine, distinct(9, 1))
    assert engine.counters().host_cached == 2
    # The same second block behind another first one of the same key: what it holds was computed after other tokens.
    assert found(engine, [9, 9, 9, 4, 5, 6, 7, 8, 0]) == (0, 0)
    serve(engine, distinct(9, 2))
    assert engine.counters().host_cached == 4, "the colliding chain is not kept beside the first, the distinct one is"
    assert found(engine, [1, 2, 3, 4, 5, 6, 7, 8, 0]) == (0, 8)


def test_a_collision_is_no_place_to_store_either() -> None:
    engine = kv_engine(3, 4, host_cache_blocks=6, key_fn=lambda parent, tokens, extra: tokens[-1])
    serve(engine, [1, 2, 3, 4, 5, 6, 7, 8, 0])
    serve(engine, distinct(9, 1))
    forget_head(engine)  # its second block is still there, under a first one without content
    serve(engine, [9, 9, 9, 4, 5, 6, 7, 8, 0])
    serve(engine, distinct(9, 2))
    assert found(engine, [1, 2, 3, 4, 5, 6, 7, 8, 0]) == (0, 0)


def test_extra_keys_keep_chains_apart() -> None:
    engine = tier_engine(3, 8)
    serve(engine, LONG, extra_key={"salt": "x"}, block_keys={1: "cat"})
    serve(engine, distinct(9, 1))
    for extra, image, expected in (
        ({"salt": "y"}, "cat", (0, 0)),
        (None, "cat", (0, 0)),
        ({"salt": "x"}, "dog", (0, 4)),
        ({"salt": "x"}, "cat", (4, 4)),
    ):
        assert found(engine, LONG, extra_key=extra, block_keys={1: image}) == expected


def test_a_reset_empties_the_tier() -> None:
    engine = tier_engine(2, 2)
    serve(engine, A)
    serve(engine, B)
    engine.reset_prefix_cache()
    engine.check()
    assert engine.counters().host_cached == 0
    assert found(engine, A) == (0, 0)


# -- configuration -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"allocator": "contiguous-max"}, "contiguous-max shares nothing"),
        ({"prefix_caching": False}, "prefix_caching is off"),
        ({"kv_groups": (None, 8)}, "without a window"),
    ],
)
def test_it_is_refused_where_no_prefix_could_come(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"host_cache_blocks is 4, .*{message}"):
        EngineConfig(num_blocks=8, host_cache_blocks=4, **values)


def test_without_a_tier_nothing_is_moved_or_told() -> None:
    engine = kv_engine(2, 4)
    for prompt in (A, B, A):
        assert found(engine, prompt) == (0, 0)
    assert not [d for d in decisions(engine) if d["kind"].startswith("host")]
