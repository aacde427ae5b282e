"""Whatever a file holds, reading it ends with rows or with one line that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from kvtop.engine.errors import UsageError
from kvtop.workloads.formats.registry import FORMATS, load_trace
from kvtop.workloads.rows import MAX_LENGTH_TOKENS

CALL = {"t": 1.5, "type": "n", "in": 130, "out": 5, "hash_ids": [1, 2], "think_time": 2.0, "api_time": 1.0}
AGENT = {"t": 9.0, "type": "subagent", "agent_id": "x", "duration_ms": 4000, "requests": [CALL]}
SAMPLES = {
    "mooncake": '{"timestamp": 27, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n' * 2,
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n",
    "kvtop": '{"kvtop_trace":1}\n{"arrival_ns":0,"prompt_tokens":9,"output_tokens":2,"after":[["a",1]],"think_ns":5}\n',
    "vidur": "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,4808,10\n",
    "splitwise": "request_id,arrival_timestamp,prompt_size,token_size\n0,0.5,30,4\n",
    "burstgpt": "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens\n5,a,2,M,30,4\n9,a,,M,3,4\n",
    "qwen": json.dumps(
        {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 20, "output_length": 9, "type": "text",
         "turn": 1, "hash_ids": [0, 1]}
    ),
    "weka": json.dumps({"id": "a", "block_size": 64, "requests": [CALL, AGENT, {**CALL, "t": 20}]}),
    "llmservingsim": '{"request_id": "a", "input_toks": 2358, "output_toks": 531, "arrival_time": 1777142838.33}\n',
    "vllm-bench": '{"input_lens": [5, 6], "output_lens": [7, 8], "start_times": [1.5, 2.5], "errors": ["", ""]}',
    "sharegpt": '[{"conversations": [{"from": "human", "value": "Hi there"}, {"from": "gpt", "value": "Hello"}]}]',
    "openai": '{"custom_id": "a", "body": {"messages": [{"role": "user", "content": "H"}], "max_tokens": 5, "n": 2}}\n',
}  # fmt: skip
REPLACEMENTS = [
    "",
    "-",
    "9" * 30,
    "null",
    "NaN",
    "1e400",
    '"x"',
    "[]",
    "{}",
    ",",
    "\n",
    "\\ud800",
    "é",
    "0",
    "true",
    "-1",
]


def mutated(text: str, random: Random) -> str:
    for _ in range(random.randint(1, 3)):
        start = random.randrange(len(text) + 1)
        end = min(len(text), start + random.choice([0, 1, 1, 2, 5, 40]))
        text = text[:start] + random.choice(REPLACEMENTS) + text[end:]
    return text


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_recognised_by_what_it_shows(name: str, tmp_path: Path):
    path = tmp_path / "sample"
    path.write_bytes(SAMPLES[name].encode())
    assert load_trace([path]).format == name


def check_line(text: str, path: Path) -> None:
    assert str(path) in text
    assert "\n" not in text
    assert len(text) < 900


@pytest.mark.parametrize("name", SAMPLES)
def test_a_damaged_file_is_read_or_explained(name: str, tmp_path: Path):
    random = Random(name)
    path = tmp_path / "damaged"
    num_read = num_refused = 0
    for number in range(60):
        text = mutated(SAMPLES[name], random) if number % 10 else SAMPLES[name]
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        for format_name in (None, name):
            try:
                rows = load_trace([path], format_name).rows
            except UsageError as error:
                num_refused += 1
                check_line(str(error), path)
            else:
                num_read += 1
                assert rows
                assert rows[0].arrival_ns == 0
                assert all(0 < row.prompt_tokens <= MAX_LENGTH_TOKENS and row.output_tokens >= 0 for row in rows)
    assert num_read
    assert num_refused


def test_every_format_of_text_has_a_sample():
    elsewhere = {"servegen", "recording", "observed"}  # of several files, or binary: tests of their own
    assert set(SAMPLES) == set(FORMATS) - elsewhere
