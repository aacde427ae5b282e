"""KV events in both encodings, with everything that releases leave out or add, and rubbish."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.attach.kv_decode import BadMessage, Cleared, Removed, Stored, decode_batch, key_of, sequence_of
from kvtop.attach.prompt_index import PromptIndex, own_keys_of

BIG = 15324609666870864576  # above 2^63
AS_BYTES = bytes(24) + BIG.to_bytes(8, "big")  # a SHA-256 whose last half counts


def batch(found: object):
    return decode_batch(msgspec.msgpack.encode(found))


def arrays(hashes: list[object], parent: object) -> list[object]:
    """As SGLang and older vLLM releases send them: fields by position, late ones left out."""
    return [
        1.5,
        [["BlockStored", hashes, parent, [1, 2, 3, 4], 2, None], ["BlockRemoved", hashes[:1]], ["AllBlocksCleared"]],
    ]


def maps(hashes: list[object], parent: object) -> list[object]:
    """As newer vLLM releases do: by name, the batch still an array."""
    return [
        1.5,
        [
            {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": [1, 2, 3, 4],
             "block_size": 2, "lora_id": None, "medium": "GPU", "lora_name": None, "extra_keys": [None, None],
             "group_idx": 0, "kv_cache_spec_kind": "full_attention"},
            {"type": "BlockRemoved", "block_hashes": hashes[:1], "medium": "GPU", "group_idx": 0},
            {"type": "AllBlocksCleared"},
        ],
        0,
    ]  # fmt: skip


def named_batch(hashes: list[object], parent: object) -> dict[str, object]:
    return {"ts": 1.5, "events": maps(hashes, parent)[1], "data_parallel_rank": 0}


@pytest.mark.parametrize("encode", [arrays, maps, named_batch])
@pytest.mark.parametrize(("one", "other"), [(BIG, 7), (AS_BYTES, (7).to_bytes(32, "big"))])
def test_all_encodings_of_the_same_events_are_the_same(encode, one: object, other: object) -> None:
    found = batch(encode([one, other], 9))
    store, remove, clear = found.events
    assert isinstance(store, Stored)
    assert (store.hashes, store.parent, store.tokens, store.block_size) == ([BIG, 7], 9, [1, 2, 3, 4], 2)
    assert (store.medium, store.group) == ("GPU", 0)
    assert isinstance(remove, Removed)
    assert remove.hashes == [BIG]
    assert isinstance(clear, Cleared)
    assert (found.t_s, found.num_unknown) == (1.5, 0)


SALTED = {"cache_salt": "tenant-a", "session_id": "s7"}


@pytest.mark.parametrize(
    "event",
    [
        ["BlockStored", [BIG, 7], None, [1, 2, 3, 4], 2, None, "GPU", SALTED],  # SGLang 0.5.18
        {"type": "BlockStored", "block_hashes": [BIG, 7], "parent_block_hash": None, "token_ids": [1, 2, 3, 4],
         "block_size": 2, "lora_id": None, "medium": "GPU", **SALTED},  # and since
        {"type": "BlockStored", "block_hashes": [BIG, 7], "parent_block_hash": None, "token_ids": [1, 2, 3, 4],
         "block_size": 2, "lora_id": None, "medium": "GPU", "lora_name": None, "extra_keys": [["tenant-a"], None],
         "group_idx": 0},  # vLLM
    ],
)  # fmt: skip
def test_a_salt_is_part_of_what_a_block_is_and_the_session_is_not(event: object) -> None:
    """All three servers' forms give the same keys; those of another session too, those of another salt do not."""
    index, other = PromptIndex(), PromptIndex()
    (store,) = batch([1.0, [event], None]).events
    assert isinstance(store, Stored)
    assert (store.hashes, store.adapter, store.extra_of(0), store.extra_of(1)) == (
        [BIG, 7], None, repr((None, ["tenant-a"])), None,
    )  # fmt: skip
    index.stored(store)
    plain = batch([1.0, [["BlockStored", [BIG, 7], None, [1, 2, 3, 4], 2, None, "GPU"]]]).events[0]
    assert isinstance(plain, Stored)
    other.stored(plain)
    keys = own_keys_of([1, 2, 3, 4], 2)
    assert other.hashes_of(keys) == [[BIG], [7]]
    assert index.hashes_of(keys) == [[], []]


def test_blocks_below_the_first_one_carry_no_salt_of_their_own() -> None:
    event = ["BlockStored", [7], BIG, [3, 4], 2, None, "GPU", SALTED]
    (store,) = batch([1.0, [event]]).events
    assert isinstance(store, Stored)
    assert (store.extras, store.adapter) == ([], None)


@pytest.mark.parametrize("medium", ["CPU_PINNED", "DISK", "EXTERNAL"])
def test_tiers_of_sglang_are_told_apart(medium: str) -> None:
    found = batch([1.0, [["BlockStored", [5], None, [1], 1, None, medium], ["BlockRemoved", [5], medium]], 3])
    store, remove = found.events
    assert isinstance(store, Stored)
    assert isinstance(remove, Removed)
    assert (store.medium, remove.medium, found.rank) == (medium, medium, 3)


def test_tokens_in_pairs_are_no_tokens_of_a_prompt() -> None:
    """SGLang's blocks under speculative decoding with EAGLE are of pairs."""
    (store,) = batch([1.0, [["BlockStored", [5], None, [[1, 2], [2, 3]], 2, None, "GPU"]]]).events
    assert isinstance(store, Stored)
    index = PromptIndex()
    index.stored(store)
    assert (index.num_silent, len(index)) == (1, 0)


def test_what_is_left_out_is_not_known_rather_than_made_up() -> None:
    found = batch([2.0, [["BlockStored", [5], None, [], 16], ["BlockRemoved", [5]]]])
    store, remove = found.events
    assert isinstance(store, Stored)
    assert (store.parent, store.tokens, store.medium) == (None, [], "GPU")
    assert isinstance(remove, Removed)
    assert (remove.medium, remove.group, found.rank) == (None, None, None)


def test_the_rank_of_a_batch_is_its_third_field_or_its_name() -> None:
    assert batch([1.0, [], 3]).rank == 3
    assert batch({"ts": 1.0, "events": [], "attn_dp_rank": 2}).rank == 2


def test_an_event_of_another_kind_is_counted_and_the_others_are_kept() -> None:
    found = batch([1.0, [["BlockMoved", [1]], {"type": "X"}, ["AllBlocksCleared"]]])
    assert (found.events, found.num_unknown) == ([Cleared()], 2)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "no msgpack"),
        (b"\xc1", "no msgpack"),
        (msgspec.msgpack.encode(5), "a batch that is 5, expected an array or a map"),
        (msgspec.msgpack.encode([1.0, "x"]), "events that are text"),
        (msgspec.msgpack.encode([1.0, [7]]), "an event that is 7"),
        (msgspec.msgpack.encode([1.0, [["BlockStored", [1], None, [], 0]]]), "a block size that is 0"),
        (msgspec.msgpack.encode([1.0, [["BlockStored", ["x"], None, [], 4]]]), "a block hash that is text"),
        (msgspec.msgpack.encode([1.0, [["BlockRemoved", 3]]]), "block hashes that are 3"),
    ],
)
def test_a_message_of_another_form_says_what_it_found(body: bytes, why: str) -> None:
    with pytest.raises(BadMessage, match=why):
        decode_batch(body)


def test_sequence_numbers_are_eight_bytes_and_minus_one_ends_a_replay() -> None:
    assert (sequence_of((70).to_bytes(8, "big")), sequence_of(b"\xff" * 8)) == (70, -1)
    with pytest.raises(BadMessage, match="3 bytes"):
        sequence_of(b"abc")


def test_a_hash_keeps_its_last_64_bits() -> None:
    assert key_of(AS_BYTES) == key_of(BIG) == BIG
    assert key_of(-1) == (1 << 64) - 1


_any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_events = st.lists(
    st.builds(
        lambda kind, rest: [kind, *rest],
        st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Other"]),
        st.lists(_any, max_size=9),
    ),
    max_size=3,
)


@settings(max_examples=120, deadline=None)
@given(st.binary(max_size=60) | st.builds(msgspec.msgpack.encode, _any | st.tuples(_any, _events, _any)))
def test_no_message_does_worse_than_being_refused(body: bytes) -> None:
    with suppress(BadMessage):
        decode_batch(body)
