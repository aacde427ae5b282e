"""KV-cache events as vLLM and SGLang publish them, in either of two encodings. Pure; bad bytes raise ``BadMessage``.

A message is three frames: topic, an 8-byte big-endian sequence number, a msgpack batch. The batch is an array
``[time, events, rank?]`` or a map; so is each event: ``["BlockStored", hashes, parent, tokens, block_size, ...]`` or
``{"type": "BlockStored", ...}``. What follows the first fields, or is left out, differs from release to release.
SGLang's form is that of its python/sglang/srt/disaggregation/kv_events.py: arrays up to 0.5.18, maps in an array since
(its pull request 37482), and a batch that may have no rank. Where vLLM's arrays have the adapter's name its own have a
map with the request's ``cache_salt`` and session; its maps name both. The session is no part of what a block is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

HASH_MASK = (1 << 64) - 1
DEVICE = "GPU"

_STORED = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
           "extra_keys", "group_idx")  # fmt: skip
_REMOVED = ("block_hashes", "medium", "group_idx")
_decode = msgspec.msgpack.Decoder().decode


class BadMessage(Exception):
    """A message that is no batch of KV events; one line."""


class Stored(NamedTuple):
    """Blocks stored one after the other: the first under ``parent``, each under the one before."""

    hashes: list[int]
    parent: int | None
    tokens: list[Any]
    block_size: int
    medium: str
    group: int
    extras: list[Any] = []  # of each block: what is hashed beside its tokens (a salt, an image)
    adapter: Any = None

    def extra_of(self, index: int) -> str | None:
        """What tells block ``index`` from another one of the same tokens; None: nothing does."""
        own = self.extras[index] if index < len(self.extras) else None
        return repr((self.adapter, own)) if self.adapter is not None or own else None


class Removed(NamedTuple):
    hashes: list[int]
    medium: str | None  # None: an old publisher, with one tier
    group: int | None


class Cleared(NamedTuple):
    pass


KvEvent = Stored | Removed | Cleared


class Batch(NamedTuple):
    """``t_s``: the publisher's wall clock; None where there is none. ``rank`` None: not said."""

    t_s: float | None
    rank: int | None
    events: list[KvEvent]
    num_unknown: int  # events of a kind that is not known here


def sequence_of(frame: bytes) -> int:
    """The sequence number in a frame; -1 is the end of a replay.

    Raises:
        BadMessage: the frame is not 8 bytes long.
    """
    if len(frame) != 8:
        raise BadMessage(f"a sequence number of {len(frame)} bytes, expected 8")
    return int.from_bytes(frame, "big", signed=True)


def decode_batch(body: bytes) -> Batch:
    """The batch in the last frame of a message.

    Raises:
        BadMessage: no msgpack, or another form.
    """
    try:
        found = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise BadMessage(f"no msgpack: {error}") from None
    if isinstance(found, dict):
        t_s, events = found.get("ts"), found.get("events")
        rank = found.get("data_parallel_rank", found.get("attn_dp_rank"))
    elif isinstance(found, list) and len(found) >= 2:
        t_s, events = found[0], found[1]
        rank = found[2] if len(found) > 2 else None
    else:
        raise BadMessage(f"a batch that is {_named(found)}, expected an array or a map")
    if not isinstance(events, list):
        raise BadMessage(f"events that are {_named(events)}, expected an array")
    made = [_event(event) for event in events]
    known = [event for event in made if event is not None]
    time_s = float(t_s) if isinstance(t_s, int | float) and not isinstance(t_s, bool) else None
    return Batch(time_s, rank if _is_count(rank) else None, known, len(made) - len(known))


def _event(found: Any) -> KvEvent | None:
    """None: of a kind that is not known."""
    fields: dict[str, Any]
    if isinstance(found, dict):
        kind, fields = found.get("type"), found
    elif isinstance(found, list) and found:
        kind = found[0]
        names = _STORED if kind == "BlockStored" else _REMOVED
        fields = dict(zip(names, found[1:], strict=False))
    else:
        raise BadMessage(f"an event that is {_named(found)}, expected an array or a map")
    match kind:
        case "BlockStored":
            return _stored(fields)
        case "BlockRemoved":
            group = fields.get("group_idx")
            medium = fields.get("medium")
            return Removed(
                _hashes(fields.get("block_hashes")),
                medium if isinstance(medium, str) else None,
                group if _is_count(group) else None,
            )
        case "AllBlocksCleared":
            return Cleared()
    return None


def _stored(fields: dict[str, Any]) -> Stored:
    hashes, size, tokens = _hashes(fields.get("block_hashes")), fields.get("block_size"), fields.get("token_ids")
    parent, medium, group = fields.get("parent_block_hash"), fields.get("medium"), fields.get("group_idx")
    extras, name = fields.get("extra_keys"), fields.get("lora_name")
    if not isinstance(extras, list):
        extras = _salted(fields, name) if parent is None else []
    if not _is_count(size) or not size:
        raise BadMessage(f"a block size that is {_named(size)}, expected a number above 0")
    return Stored(
        hashes,
        None if parent is None else key_of(parent),
        tokens if isinstance(tokens, list) else [],
        size,
        medium if isinstance(medium, str) else DEVICE,
        group if isinstance(group, int) and _is_count(group) else 0,
        extras,
        name if isinstance(name, str) else fields.get("lora_id"),
    )


def _salted(fields: dict[str, Any], name: Any) -> list[Any]:
    """SGLang's salt as vLLM tells it: beside the first block of a prompt, which all others hang below."""
    beside = name if isinstance(name, dict) else fields.get("metadata")
    salt = fields.get("cache_salt") or (beside.get("cache_salt") if isinstance(beside, dict) else None)
    return [[salt]] if isinstance(salt, str) else []


def _hashes(found: Any) -> list[int]:
    if not isinstance(found, list):
        raise BadMessage(f"block hashes that are {_named(found)}, expected an array")
    return [key_of(value) for value in found]


def key_of(value: Any) -> int:
    """A block hash as a number of 64 bits: of one given as bytes, the last eight.

    Raises:
        BadMessage: it is neither.
    """
    if isinstance(value, bytes) and value:
        return int.from_bytes(value[-8:], "big")
    if isinstance(value, int) and not isinstance(value, bool):
        return value & HASH_MASK
    raise BadMessage(f"a block hash that is {_named(value)}, expected a number or bytes")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _named(value: Any) -> str:
    names = {dict: "a map", list: "an array", str: "text", bytes: "bytes", bool: "true or false", type(None): "absent"}
    return names.get(type(value)) or f"{value!r:.20}"
