"""``kvtop trace hit-rate``: its figures, its plot, and what it says where there is nothing to say."""

from __future__ import annotations

import json
import os
import time
import xml.etree.ElementTree as ET
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from kvtop.cli.main import main
from kvtop.cli.trace_hit_rate import POLICIES as NAMES
from kvtop.plots.curves import Curve, CurvePlot, render_svg, render_text
from kvtop.workloads.builtins import AZURE_CONV_SLICE, MOONCAKE_SLICE
from kvtop.workloads.formats.registry import read_trace
from kvtop.workloads.oracle.curves import POLICIES
from kvtop.workloads.rows import Row

SLICE = str(MOONCAKE_SLICE)
CONVERSATION_TRACE = "mooncake/conversation_trace.jsonl.gz"


def hit_rate(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["trace", "hit-rate", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_figures_stand_beside_their_definitions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "hit-rate", SLICE, "--capacity", "5000,1000"]) == 0
    text = capsys.readouterr().out
    # Counted with a set of the ids seen, over ids, and over those of whole blocks.
    assert "ids as recorded, partial last ones too          5,791      27,305   0.21209" in text
    assert "whole blocks of 512 tokens                      5,780      26,307   0.21971" in text
    assert "tokens of whole blocks, at most prompt - 1  2,959,360  13,732,944   0.21549" in text
    assert [line.split()[0] for line in text.splitlines() if line.startswith(("1,000 ", "5,000 "))] == [
        "1,000",
        "5,000",
    ]
    for policy in POLICIES.values():
        assert policy.meaning in text
    assert "in the trace's order" in text


def test_a_file_name_cannot_command_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "a\x1b[31mb.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 600, "output_length": 20, "hash_ids": [0, 1]}\n')
    assert main(["trace", "hit-rate", str(trace), "--capacity", "1", "--policy", "lru"]) == 0
    text = capsys.readouterr().out
    assert "a?[31mb.jsonl (mooncake): 1 request, 600 prompt tokens" in text
    assert "\x1b" not in text


def test_json_has_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    found = hit_rate(capsys, SLICE, "--capacity", "1000,5000,5000", "--policy", "opt,lru")
    assert found["infinite"]["recorded_ids"] == {"hits": 5791, "of": 27305, "rate": 5791 / 27305}
    assert found["infinite"]["tokens"]["hits"] == 512 * found["infinite"]["whole_blocks"]["hits"]
    curves = found["curves"]
    assert curves["capacity_blocks"] == [1000, 5000]
    assert list(curves["policies"]) == ["opt", "lru"]
    assert curves["policies"]["lru"]["rate"] == [hits / 27305 for hits in curves["policies"]["lru"]["hits"]]


def test_blocks_of_another_size_are_whole_ones(capsys: pytest.CaptureFixture[str]) -> None:
    recorded = hit_rate(capsys, SLICE, "--capacity", "5000", "--limit", "500")
    whole = hit_rate(capsys, SLICE, "--capacity", "5000", "--limit", "500", "--full-blocks")
    fine = hit_rate(capsys, SLICE, "--capacity", "160000", "--limit", "500", "--block-size", "16")
    assert recorded["curves"]["counted"] == "ids as recorded, one for each 512 tokens"
    assert whole["curves"]["counted"] == "whole blocks of 512 tokens"
    assert fine["curves"]["counted"] == "whole blocks of 16 tokens"
    assert recorded["curves"]["asked_blocks"] - whole["curves"]["asked_blocks"] == 500, "each has one partial block"
    assert recorded["requests"] == fine["requests"] == 500
    # The same room holds at least what it did in larger blocks, and no more than each prompt's rest of a block beyond.
    hits = [512 * whole["curves"]["policies"]["opt"]["hits"][0], 16 * fine["curves"]["policies"]["opt"]["hits"][0]]
    assert hits[0] <= hits[1] < hits[0] + 500 * 512


def test_with_answers_the_cache_holds_more_and_serves_less(capsys: pytest.CaptureFixture[str]) -> None:
    prompts = hit_rate(capsys, SLICE, "--capacity", "2000", "--block-size", "16", "--policy", "lru")
    answers = hit_rate(capsys, SLICE, "--capacity", "2000", "--block-size", "16", "--policy", "lru", "--with-answers")
    assert answers["infinite"] == prompts["infinite"], "nobody asks for what was answered"
    assert answers["curves"]["distinct_blocks"] > prompts["curves"]["distinct_blocks"]
    assert answers["curves"]["asked_blocks"] == prompts["curves"]["asked_blocks"]
    assert answers["curves"]["counted"] == "whole blocks of 16 tokens, answers in the cache too"


def test_automatic_sizes_span_all_that_matters(capsys: pytest.CaptureFixture[str]) -> None:
    found = hit_rate(capsys, SLICE, "--policy", "lru")
    sizes, hits = found["curves"]["capacity_blocks"], found["curves"]["policies"]["lru"]["hits"]
    assert 20 <= len(sizes) <= 24
    assert sizes == sorted(set(sizes))
    assert sizes[0] <= found["curves"]["largest_request_blocks"] < sizes[-1] == found["curves"]["distinct_blocks"]
    assert hits[-1] == found["infinite"]["recorded_ids"]["hits"]


def test_an_order_that_nobody_recorded_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "untimed.jsonl"
    row = {"input_length": 12, "output_length": 1, "hash_ids": [1, 2, 3]}
    path.write_text("".join(json.dumps(row) + "\n" for _ in range(2)))
    found = hit_rate(capsys, str(path), "--format", "mooncake", "--hash-block-tokens", "4")
    assert found["notices"] == ["no arrivals are recorded: requests are taken in the order of the file"]
    # The last of the three blocks holds the prompt's last token, which is always computed.
    assert found["infinite"]["recorded_ids"]["hits"] == 3
    assert found["infinite"]["tokens"] == {"hits": 8, "of": 24, "rate": 1 / 3}


def test_a_trace_of_lengths_has_no_prefix_information(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "hit-rate", str(AZURE_CONV_SLICE)]) == 2
    assert "no prefix information" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "lruu"], "did you mean 'lru'?"),
        (["--capacity", "1000,many"], "'many' is not a whole number"),
        (["--capacity", "0"], "out of range"),
        (["--block-size", "0"], "out of range"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "hit-rate", SLICE, *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_the_command_knows_every_policy() -> None:
    assert tuple(POLICIES) == NAMES


def test_svg_holds_a_line_for_each_policy_and_the_infinite_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "curves.svg"
    assert main(["trace", "hit-rate", SLICE, "--capacity", "1000,5000,20000", "--svg", str(path)]) == 0
    root = ET.fromstring(path.read_text())
    names = [line.find("{*}title") for line in root.findall("{*}path")]
    assert [name.text for name in names if name is not None] == [*POLICIES, "infinite"]
    assert len(root.findall("{*}circle")) == 3 * len(POLICIES)


def plot(*shares: list[float], limit: float = 0.5) -> CurvePlot:
    curves = [Curve(f"p{index}", "", values) for index, values in enumerate(shares)]
    return CurvePlot("t", "s", "across", "up", [100, 1000, 10000], curves, Curve("limit", "", [limit]))


def test_marks_of_the_text_plot_are_where_the_values_are() -> None:
    lines = render_text(plot([0.0, 0.25, 0.5]), width=60).splitlines()[1:14]
    area = [line[9:].ljust(50) for line in lines]
    marks = [(row, column) for row, line in enumerate(area) for column, char in enumerate(line) if char == "o"]
    assert marks == [(0, 49), (6, 24), (12, 0)]
    assert area[0] == "." * 49 + "o", "the limit is drawn at its share, behind the marks"


def test_points_of_the_svg_are_where_the_values_are() -> None:
    root = ET.fromstring(render_svg(plot([0.0, 0.25, 0.5])))
    points = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.findall("{*}circle")]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2), "a log axis: equal ratios, equal distances"
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert y0 - y2 == 220


def asked_block_by_block(rows: list[Row], capacity: int) -> int:
    """Hits of an LRU list that is asked for one id after the other, the last one of a prompt first."""
    cached: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for hash_id in (hash_id for row in rows for hash_id in reversed(row.hash_ids)):
        if hash_id in cached:
            hits += 1
            cached.move_to_end(hash_id)
        else:
            cached[hash_id] = None
            if len(cached) > capacity:
                cached.popitem(last=False)
    return hits


@pytest.mark.slow
@pytest.mark.skipif("KVTOP_TRACES" not in os.environ, reason="KVTOP_TRACES names no folder of published traces")
def test_published_figures_of_the_whole_conversation_trace(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(Path(os.environ["KVTOP_TRACES"]) / CONVERSATION_TRACE)
    begin = time.process_time()
    found = hit_rate(capsys, path)
    assert time.process_time() - begin < 30
    assert len(found["curves"]["policies"]) == 4
    infinite = {name: (share["hits"], share["of"]) for name, share in found["infinite"].items()}
    assert infinite == {
        "recorded_ids": (105_710, 288_500),
        "whole_blocks": (105_592, 276_491),
        "tokens": (54_063_104, 144_793_823),
    }
    lru = hit_rate(capsys, path, "--capacity", "1000,10000,50000")["curves"]["policies"]["lru"]["hits"]
    assert lru == [12_847, 61_046, 102_290]
    rows = read_trace(path).rows
    assert [asked_block_by_block(rows, size) for size in (1000, 10_000, 50_000)] == [12_831, 60_914, 102_290]
