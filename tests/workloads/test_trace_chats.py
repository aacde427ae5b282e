"""Chats: Qwen-Bailian's turns and branches, ShareGPT's and OpenAI's texts, what is approximated and said so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trace_files import arrivals_s, document, json_lines, lengths, refused, turn

from kvtop.workloads.formats.base import ReadOptions
from kvtop.workloads.formats.registry import load_trace, read_trace
from kvtop.workloads.load import load_workload
from kvtop.workloads.sessions import predecessors
from kvtop.workloads.spec import WorkloadSpec


def qwen(chat: int, parent: int, time: float, tokens: int, number: int, **more: Any) -> dict[str, Any]:
    ids = list(range(chat * 100, chat * 100 + -(-tokens // 16)))
    row = {"chat_id": chat, "parent_chat_id": parent, "timestamp": time, "input_length": tokens, "output_length": 9}
    return {**row, "type": "text", "turn": number, "hash_ids": ids, **more}


CHAT = [
    qwen(1, -1, 10.0, 40, 1),
    qwen(2, -1, 10.5, 20, 1, type="search"),
    qwen(3, 1, 14.25, 100, 2),
    qwen(4, 1, 16.0, 90, 2),
    qwen(5, 3, 20.0, 120, 3),
    qwen(6, 777, 21.0, 50, 4),
]


def test_qwen_turns_follow_their_parents_and_a_second_follow_up_is_a_branch(tmp_path: Path):
    trace = read_trace(json_lines(tmp_path / "q.jsonl", CHAT))
    assert (trace.format, trace.rounding, trace.time_unit) == ("qwen", "ceil", "seconds")
    assert arrivals_s(trace) == [0.0, 0.5, 4.25, 6.0, 10.0, 11.0]
    assert [(row.session_id, row.turn) for row in trace.rows] == [
        ("1", 1), ("2", 1), ("1", 2), ("4", 2), ("1", 3), ("6", 4),
    ]  # fmt: skip
    assert [row.think_ns for row in trace.rows] == [None, None, 4_250_000_000, 6_000_000_000, 5_750_000_000, None]
    assert trace.rows[3].after == (("1", 1),)
    assert predecessors(trace.rows) == {2: (0,), 3: (0,), 4: (2,)}
    assert [row.klass for row in trace.rows][:2] == ["text", "search"]
    assert {row.hash_block_tokens for row in trace.rows} == {16}
    assert any("3 think times not recorded" in notice for notice in trace.notices)
    assert any("1 turn whose parent is not in the trace" in notice for notice in trace.notices)


def test_qwen_ids_of_full_blocks_only_are_accepted_too(tmp_path: Path):
    rows = [{**row, "hash_ids": row["hash_ids"][: row["input_length"] // 16]} for row in CHAT]
    trace = read_trace(json_lines(tmp_path / "q.jsonl", rows))
    assert trace.rounding == "floor"
    assert [len(row.hash_ids) for row in trace.rows] == [2, 1, 6, 5, 7, 3]


def test_qwen_rows_that_mix_the_rules_or_fit_none_name_row_numbers_and_block(tmp_path: Path):  # W43
    mixed = [CHAT[0], {**CHAT[1], "hash_ids": [7]}]
    error = refused(
        json_lines(tmp_path / "q.jsonl", mixed), "hash_ids has 1 ids", "input_length 20 needs 2", "16 tokens"
    )
    assert error.row == 2
    refused(json_lines(tmp_path / "q.jsonl", [{**CHAT[0], "hash_ids": [1] * 9}]), "hash_ids has 9 ids", "40 needs 3")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"timestamp": "1"}, ['timestamp is "1"', "a number (seconds)"]),
        ({"timestamp": -0.5}, ["timestamp is -0.5", "from 0 up"]),
        ({"turn": None}, ["turn is null", "an integer"]),
        ({"chat_id": 1}, ["chat_id 1 appears twice"]),
        ({"input_length": 0}, ["input_length is 0"]),
    ],
)
def test_a_broken_qwen_row_is_named(change: dict, words: list[str], tmp_path: Path):
    error = refused(json_lines(tmp_path / "q.jsonl", [CHAT[0], {**CHAT[1], **change}]), *words)
    assert error.row == 2


def test_a_mooncake_file_is_not_taken_for_qwens_nor_the_other_way_round(tmp_path: Path):
    row = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
    assert load_trace([json_lines(tmp_path / "m.jsonl", [row])]).format == "mooncake"
    assert load_trace([json_lines(tmp_path / "q.jsonl", CHAT)]).format == "qwen"


def said(sender: str, text: str) -> dict[str, str]:
    return {"from": sender, "value": text}


SHAREGPT = [
    {
        "id": "x",
        "conversations": [said("human", "a" * 8), said("gpt", "b" * 40), said("human", "c"), said("gpt", "d" * 9)],
    },
    {"id": "y", "conversations": [said("gpt", "Welcome!"), said("human", "hi"), said("gpt", "中文")]},
    {"id": "z", "conversations": [said("human", "nobody answers")]},
]


def test_every_sharegpt_answer_is_a_turn_of_which_the_text_is_counted(tmp_path: Path):
    path = document(tmp_path / "s.json", SHAREGPT)
    trace = load_trace([path])
    # Four bytes a token, rounded up for each message: 2; 2 + 10 + 1; 2 ("Welcome!") + 1; and 6 bytes of Chinese.
    assert lengths(trace) == [(2, 10), (13, 3), (3, 2)]
    assert [(row.session_id, row.turn, row.think_ns) for row in trace.rows] == [
        ("c0", 1, None), ("c0", 2, 0), ("c1", 1, None),
    ]  # fmt: skip
    assert "approximation" in trace.counted_by
    assert "4 bytes" in trace.counted_by
    assert "1 conversation without a question and an answer dropped" in trace.notices
    refused(path, "records no arrival times", "arrival_rate")


def test_a_sharegpt_turn_begins_with_the_turn_before_and_its_answer(tmp_path: Path):
    path = document(tmp_path / "s.json", SHAREGPT)
    workload = load_workload(WorkloadSpec(name=str(path), arrival_rate=1.0), vocab_size=999)
    source = workload.source()
    first = source.pop_due(0)[0]
    assert first.params.forced_output is not None
    source.on_finished(first.request_id or "", 0)
    later = {spec.turn: spec for spec in source.pop_due(10**18) if spec.session_id == first.session_id}
    assert list(later[2].prompt[:12]) == [*first.prompt, *first.params.forced_output]
    assert len(later[2].prompt) == 13


def test_a_sharegpt_open_loop_is_refused_since_nobody_recorded_when_turns_arrived(tmp_path: Path):
    path = document(tmp_path / "s.json", SHAREGPT)
    spec = WorkloadSpec(name=str(path), arrival_rate=1.0, replay="open")
    refused(path, "was never recorded", read=lambda _: load_workload(spec, vocab_size=99))


def test_a_tokenizer_counts_instead_and_is_named(tmp_path: Path):
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({"hello": 0, "big": 1, "world": 2, "?": 3}, unk_token="?")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    path = document(
        tmp_path / "s.json", [{"conversations": [said("user", "hello big world"), said("gpt", "hello you")]}]
    )
    trace = load_trace([path], options=ReadOptions(tokenizer=str(tmp_path)))
    assert lengths(trace) == [(3, 2)]
    assert trace.counted_by == f"the tokenizer {tmp_path}"
    refused(path, "no such tokenizer", read=lambda p: load_trace([p], options=ReadOptions(tokenizer="none.json")))


def test_a_sharegpt_message_from_nobody_known_is_named(tmp_path: Path):
    found = [{"conversations": [said("human", "a"), said("narrator", "b")]}]
    refused(document(tmp_path / "s.json", found), "[0].conversations[1]", "message from 'narrator'")


def batch(number: int, *messages: tuple[str, Any], **body: Any) -> dict[str, Any]:
    listed = [{"role": role, "content": content} for role, content in messages]
    head = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions"}
    return {**head, "body": {"model": "m", "messages": listed, **body}}


SYSTEM = "You are a careful assistant. " * 20


def test_openai_batch_requests_share_what_their_texts_share(tmp_path: Path):
    rows = [
        batch(0, ("system", SYSTEM), ("user", "one"), max_tokens=50),
        batch(1, ("system", SYSTEM), ("user", [{"type": "text", "text": "two"}]), max_completion_tokens=60, n=3),
        batch(2, ("system", "x"), ("user", "three"), max_tokens=70),
    ]
    trace = load_trace([json_lines(tmp_path / "o.jsonl", rows)])
    rendered = [f"system\n{SYSTEM}\nuser\none\n", f"system\n{SYSTEM}\nuser\ntwo\n", "system\nx\nuser\nthree\n"]
    assert lengths(trace) == [(-(-len(text) // 4), out) for text, out in zip(rendered, (50, 60, 70), strict=True)]
    assert [row.n for row in trace.rows] == [1, 3, 1]
    full = (len(f"system\n{SYSTEM}\nuser\n") // 4) // 16
    assert trace.rows[0].hash_ids[:full] == trace.rows[1].hash_ids[:full]
    assert full >= 9
    assert trace.rows[2].hash_ids == ()
    assert trace.rounding == "floor"
    assert any("max_tokens is the output length of 3 requests" in notice for notice in trace.notices)


def test_an_openai_request_without_a_length_says_which_option_gives_one(tmp_path: Path):
    path = json_lines(tmp_path / "o.jsonl", [batch(0, ("user", "hello"))])
    refused(path, ":1", "neither max_completion_tokens nor max_tokens", "output_tokens")
    assert lengths(load_trace([path], options=ReadOptions(output_tokens=7))) == [(3, 7)]


def test_openai_chats_are_sessions(tmp_path: Path):
    messages = [("user", "a" * 20), ("assistant", "b" * 20), ("user", "c"), ("assistant", "d" * 4)]
    row = {"messages": [{"role": role, "content": text} for role, text in messages]}
    trace = read_trace(json_lines(tmp_path / "o.jsonl", [row]), arrival_rate=1.0)
    assert [r.turn for r in trace.rows] == [1, 2]
    first, second = trace.rows
    assert second.prompt_tokens >= first.prompt_tokens + first.output_tokens
    assert turn(trace, first.session_id, 2).think_ns == 0


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (batch(0, ("user", [{"type": "image_url", "image_url": {}}]), max_tokens=5), ["'image_url' has no text"]),
        (
            {"custom_id": "a", "body": {"model": "m", "input": "x", "content": "role", "max_tokens": 3}},
            ["neither messages"],
        ),
        (batch(0, ("user", "a"), max_tokens=0), ["the output is 0"]),
        (batch(0, ("user", "a"), max_tokens=3, n=0), ["n is 0"]),
        (batch(0, ("user", 5), max_tokens=3), ["content is of type int"]),
    ],
)
def test_an_openai_row_that_cannot_be_served_is_named(row: dict, words: list[str], tmp_path: Path):
    refused(json_lines(tmp_path / "o.jsonl", [row]), str(tmp_path), *words, read=lambda p: load_trace([p], "openai"))


def test_numbers_that_are_not_json_are_refused_everywhere(tmp_path: Path):  # W49
    for name, text in {
        "q.jsonl": json.dumps(CHAT[0]).replace("10.0", "NaN"),
        "s.json": json.dumps(SHAREGPT).replace('"x"', "Infinity"),
        "o.jsonl": json.dumps(batch(0, ("user", "a"), max_tokens=3)).replace("3", "-Infinity"),
    }.items():
        path = tmp_path / name
        path.write_text(text)
        refused(path, "is not JSON", read=lambda p: load_trace([p]))
