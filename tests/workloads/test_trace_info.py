"""``kvtop trace info``: the figures of a trace, each held to a computation of its own, and the published ones."""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trace_files import document

from kvtop.cli.main import main
from kvtop.workloads.builtins import AZURE_CONV_SLICE, MOONCAKE_SLICE
from kvtop.workloads.formats.registry import FORMATS


def info(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, Any]:
    assert main(["trace", "info", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_figures_of_a_mooncake_slice_are_numpys(capsys: pytest.CaptureFixture[str]):
    rows = [json.loads(line) for line in gzip.decompress(MOONCAKE_SLICE.read_bytes()).splitlines()]
    found = info(capsys, MOONCAKE_SLICE)
    assert (found["format"], found["rows"], found["notices"]) == ("mooncake", 1000, [])
    for name, key in (("prompt_tokens", "input_length"), ("output_tokens", "output_length")):
        values = np.array([row[key] for row in rows])
        want = {"sum": values.sum(), "mean": values.mean(), "max": values.max(), "min": values.min()}
        want |= {f"p{q}": np.percentile(values, q) for q in (50, 95, 99)}
        assert {key: found[name][key] for key in want} == pytest.approx(want)
    times = np.array([row["timestamp"] for row in rows]) / 1000
    gaps = np.diff(times)
    arrivals = found["arrivals"]
    assert (arrivals["source"], arrivals["unit_in_file"]) == ("recorded", "milliseconds")
    assert arrivals["span_s"] == times[-1] - times[0]
    assert arrivals["rate_per_s"] == pytest.approx(999 / times[-1])
    assert arrivals["gap_cv"] == pytest.approx(gaps.std() / gaps.mean())
    assert arrivals["distinct_times"] == len(set(times))
    assert arrivals["most_rows_at_one_time"] == np.unique(times, return_counts=True)[1].max()
    ids = [i for row in rows for i in row["hash_ids"]]
    assert found["ids"] == {
        "block_tokens": 512,
        "rounding": "ceil",
        "total": len(ids),
        "distinct": len(set(ids)),
        "seen_before_share": pytest.approx(1 - len(set(ids)) / len(ids)),
    }
    assert found["sessions"] is None


def test_sessions_sub_agents_and_think_times_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def call(t: float, think: float) -> dict[str, Any]:
        return {"t": t, "type": "n", "in": 64, "out": 2, "hash_ids": [1], "think_time": think, "api_time": 1.0}

    agent = {
        "t": 20.0,
        "type": "subagent",
        "agent_id": "x",
        "duration_ms": 18_000,
        "requests": [call(0, 0), call(5, 4)],
    }
    requests = [call(0, 0), agent, call(30.0, 29.0)]
    for name, own in (("a", requests), ("b", [call(0, 0)])):
        document(tmp_path / f"trace_{name}.json", {"id": name, "block_size": 64, "requests": own})
    found = info(capsys, tmp_path)["sessions"]
    assert (found["sessions"], found["sub_agents"], found["rows_of_sub_agents"]) == (2, 1, 2)
    assert found["rows_without_session"] == 0
    assert (found["turns"]["n"], found["turns"]["max"]) == (3, 2)
    assert sorted([found["think_s"]["min"], found["think_s"]["p50"], found["think_s"]["max"]]) == [1.0, 4.0, 10.0]


def test_the_text_names_every_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["trace", "info", str(AZURE_CONV_SLICE)]) == 0
    text = capsys.readouterr().out
    for words in (
        "rows        1,000",
        "in date and time",
        " s    rate ",
        " /s ",
        "prompt, tokens",
        "tokens counted by",
    ):
        assert words in text
    assert "none: nothing is known about shared prefixes" in text
    assert max(map(len, text.splitlines())) <= 90
    assert main(["trace", "info", str(MOONCAKE_SLICE)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 90


def test_a_trace_of_one_row_has_no_rate_and_none_is_no_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "v.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n3.5,7,8\n")
    found = info(capsys, path)
    assert (found["arrivals"]["span_s"], found["arrivals"]["rate_per_s"], found["arrivals"]["gap_cv"]) == (
        0,
        None,
        None,
    )
    assert main(["trace", "info", str(path)]) == 0


def test_unknown_words_and_files_end_with_one_line(capsys: pytest.CaptureFixture[str]):
    for words, message in (
        (["inof"], "unknown trace subcommand 'inof'; did you mean 'info'?"),
        ([], "required"),
        (["info"], "required"),
        (["info", "absent.csv"], "no such file"),
        (["info", str(MOONCAKE_SLICE), "--format", "azur"], "did you mean 'azure'"),
        (["info", str(MOONCAKE_SLICE), str(AZURE_CONV_SLICE)], "a mooncake trace is one file"),
    ):
        assert main(["trace", *words]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_help_lists_the_subcommands_and_theirs_the_options(capsys: pytest.CaptureFixture[str]):
    assert main(["trace", "--help"]) == 0
    assert "convert" in capsys.readouterr().out
    assert main(["trace", "info", "--help"]) == 0
    assert "--hash-block-tokens" in capsys.readouterr().out


def test_every_format_is_listed_with_its_looks(capsys: pytest.CaptureFixture[str]):
    assert main(["trace", "formats"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in FORMATS)
    assert "written (kvtop trace convert --to): mooncake, kvtop, vidur" in text
    assert main(["trace", "formats", "--json"]) == 0
    assert {found["name"]: found["written"] for found in json.loads(capsys.readouterr().out)}["azure"] is False


def published() -> Path:
    folder = os.environ.get("KVTOP_TRACES")
    if not folder:
        pytest.skip("KVTOP_TRACES names no folder with the published traces")
    return Path(folder)


# (rows, span in s, (prompt mean, p50, p95, p99, max, sum or None), (output ...)): as their publishers' files have them.
PUBLISHED = {
    "mooncake/conversation_trace.jsonl.gz": (
        12_031, 3536.999, (12_035, 6_909, 39_551, 85_400, 126_195, 144_793_823),
        (342.6, 350, 698, None, 2_000, 4_122_048),
    ),
    "azure2023/AzureLLMInferenceTrace_code.csv": (
        8_819, 3435.948056, (2_047.85, 1_469, 7_303.3, 7_436, 7_437, None), (27.88, 13, 90, None, 1_899, None),
    ),
    "azure2023/AzureLLMInferenceTrace_conv.csv.gz": (
        19_366, 3501.721937, (1_154.70, 1_020, 4_083, 4_142, 14_050, None), (211.13, 129, 451, None, 1_000, None),
    ),
    "vidur/splitwise_code.csv.gz": (
        8_819, 3435.948056, (2_047.85, 1_469, 7_303.3, 7_436, 7_437, None), (27.88, 13, 90, None, 1_899, None),
    ),
    "vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv.gz": (
        28_257, None, (2_588.1, None, None, None, 4_054, None), (291.4, None, None, 3_271, 4_056, None),
    ),
    "llmservingsim-vllm/rtxpro6000-llama-3.1-8b-tp1/requests.jsonl": (300, None, (None,) * 6, (None,) * 6),
    "weka-agentic": (
        6_722 + 107, 80_479, (None, None, None, None, 878_882, None), (None, None, None, None, 13_736, None),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_traces_have_their_published_figures(name: str, capsys: pytest.CaptureFixture[str]):
    rows, span_s, prompts, outputs = PUBLISHED[name]
    found = info(capsys, published() / name)
    assert found["rows"] == rows
    if span_s is not None:
        assert found["arrivals"]["span_s"] == span_s
    for key, want in (("prompt_tokens", prompts), ("output_tokens", outputs)):
        for column, value in zip(("mean", "p50", "p95", "p99", "max", "sum"), want, strict=True):
            if value is not None:
                exact = column in ("sum", "max", "p50")
                assert found[key][column] == (value if exact else pytest.approx(value, abs=0.51)), (key, column)


@pytest.mark.slow
def test_published_ids_arrivals_and_sessions_are_counted_right(capsys: pytest.CaptureFixture[str]):
    folder = published()
    mooncake = info(capsys, folder / "mooncake/conversation_trace.jsonl.gz")
    assert (mooncake["ids"]["distinct"], mooncake["ids"]["total"]) == (182_790, 288_500)
    assert (mooncake["arrivals"]["distinct_times"], mooncake["arrivals"]["most_rows_at_one_time"]) == (1_180, 28)
    for name, cv in (("code.csv", 13.15), ("conv.csv.gz", 1.094)):
        azure = info(capsys, folder / f"azure2023/AzureLLMInferenceTrace_{name}")
        assert azure["arrivals"]["gap_cv"] == pytest.approx(cv, rel=5e-4)
    weka = info(capsys, folder / "weka-agentic")["sessions"]
    assert (weka["sessions"], weka["sub_agents"], weka["rows_of_sub_agents"]) == (135, 10, 107)


@pytest.mark.slow
def test_the_published_agent_sessions_have_their_published_figures():
    from kvtop.workloads.formats.registry import load_trace

    trace = load_trace([published() / "weka-agentic"])
    calls = [row for row in trace.rows if "/" not in row.session_id]
    prompts, outputs = np.array([r.prompt_tokens for r in calls]), np.array([r.output_tokens for r in calls])
    assert len(calls) == 6_722
    assert [round(v) for v in (prompts.mean(), *np.percentile(prompts, [50, 95, 100]))] == [
        102_455,
        86_278,
        243_851,
        878_882,
    ]
    assert np.sum(prompts + outputs > 131_072) == 1_368
    assert [round(float(v), 1) for v in (outputs.mean(), *np.percentile(outputs, [50, 95, 100]))] == [
        409.7,
        206,
        1353,
        13736,
    ]


@pytest.mark.slow
def test_the_published_clients_are_read_whole_and_sampled_in_part(capsys: pytest.CaptureFixture[str]):
    folder = published() / "servegen"
    windows = [
        [line.split(",") for line in gzip.decompress(path.read_bytes()).decode().split()]
        for path in sorted(folder.glob("*-trace.csv.gz"))
    ]
    assert [len(rows) for rows in windows] == [2_016] * 3
    counts = [{int(row[0]): round(float(row[1]) * 600) for row in rows} for rows in windows]
    assert main(["trace", "info", str(folder)]) == 2
    assert f"stands for {sum(sum(found.values()) for found in counts):,} requests" in capsys.readouterr().err
    found = info(capsys, folder, "--start", "751800", "--end", "752400")
    inside = sum(count for client in counts for start, count in client.items() if start == 751_800)
    assert found["rows"] == inside
    assert found["arrivals"]["span_s"] <= 600


@pytest.mark.slow
def test_a_published_trace_is_read_in_seconds_and_little_memory():
    path = published() / "mooncake/conversation_trace.jsonl.gz"
    command = [sys.executable, "-m", "kvtop", "trace", "info", str(path), "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 10
    assert after.ru_maxrss < 300 * 1024
