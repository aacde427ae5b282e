"""Keys of the prefix cache: what may be shared, what must not be, and how often a key is computed."""

from __future__ import annotations

import pytest
from engine_helpers import distinct, kv_engine, make_engine, serve, steps_until_idle, submit

from kvtop.engine.api import Engine, ResetResult
from kvtop.engine.prefix_cache import default_key


def _cached(engine: Engine, prompt: list[int], **kw) -> int:
    return serve(engine, prompt, **kw).cached_tokens


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"adapter": "x"}, {"salt": "x"}),  # C2
        ({"adapter": "x", "revision": 1}, {"adapter": "x", "revision": 2}),  # C3
        ({"adapter": "x"}, None),
        ({"adapter": 1}, {"adapter": "1"}),
        ({"a": "b", "c": "d"}, {"a": "b,c:d"}),
    ],
)
def test_other_extra_keys_share_nothing(first, second) -> None:
    engine = make_engine(8, 4)
    prompt = distinct(9, 0)
    assert _cached(engine, prompt, extra_key=first) == 0
    assert _cached(engine, prompt, extra_key=second) == 0
    assert _cached(engine, prompt, extra_key=first) == 8
    assert _cached(engine, prompt, extra_key=second) == 8


def test_tags_in_another_order_are_the_same_key() -> None:
    engine = make_engine(8, 4)
    _cached(engine, distinct(9, 0), extra_key={"adapter": "x", "salt": "y"})
    assert _cached(engine, distinct(9, 0), extra_key={"salt": "y", "adapter": "x"}) == 8


def test_a_reset_while_running_leaves_nothing_to_hit_or_to_publish() -> None:  # C4
    engine = make_engine(16, 4)
    prompt = distinct(9, 0)
    submit(engine, prompt, m=8, rid="R1")
    engine.step()
    assert engine.reset_prefix_cache() is ResetResult.PARTIAL
    engine.check()
    submit(engine, prompt, m=1, rid="R2")
    steps_until_idle(engine)
    assert engine.request("R2").cached_tokens == 0
    # R1 stored 9 + 7 tokens. Only what R2 computed after the reset may be found.
    follow_up = [*prompt, *engine.request("R1").output, 1]
    assert _cached(engine, follow_up) == 8


def test_a_reset_of_an_idle_cache_is_done_and_forgets_everything() -> None:
    engine = make_engine(8, 4)
    serve(engine, distinct(9, 0))
    assert engine.counters().idle == 2
    assert engine.reset_prefix_cache() is ResetResult.DONE
    assert engine.counters().idle == 0
    assert engine.counters().fresh == 8
    assert _cached(engine, distinct(9, 0)) == 0


def test_equal_blocks_under_another_parent_or_at_another_place_are_not_shared() -> None:  # C5
    x, y, z = distinct(4, 0), distinct(4, 1), distinct(4, 2)
    engine = kv_engine(16, 4)
    assert _cached(engine, [*x, *z, 7]) == 0
    assert _cached(engine, [*y, *z, 7]) == 0
    assert _cached(engine, [*z, 7]) == 0
    assert _cached(engine, [*x, *y, *z, 7]) == 4


def test_a_key_does_not_outlive_its_block() -> None:  # C8
    engine = kv_engine(2, 4)
    serve(engine, [1, 2, 3, 4])
    serve(engine, distinct(8, 5))
    view = serve(engine, [1, 2, 3, 4, 5])
    assert view.cached_tokens == 0
    assert view.output == serve(kv_engine(2, 4), [1, 2, 3, 4, 5]).output


def test_keys_are_computed_once_however_often_a_request_is_retried() -> None:  # C10
    calls = []

    def counting_key(parent_key, tokens, extra):
        calls.append(tokens)
        return default_key(parent_key, tokens, extra)

    engine = make_engine(6, 4, key_fn=counting_key)
    submit(engine, distinct(13, 1), m=11, rid="holder")  # grows to all six blocks
    engine.step()
    prompt = distinct(12, 0)
    submit(engine, prompt, rid="waiter")
    for _ in range(10):
        engine.step()
    assert engine.request("waiter").block_table == ()
    assert sum(tokens[0] in prompt for tokens in calls) == 3
    engine.run()
    assert sum(tokens[0] in prompt for tokens in calls) == 3


def test_equal_tokens_with_another_block_key_share_only_what_comes_before() -> None:  # C11
    engine = make_engine(16, 4)
    prompt = distinct(13, 0)
    serve(engine, prompt, block_keys={1: "image-a"})
    assert _cached(engine, prompt, block_keys={1: "image-b"}) == 4
    assert _cached(engine, prompt, block_keys={1: "image-a"}) == 12
    assert _cached(engine, prompt) == 4


def test_blocks_of_a_request_that_still_runs_are_shared() -> None:  # C13
    engine = kv_engine(16, 4)
    prompt = distinct(8, 0)
    submit(engine, prompt, m=20, rid="R1")
    engine.step()
    submit(engine, [*prompt, 5], m=2, rid="R2")
    engine.step()
    assert "R1" in [seq.seq_id for seq in engine.scheduler.running]
    assert engine.request("R2").cached_tokens == 8
    assert engine.request("R1").block_table[:2] == engine.request("R2").block_table[:2]
    steps_until_idle(engine)


def test_equal_prompts_computed_in_one_step_end_up_in_one_copy() -> None:
    engine = kv_engine(16, 4)
    prompt = distinct(9, 0)
    for rid in ("a", "b", "c"):
        submit(engine, prompt, m=4, rid=rid)
    engine.step()
    engine.check()
    assert len({engine.request(rid).block_table[:2] for rid in "abc"}) == 1
    assert engine.counters().used == 2 + 3
    steps_until_idle(engine)
    assert len({engine.request(rid).output for rid in "abc"}) == 1
