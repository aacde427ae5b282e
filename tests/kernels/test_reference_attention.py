"""The oracle itself, held against dense attention and hand-computed values."""

from __future__ import annotations

import numpy as np
import pytest

from kvtop.kernels.reference import Partial, merge, num_pages, paged_attention, slot_of


def dense(q: np.ndarray, k: np.ndarray, v: np.ndarray, start: int, scaling: float, window: int | None) -> np.ndarray:
    """Attention with a whole (T, L) mask over contiguous keys (L, KVH, D): shares no code with the oracle."""
    group = q.shape[1] // k.shape[1]
    keys, values = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("thd,lhd->htl", q, keys) * scaling
    query, key = np.arange(start, start + len(q))[:, None], np.arange(len(k))[None]
    visible = (key <= query) & (key > query - (window or len(k) + 1))
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("htl,lhd->thd", weights / weights.sum(-1, keepdims=True), values)


def scatter(rows: np.ndarray, table: list[int], num_blocks: int, block_size: int) -> np.ndarray:
    """A NaN pool with ``rows`` (L, KVH, D) written at the slots of ``table``."""
    pool = np.full((num_blocks, rows.shape[1], block_size, rows.shape[2]), np.nan)
    for position, row in enumerate(rows):
        pool[table[position // block_size], :, position % block_size] = row
    return pool


def case(length: int, block_size: int, heads: int, kv_heads: int, dim: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    pages, _ = num_pages(length, block_size)
    table = rng.permutation(pages + 3)[:pages].tolist()
    q, k, v = (rng.standard_normal((length, n, dim)) for n in (heads, kv_heads, kv_heads))
    pools = (scatter(k, table, pages + 3, block_size), scatter(v, table, pages + 3, block_size))
    return q, k, v, pools, table


def test_slot_of_the_last_token_of_a_full_block() -> None:
    assert slot_of([10, 11], 7, 4) == 47


@pytest.mark.parametrize(
    ("tokens", "block_size", "expected"),
    [(8, 4, (2, 4)), (9, 4, (3, 1)), (16, 16, (1, 16)), (17, 16, (2, 1)), (32, 16, (2, 16)), (33, 16, (3, 1))],
)
def test_pages_and_fill_of_the_last_page(tokens: int, block_size: int, expected: tuple[int, int]) -> None:
    assert num_pages(tokens, block_size) == expected


@pytest.mark.parametrize("block_size", [1, 4, 5])
@pytest.mark.parametrize("window", [None, 3])
def test_oracle_equals_dense_attention_over_a_nan_pool(block_size: int, window: int | None) -> None:
    q, k, v, pools, table = case(13, block_size, 6, 2, 8)
    got = paged_attention(q[5:], *pools, table, 5, scaling=0.4, window=window)
    np.testing.assert_allclose(got.value, dense(q[5:], k, v, 5, 0.4, window), atol=1e-12)


def test_query_heads_read_the_kv_head_of_their_group() -> None:
    q, _, v, _, table = case(5, 4, 6, 2, 4)
    v[:] = np.arange(2)[None, :, None]
    pool = scatter(v, table, 5, 4)
    got = paged_attention(q, pool, pool, table, 0, scaling=1.0).value
    np.testing.assert_allclose(got, np.broadcast_to((np.arange(6) // 3)[None, :, None], got.shape))


def test_table_entries_beyond_the_length_are_never_read() -> None:
    q, _, _, pools, table = case(9, 4, 2, 1, 4)
    want = paged_attention(q, *pools, table, 0, scaling=0.5)
    got = paged_attention(q, *pools, [*table, -1, 10**12], 0, scaling=0.5)
    np.testing.assert_array_equal(got.value, want.value)


@pytest.mark.parametrize("length", [7, 8, 9])
def test_window_of_eight_sees_exactly_the_last_eight_keys(length: int) -> None:
    q, k, v, pools, table = case(length, 4, 2, 1, 4)
    got = paged_attention(q, *pools, table, 0, scaling=0.5, window=8).value
    np.testing.assert_allclose(got, dense(q, k, v, 0, 0.5, 8), atol=1e-12)


def test_window_of_eight_at_index_eight_does_not_see_key_zero() -> None:
    q, _, _, (k_pool, v_pool), table = case(9, 4, 2, 1, 4)
    k_pool[table[0], :, 0] = v_pool[table[0], :, 0] = np.nan
    assert np.isfinite(paged_attention(q[8:], k_pool, v_pool, table, 8, scaling=0.5, window=8).value).all()
    k_pool[table[0], :, 1] = np.nan
    assert np.isnan(paged_attention(q[8:], k_pool, v_pool, table, 8, scaling=0.5, window=8).value).any()


def test_keys_split_anywhere_and_merged_equal_the_whole() -> None:
    length = 11
    q, _, _, pools, table = case(length, 4, 3, 1, 8)
    whole = paged_attention(q, *pools, table, 0, scaling=0.3)
    for cut in range(length + 1):
        parts = [
            paged_attention(q, *pools, table, 0, scaling=0.3, stop_key=cut),
            paged_attention(q, *pools, table, 0, scaling=0.3, first_key=cut),
        ]
        merged = merge(parts)
        np.testing.assert_allclose(merged.value, whole.value, atol=1e-12)
        np.testing.assert_allclose(merged.lse, whole.lse, atol=1e-12)


def test_an_empty_part_has_minus_infinity_and_merges_without_nan() -> None:
    q, _, _, pools, table = case(4, 4, 2, 1, 4)
    empty = paged_attention(q, *pools, table, 0, scaling=1.0, stop_key=0)
    assert np.isneginf(empty.lse).all()
    assert (empty.value == 0).all()
    both = merge([empty, empty])
    assert np.isneginf(both.lse).all()
    assert (both.value == 0).all()
    whole = paged_attention(q, *pools, table, 0, scaling=1.0)
    np.testing.assert_array_equal(merge([empty, whole]).value, whole.value)


def test_merge_is_right_for_scores_far_apart() -> None:
    parts = [Partial(np.full((1, 1, 2), x), np.full((1, 1), lse)) for x, lse in ((1.0, -800.0), (2.0, 800.0))]
    np.testing.assert_array_equal(merge(parts).value, np.full((1, 1, 2), 2.0))
