"""The two effects that kvtop's own workloads show: prefix caching in virtual time, chunked prefill on a small model."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from kvtop.cli.main import main
from kvtop.engine.config import EngineConfig, with_whole_prompts

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def columns(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert main(["compare", *words, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["comparable"]
    return found["columns"]


def test_prefix_caching_spares_the_system_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A prompt of some 2,040 tokens takes 16 steps of 128; behind a cached system prompt, one."""
    words = ("-w", "apc", "--vary", "prefix-caching=off,on", "--executor", "null", "--max-batched-tokens", "128")
    svg = tmp_path / "plot.svg"
    off, on = columns(capsys, *words, "--svg", str(svg), "-o", str(tmp_path / "out"))
    assert [off["label"], on["label"]] == ["fcfs cache=off", "fcfs cache=on"]
    assert off["values"]["ttft_p50_ns"] == 16 * 10_000_000
    assert on["values"]["ttft_p50_ns"] == 1 * 10_000_000
    assert on["values"]["ttft_max_ns"] == 16 * 10_000_000, "the first prompt finds nothing"
    assert on["values"]["hit_rate"] == pytest.approx(6 * 2000 / (7 * 2036), rel=0.01)
    assert "simulated" in "".join(ET.parse(svg).getroot().itertext())


def test_without_chunks_a_step_holds_a_whole_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("-w", "chunked", "--vary", "chunked-prefill=off,on", "--executor", "null", "--max-model-len", "4096")
    off, on = columns(capsys, *words, "-o", str(tmp_path / "out"))
    assert off["classes"]["document"]["ttft_max_ns"] == 1 * 10_000_000
    assert on["classes"]["document"]["ttft_max_ns"] == 8 * 10_000_000  # of 512 tokens, the chats' among them
    assert off["runs"][0]["manifest"]["max_batched_tokens"] == 4095 + 64


@pytest.mark.slow
def test_chunks_bound_the_gap_that_a_document_makes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("-w", "chunked", "--vary", "chunked-prefill=off,on", "-m", "tiny", "--max-model-len", "4096")
    more = ("--num-blocks", "832", "--time-scale", "0.05", "--limit", "5", "-o", str(tmp_path / "out"))
    off, on = columns(capsys, *words, *more)
    assert off["classes"]["chat"]["itl_max_ns"] > 3 * on["classes"]["chat"]["itl_max_ns"]


@pytest.mark.parametrize(
    ("values", "num_blocks", "budget"),
    [
        ({}, 100, None),
        ({"chunked_prefill": True}, 100, None),
        ({"chunked_prefill": False, "max_batched_tokens": 99}, 100, 99),
        ({"chunked_prefill": False}, None, None),
        ({"chunked_prefill": False}, 100, 1600 + 64),
        ({"chunked_prefill": False, "block_size": 8}, 100, 800 + 64),
        ({"chunked_prefill": False, "max_model_len": 1001}, 100, 1000 + 64),
        ({"chunked_prefill": False, "max_model_len": 1001, "max_num_seqs": 4}, None, 1004),
        ({"chunked_prefill": False, "max_model_len": 9}, 100, 512),
    ],
)
def test_the_budget_holds_a_whole_prompt_beside_every_other_seat(
    values: dict[str, Any], num_blocks: int | None, budget: int | None
) -> None:
    made = with_whole_prompts(values, num_blocks)
    assert made.get("max_batched_tokens") == budget
    if values.get("max_batched_tokens") is None and num_blocks is not None:
        EngineConfig.from_mapping({**made, "num_blocks": num_blocks})  # raises where a prompt would not fit
