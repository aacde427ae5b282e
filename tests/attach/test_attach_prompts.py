"""A pasted prompt at attached servers: found by the tokens in their events, of which nothing is kept."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from attach_helpers import folded, stored, take
from fake_server import Answer, FakeMetrics, FakePublisher, recorded_messages, recorded_metrics

from kvtop.attach import prompt_index
from kvtop.attach.address import address_of
from kvtop.attach.asked_prompt import AskedPrompt
from kvtop.attach.kv_decode import Removed, Stored, decode_batch
from kvtop.attach.kv_tracker import KvTracker
from kvtop.attach.prompt_index import PromptIndex, own_keys_of
from kvtop.attach.session import AttachSession, AttachSpec
from kvtop.attach.tokenize import NoTokens, tokenizer_file, tokens_by_file, tokens_by_server
from kvtop.engine.errors import UsageError
from kvtop.engine.events import FindPrompt, PromptKeys
from kvtop.results.recording import FRAMES_NAME, read_frames
from kvtop.state.prefix_tree import PrefixTree
from kvtop.state.prompt_lookup import EVICTED, UNKNOWN, PromptLookup, look_up_prompt

CANARY = "the launch code is zebra 4711"


def learned(*events: dict[str, Any]) -> PromptIndex:
    index = PromptIndex()
    for event in events:
        index.stored(Stored(
            event["block_hashes"], event["parent_block_hash"], event["token_ids"], event["block_size"], "GPU", 0,
            event.get("extra_keys", []), event.get("lora_id"),
        ))  # type: ignore[arg-type]  # fmt: skip
    return index


def hashes(index: PromptIndex, tokens: list[int], size: int = 4) -> list[list[int]]:
    return index.hashes_of(own_keys_of(tokens, size))


def with_tokens(event: dict[str, Any], tokens: list[int]) -> dict[str, Any]:
    return {**event, "token_ids": tokens}


def test_blocks_are_found_by_their_tokens_behind_the_same_tokens() -> None:
    index = learned(
        with_tokens(stored(501, 502), [*range(8)]),
        with_tokens(stored(777, parent=501), [50, 51, 52, 53]),
    )
    assert hashes(index, [*range(8), 1, 2, 3]) == [[501], [502]]
    assert hashes(index, [*range(4), 50, 51, 52, 53, 9, 9, 9, 9]) == [[501], [777], []]
    assert hashes(index, [50, 51, 52, 53]) == [[]]  # not behind 501
    assert hashes(index, [1, 2, 3]) == []


def test_two_servers_that_hash_differently_are_both_known() -> None:
    index = learned(with_tokens(stored(501), [1, 2, 3, 4]), with_tokens(stored(9001), [1, 2, 3, 4]))
    assert hashes(index, [1, 2, 3, 4]) == [[501, 9001]]


@pytest.mark.parametrize("more", [{"lora_id": 3}, {"extra_keys": [["salt"]]}])
def test_what_is_hashed_beside_the_tokens_keeps_blocks_apart(more: dict[str, Any]) -> None:
    index = learned(with_tokens(stored(501), [1, 2, 3, 4]), with_tokens(stored(502, **more), [1, 2, 3, 4]))
    assert hashes(index, [1, 2, 3, 4]) == [[501]]


def test_a_hash_that_is_stored_again_for_other_tokens_is_no_longer_the_old_one() -> None:
    index = learned(with_tokens(stored(501), [1, 2, 3, 4]), with_tokens(stored(501), [5, 6, 7, 8]))
    assert hashes(index, [1, 2, 3, 4]) == [[]]
    assert hashes(index, [5, 6, 7, 8]) == [[501]]


@pytest.mark.parametrize("tokens", [[], [1, 2, 3], [1, 2, "x", 4], [[1, 2]] * 4, [True] * 4])
def test_hashes_without_tokens_are_counted_and_never_guessed(tokens: list[object]) -> None:
    index = learned({**stored(501), "token_ids": tokens}, with_tokens(stored(502, parent=501), [5, 6, 7, 8]))
    assert (len(index), index.num_silent, index.num_orphans) == (0, 1, 1)


def test_what_is_remembered_is_bounded_and_what_is_cached_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_index, "EXTRA_ENTRIES", 20)
    monkeypatch.setattr(prompt_index, "GHOSTS_KEPT", 10)
    index = learned(*(with_tokens(stored(number), [number, 0, 0, 0]) for number in range(100)))
    index.forget_old(lambda key: key < 5, 5)
    assert len(index) == 15
    assert hashes(index, [4, 0, 0, 0]) == [[4]]
    assert hashes(index, [5, 0, 0, 0]) == [[]]
    assert [hashes(index, [number, 0, 0, 0]) for number in (89, 90)] == [[[]], [[90]]]


# The recorded server -----------------------------------------------------------------------------------------


def look_up(tracker: KvTracker, events: list, prompt: list[int]) -> PromptLookup:
    asked = AskedPrompt(tracker.blocks)
    asked.ask(prompt)
    answer = asked.news(0)
    assert answer is not None
    assert not answer.problem
    state = folded(events)
    assert state.pool is not None
    tree = PrefixTree()
    tree.update(state.pool, (), whole=True)
    return look_up_prompt(answer.keys, answer.num_tokens, tracker.blocks.block_size, tree, state.cache)


def test_every_prefix_the_recorded_server_has_or_had_is_told_as_its_events_say() -> None:
    """The model: tokens of every chain as stored, the set of hashes that are left, and nothing of kvtop's keys."""
    tracker, chains, cached, events = KvTracker(109), {}, set(), []
    for number, (_, frames) in enumerate(recorded_messages()):
        take(tracker, frames)
        events += tracker.drain(number + 1, number)
        for event in decode_batch(frames[2]).events:
            if isinstance(event, Stored):
                above = event.parent
                for index, key in enumerate(event.hashes):
                    tokens, keys = chains.get(above, ([], []))
                    own = event.tokens[index * event.block_size : (index + 1) * event.block_size]
                    chains[key] = (tokens + own, [*keys, key])
                    cached.add(key)
                    above = key
            elif isinstance(event, Removed):
                cached -= set(event.hashes)
    assert len(cached) == 103
    for tokens, keys in chains.values():
        told = look_up(tracker, events, [*tokens, *[99_999] * 40])
        missing = next((at for at, key in enumerate(keys) if key not in cached), len(keys))
        assert told.found == missing
        gone = {at for at, key in enumerate(keys) if key not in cached}
        assert {at for f in told.fates if f.what == EVICTED for at in range(f.first, f.last + 1)} == gone
        assert told.fates[-1].what == UNKNOWN
        assert told.fates[-1].first == len(keys)


# The session -------------------------------------------------------------------------------------------------


def answers(session: AttachSession, until: str = "", within_s: float = 60.0) -> tuple[list, PromptKeys]:
    """Everything up to an answer whose problem holds ``until`` ("": one without a problem)."""
    events, deadline_s = [], time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        for event in session.poll(0.05):
            events.append(event)
            if isinstance(event, PromptKeys) and (until in event.problem if until else not event.problem):
                return events, event
    raise AssertionError([event for event in events if isinstance(event, PromptKeys)])


@pytest.fixture
def server():
    with FakeMetrics(Answer(recorded_metrics()[-1][1].encode())) as metrics, FakePublisher() as publisher:
        yield metrics, publisher


def spec_of(server: tuple[FakeMetrics, FakePublisher], **more: Any) -> AttachSpec:
    metrics, publisher = server
    events = {"kv_events": [publisher.endpoint], "replays": [publisher.replay_endpoint]}
    return AttachSpec([address_of(metrics.url)], **{"interval_s": 0.1, **events, **more})  # type: ignore[arg-type]


def test_the_server_tokenizes_and_what_it_stores_later_changes_the_answer(server, tmp_path: Path) -> None:
    metrics, publisher = server
    metrics.on_post = Answer(json.dumps({"count": 9, "tokens": [*range(8), 77]}).encode())
    publisher.publish(with_tokens(stored(501), [*range(4)]))
    session = AttachSession(spec_of(server, api_key="key", record=tmp_path / "run"))
    session.start()
    try:
        session.send(FindPrompt(text=CANARY))
        events, answer = answers(session)
        assert (answer.num_tokens, answer.keys) == (9, [[501], []])
        assert json.loads(metrics.posted[0])["prompt"] == CANARY
        assert next(r for r in metrics.requests if r["path"] == "/tokenize")["Authorization"] == "Bearer key"
        publisher.wait_for_subscriber()
        publisher.publish(with_tokens(stored(502, parent=501), [*range(4, 8)]))
        more, answer = answers(session)
        assert answer.keys == [[501], [502]]
    finally:
        session.stop()
    state = folded(events + more)
    assert state.pool is not None
    kept = b"".join(path.read_bytes() for path in (tmp_path / "run").iterdir())
    assert CANARY.encode() not in kept
    recorded = [event for frame in read_frames(tmp_path / "run" / FRAMES_NAME) for event in frame]
    assert recorded
    assert not any(isinstance(event, PromptKeys) for event in recorded)
    assert CANARY not in repr(recorded)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer(b"nope", status=404), "/tokenize: HTTP 404"),
        (Answer(b"<html>"), "bad response"),
        (Answer(b"[1, 2]"), "bad response"),
        (Answer(b'{"tokens": "12"}'), "bad response"),
        (Answer(b'{"tokens": [1, -2]}'), "bad response"),
        (Answer(b'{"tokens": [1, true]}'), "bad response"),
        (Answer(b"\xff\xfe"), "bad response"),
        (Answer(b"", status=302, headers={"Location": "http://127.0.0.1:1/"}), "HTTP 302"),
    ],
)
def test_a_server_that_does_not_tokenize_says_what_would(server, answer: Answer, why: str) -> None:
    server[0].on_post = answer
    session = AttachSession(spec_of(server))
    session.start()
    try:
        session.send(FindPrompt(text=CANARY))
        _, told = answers(session, "--tokenizer")
    finally:
        session.stop()
    assert why in told.problem
    assert "zebra" not in told.problem


def test_token_ids_need_no_tokenizer(server) -> None:
    metrics, publisher = server
    publisher.publish(with_tokens(stored(501), [*range(4)]))
    session = AttachSession(spec_of(server))
    session.start()
    try:
        session.send(FindPrompt(tokens=[0, 1, 2, 3, 4]))
        assert answers(session)[1].keys == [[501]]
    finally:
        session.stop()
    assert metrics.posted == []


def test_without_kv_events_the_prompt_goes_nowhere(server) -> None:
    session = AttachSession(spec_of(server, kv_events=[], replays=[]))
    session.start()
    try:
        session.send(FindPrompt(text=CANARY))
        answers(session, "not reported: what is cached, servers tell in KV events: give --kv-events")
    finally:
        session.stop()
    assert server[0].posted == []


def test_events_without_tokens_are_not_reported_and_a_silent_server_has_none_yet(server) -> None:
    session = AttachSession(spec_of(server))
    session.start()
    try:
        session.send(FindPrompt(tokens=[1, 2, 3, 4]))
        answers(session, "no event of a stored block has come yet")
        server[1].publish({**stored(501), "token_ids": []})
        answers(session, "not reported: the KV events carry hashes without token ids (1 block")
    finally:
        session.stop()


def test_blocks_under_parents_from_before_cannot_be_matched() -> None:
    tracker = KvTracker()
    index = tracker.blocks.prompts
    index.stored(Stored([502], 501, [1, 2, 3, 4], 4, "GPU", 0))
    tracker.blocks.block_size = 4
    asked = AskedPrompt(tracker.blocks)
    asked.ask([1, 2, 3, 4])
    told = asked.news(5)
    assert told is not None
    assert "stored before kvtop listened" in told.problem
    assert asked.news(6) is None  # said once


# Tokenizers --------------------------------------------------------------------------------------------------

WORDS = {
    "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None, "decoder": None, "truncation": None, "padding": None,
    "model": {"type": "WordLevel", "vocab": {"why": 0, "would": 1, "it": 2, "miss": 3, "?": 4}, "unk_token": "?"},
}  # fmt: skip


def test_a_local_tokenizer_is_a_folder_or_a_file_and_asks_nobody(server, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(WORDS))
    assert tokenizer_file(tmp_path) == tokenizer_file(tmp_path / "tokenizer.json") == tmp_path / "tokenizer.json"
    server[1].publish(with_tokens(stored(501), [0, 1, 2, 3]))
    session = AttachSession(spec_of(server, tokenizer=tmp_path / "tokenizer.json"))
    session.start()
    try:
        session.send(FindPrompt(text="why would it miss zebra"))
        _, answer = answers(session)
    finally:
        session.stop()
    assert (answer.num_tokens, answer.keys) == (5, [[501]])
    assert server[0].posted == []


def test_what_is_no_tokenizer_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no tokenizer\.json"):
        tokenizer_file(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_bytes(gzip.compress(b"no"))
    with pytest.raises(NoTokens, match="no tokenizer"):
        tokens_by_file(file, CANARY)


def test_the_page_is_beside_the_metrics(server) -> None:
    metrics = server[0]
    metrics.on_post = Answer(b'{"tokens": [5]}')
    address = address_of(f"{metrics.url}/replica/metrics")
    assert tokens_by_server(address, "m", "x", api_key=None, timeout_s=60.0) == [5]
    assert metrics.requests[-1]["path"] == "/replica/tokenize"
    assert json.loads(metrics.posted[-1]) == {"prompt": "x", "model": "m"}
