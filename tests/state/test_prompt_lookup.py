"""A prompt that nobody sent, against a tree worked out by hand: blocks of four tokens, three prompts."""

from __future__ import annotations

from kvtop.engine.api import Engine, EngineConfig, NullExecutor, SamplingParams
from kvtop.engine.events import RunStarted
from kvtop.engine.keys import prompt_keys
from kvtop.engine.recorder import Recorder
from kvtop.engine.types import RequestSpec
from kvtop.state.model import RunState
from kvtop.state.prefix_tree import PrefixTree
from kvtop.state.prompt_lookup import CACHED, EVICTED, UNKNOWN, Fate, PromptLookup, look_up_prompt
from kvtop.state.reduce import reduce

SIZE = 4
FIRST, SECOND, THIRD = [*range(12)], [*range(8), 50, 51, 52, 53], [*range(90, 98)]


def served(*prompts: list[int], num_blocks: int = 32) -> RunState:
    recorder = Recorder()
    config = EngineConfig(num_blocks=num_blocks, block_size=SIZE, max_num_seqs=1, max_batched_tokens=64)
    engine = Engine(config, NullExecutor(), recorder=recorder)
    events = [RunStarted(run_id="r", manifest={}), engine.keyframe()]
    for number, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=1)
        engine.submit_spec(RequestSpec(prompt=prompt, params=params, request_id=f"r{number}"))
        engine.run()
    state = RunState()
    for event in [*events, *recorder.drain()]:
        reduce(state, event)
    return state


def found(state: RunState, prompt: list[int]) -> PromptLookup:
    tree = PrefixTree()
    tree.update(state.pool, (), whole=True)
    keys = [[key] for key in prompt_keys(prompt, SIZE)]
    return look_up_prompt(keys, len(prompt), SIZE, tree, state.cache)


def test_two_blocks_are_found_and_the_third_diverges() -> None:
    told = found(served(FIRST, SECOND, THIRD), [*range(8), *range(70, 79)])
    assert (told.num_tokens, told.num_blocks, told.tail) == (17, 4, 1)
    assert (told.found, told.usable) == (2, 2)
    assert told.fates == [Fate(CACHED, 0, 1), Fate(UNKNOWN, 2, 3)]
    assert told.end == Fate(UNKNOWN, 2, 3)
    assert told.others == 2  # the third blocks of the first two prompts


def test_a_prompt_that_is_all_cached_still_has_its_last_token_computed() -> None:
    told = found(served(FIRST, SECOND, THIRD), FIRST)
    assert (told.found, told.usable, told.end, told.others) == (3, 2, None, 0)


def test_nothing_in_common_ends_at_the_first_block() -> None:
    told = found(served(FIRST, SECOND, THIRD), [*range(200, 208)])
    assert (told.found, told.usable, told.fates) == (0, 0, [Fate(UNKNOWN, 0, 1)])
    assert told.others == 2  # a prefix of the first two, and one of the third


def test_the_same_tokens_at_another_place_are_another_block() -> None:
    assert found(served(FIRST), [*range(4, 12)]).found == 0


def test_shorter_than_a_block_has_no_block() -> None:
    told = found(served(FIRST), FIRST[:3])
    assert (told.num_blocks, told.found, told.usable, told.tail, told.fates, told.end) == (0, 0, 0, 3, [], None)


def test_an_empty_cache_knows_nothing() -> None:
    assert found(served(), FIRST).fates == [Fate(UNKNOWN, 0, 2)]


def test_evicted_blocks_say_when_and_for_whom() -> None:
    # Three of five blocks are cached. 19 tokens need all five.
    state = served(FIRST, [*range(300, 319)], num_blocks=5)
    told = found(state, [*FIRST, 400, 401, 402, 403])
    (step,) = {step for step, _ in state.cache.ghosts.values()}
    assert step == 1  # a request of one token is one step, and they count from 0
    assert told.fates == [Fate(EVICTED, 0, 2, step, "r1"), Fate(UNKNOWN, 3, 3)]
    assert (told.found, told.end) == (0, told.fates[0])


def test_a_leaf_that_was_evicted_leaves_what_is_above_it() -> None:
    # Three of six blocks are cached and three were never used: 16 tokens need one of the three, and that is the leaf.
    state = served(FIRST, [*range(300, 316)], num_blocks=6)
    assert found(state, FIRST).fates == [Fate(CACHED, 0, 1), Fate(EVICTED, 2, 2, 1, "r1")]
