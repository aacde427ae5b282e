"""What an infinite cache serves: by hand, and against the prompts themselves, token by token."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_cases import row_lists, tokens_of

from kvtop.workloads.oracle.ideal import ideal_hits
from kvtop.workloads.rows import Row


def row(prompt_tokens: int, *ids: int, block: int = 8, shared: int = 0) -> Row:
    return Row(0, prompt_tokens, 1, ids, block if ids else 0, shared)


def common_tokens(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def plain_ideal(rows: list[Row], block_size: int) -> list[int]:
    """By comparing every prompt with all that earlier requests left behind."""
    requests = tokens_of(rows)
    hits = []
    for i, (prompt, _) in enumerate(requests):
        common = max((common_tokens(prompt, earlier.stored) for earlier in requests[:i]), default=0)
        hits.append(min(common, len(prompt) - 1) // block_size * block_size)
    return hits


def test_a_hit_is_whole_blocks_from_the_start_and_never_the_last_token() -> None:
    rows = [row(20, 1, 2, 3), row(20, 1, 2, 3), row(24, 1, 2, 4), row(16, 1, 2), row(17, 1, 2), row(8, 5)]
    # Blocks of 8: the second prompt finds 16 of its 20; the fourth ends with its second block and computes that.
    assert ideal_hits(rows, 8) == [0, 16, 16, 8, 16, 0]
    # Blocks of 4 on ids of 8 tokens: the second finds 19 // 4 blocks, the third what it has in common with the first.
    assert ideal_hits(rows, 4) == [0, 16, 16, 12, 16, 0]
    # Blocks of 16 on ids of 8: two ids a block.
    assert ideal_hits(rows, 16) == [0, 16, 16, 0, 16, 0]


def test_a_partial_block_is_a_prefix_of_the_whole_one() -> None:
    # Id 2 was held as 3 tokens only, then as 8: the third row finds all of them.
    rows = [row(11, 1, 2), row(16, 1, 2), row(30, 1, 2, 3, 4)]
    assert ideal_hits(rows, 1) == [0, 11, 16]


def test_an_id_counts_only_after_the_same_ids() -> None:
    assert ideal_hits([row(16, 1, 2), row(16, 3, 2)], 8) == [0, 0]


def test_tokens_that_all_rows_share_are_found_without_any_id() -> None:
    assert ideal_hits([row(40, shared=32), row(40, shared=32), row(30, shared=20)], 16) == [0, 32, 16]


def test_system_prompts_are_told_apart() -> None:
    rows = [Row(0, 40, 1, shared_tokens=32, shared_id=i) for i in (1, 2, 1)]
    assert ideal_hits(rows, 16) == [0, 0, 32]


def test_ids_behind_system_prompts_of_other_lengths_are_other_tokens() -> None:
    # Three tokens are shared; in the second row ids follow where the system prompt of the first goes on.
    assert ideal_hits([row(30, 1, 2, shared=6), row(30, 1, 2, shared=3), row(30, 1, 2, shared=6)], 1) == [0, 3, 22]


def test_a_conversation_behind_a_partial_block_is_not_the_one_behind_the_whole() -> None:
    # The first answer follows 3 tokens of id 2, the second prompt has all 8 and then the conversation.
    rows = [
        Row(0, 11, 9, (1, 2), 8, conversation=5),
        Row(0, 20, 4, (1, 2), 8, conversation=5),
        Row(0, 20, 4, (1, 2), 8, conversation=5),
    ]
    assert ideal_hits(rows, 1) == [0, 11, 19]


def test_the_next_turn_finds_the_answer_but_its_last_token() -> None:
    # A turn of 10 and 6 tokens leaves 15 behind; the next one repeats all 16 and asks 5 more.
    rows = [Row(0, 10, 6, conversation=3), Row(0, 21, 4, conversation=3), Row(0, 21, 4, conversation=4)]
    assert ideal_hits(rows, 1) == [0, 15, 0]
    assert ideal_hits(rows, 4) == [0, 12, 0]


def test_a_rejected_prompt_leaves_nothing_behind_and_has_no_figure() -> None:
    rows = [row(24, 1, 2, 3), row(24, 1, 2, 3), row(17, 1, 2, 3)]
    assert ideal_hits(rows, 8, max_prompt_tokens=20) == [None, None, 0]


@settings(max_examples=150, deadline=None)
@given(row_lists(), st.integers(1, 20))
def test_it_is_what_comparing_the_prompts_gives(rows: list[Row], block_size: int) -> None:
    assert ideal_hits(rows, block_size) == plain_ideal(rows, block_size)
