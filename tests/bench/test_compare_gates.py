"""``--fail-on``, ``--slo``, ``--primary`` and ``--json`` of kvtop compare."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from made_runs import MS, S, finished, make_run, simple_run, steps_of

from kvtop.analysis.compare import Options, compare_paths
from kvtop.analysis.measures import MEASURES
from kvtop.analysis.slo import parse_slo
from kvtop.cli.comparison import render
from kvtop.cli.main import main


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """TTFT 100 and 110 ms, 0 and 0 preemptions, hit rate 50 % under both."""
    made = [simple_run(tmp_path / "a", ttft_ms=100), simple_run(tmp_path / "b", ttft_ms=110, policy="lpm")]
    return [str(path) for path in made]


@pytest.mark.parametrize(
    ("condition", "code", "says"),
    [
        ("ttft_p99>+5%", 1, "failed in lpm: +10.0 %"),
        ("ttft_p99>+15%", 0, "passed in lpm: +10.0 %"),
        ("ttft_p99_ns>+5ms", 1, "failed in lpm: +10.0 ms"),
        ("ttft_p99>+20ms", 0, "passed in lpm: +10.0 ms"),
        ("ttft_p99>105ms", 1, "failed in lpm: 110 ms"),
        ("ttft_p99>1s", 0, "passed in lpm: 110 ms"),
        ("output_tokens_s<-0.1%", 1, "failed in lpm: -0.5 %"),
        ("hit_rate<60%", 1, "failed in lpm: 50.0 %"),
        ("hit_rate<0.5", 0, "passed in lpm: 50.0 %"),
        ("preemptions>+0", 0, "passed in lpm: 0"),
        ("slo_attainment<90%", 1, "failed in lpm: slo_attainment is not reported"),
        ("host_hit_rate<-5%", 1, "host_hit_rate is not reported"),
        ("lag_p99>+5%", 0, "passed in lpm"),
    ],
)
def test_a_gate_is_an_exit_code_and_a_line(
    runs: list[str], capsys: pytest.CaptureFixture[str], condition: str, code: int, says: str
) -> None:
    assert main(["compare", *runs, "--fail-on", condition]) == code
    line = capsys.readouterr().err.strip()
    assert line.startswith("kvtop: --fail-on ")
    assert says in line
    assert "\n" not in line


def test_several_gates_fail_when_one_does(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *runs, "--fail-on", "ttft_p99>1s,e2e_p99>+50%", "--fail-on", "ttft_p50>+1%"]) == 1
    assert [line.split(": ")[2][:6] for line in capsys.readouterr().err.splitlines()] == ["passed", "passed", "failed"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--fail-on", "tftt_p99>+5%"], "unknown metric in --fail-on 'tftt_p99'; did you mean 'ttft_p99'"),
        (["--fail-on", "ttft_p99"], "expected METRIC OP VALUE"),
        (["--fail-on", "ttft_p99>5"], "ttft_p99 is a duration, expected a unit"),
        (["--fail-on", "preemptions>5ms"], "preemptions takes no 'ms'"),
        (["--primary", "ttft_p98"], "unknown metric in --primary 'ttft_p98'; did you mean 'ttft_p9"),
        (["--primary", "ttft_p99,"], "an empty name"),
        (["--slo", "ttft<2"], "expected a unit"),
        (["--phase", "stedy"], "did you mean 'steady'"),
        (["--warmup", "-1"], "out of range"),
    ],
)
def test_what_cannot_be_meant_is_one_line_and_exit_2(
    runs: list[str], capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert main(["compare", *runs, *words]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_change_needs_a_second_column(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", runs[0], "--fail-on", "ttft_p99>+5%"]) == 2
    assert "has one column, a change needs two" in capsys.readouterr().err
    assert main(["compare", runs[0], "--fail-on", "ttft_p99>99ms"]) == 1, "an absolute bound holds for the only one"


def test_a_change_from_zero_has_no_size_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = {"a": [10 * MS, 20 * MS]}
    runs = []
    for name, lag in (("one", 0), ("two", 5 * MS)):
        end = finished("a", 0, tokens=times["a"], t_submit_ns=lag)
        runs.append(str(make_run(tmp_path / name, [*steps_of(times), end], policy=name)))
    assert main(["compare", *runs, "--fail-on", "lag_p99>+5%"]) == 1
    assert "failed in two: lag_p99 of the first column is 0" in capsys.readouterr().err


def test_gates_are_in_the_json_with_their_numbers(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *runs, "--json", "--fail-on", "ttft_p99>+5%"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    (gate,) = found["gates"]
    assert (gate["text"], gate["label"], gate["unit"], gate["failed"]) == ("ttft_p99>+5%", "lpm", "ratio", True)
    assert (gate["base"], gate["value"]) == (100 * MS, 110 * MS)
    assert gate["compared"] == pytest.approx(0.1)


def test_objectives_give_goodput_in_table_notes_and_json(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *runs, "--slo", "ttft<105ms", "--fail-on", "slo_attainment<90%"]) == 1
    text = capsys.readouterr().out
    rows = {line.split("  ")[0]: line.split() for line in text.splitlines()}
    assert rows["attainment n"][2:] == ["3", "3"]
    assert rows["attainment"][1:] == ["100.0", "%", "0.0", "%", "-100.0", "points"]
    assert "3 of 3 requests met ttft<105ms" in text
    assert "missed: ttft 3" in text
    assert main(["compare", *runs, "--slo", "ttft<105ms", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["columns"][1]["runs"][0]["goodput"]["attainment"] == 0.0
    assert found["primary"][-1] == "goodput_s", "what objectives were given for is tested"


def test_goodput_leaves_out_what_the_run_cut_off_and_counts_what_failed(tmp_path: Path) -> None:
    from made_runs import arrived

    times = {f"r{i}": [100 * MS, 200 * MS] for i in range(5)}
    ends = [finished(name, i, tokens=times[name]) for i, name in enumerate(list(times)[:4])]
    bad = finished("bad", 5, tokens=[], reason="failed")
    run = make_run(tmp_path / "run", [*(arrived(n, i) for i, n in enumerate(times)), *steps_of(times), *ends, bad])
    (comparison,) = compare_paths([run], Options(slo=parse_slo(["ttft<1s"])))
    found = comparison.columns[0].runs[0].goodput
    assert found is not None
    assert (found.met, found.judged, found.cutoff) == (4, 5, 1)
    assert "4 of 5 requests met ttft<1s" in render(comparison)


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for inner in value.values() for number in numbers(inner)]
    if isinstance(value, list):
        return [number for inner in value for number in numbers(inner)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


def test_the_json_holds_every_measure_with_name_and_unit(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *runs, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert list(found["measures"]) == [measure.key for measure in MEASURES]
    assert {entry["unit"] for entry in found["measures"].values()} <= {"ns", "/s", "ratio", "count"}
    for column in found["columns"]:
        assert set(column["values"]) == set(column["change_from_first"]) == set(found["measures"])
        assert column["requests"]["num_ok"] == 3
        assert column["requests"]["phases"] == {"steady": 3}
    second = found["columns"][1]["statistics"]
    assert second["requests"]["ttft"]["p50"] == 10 * MS
    assert second["requests"]["ttft"]["worst"]["request_id"] == "r0"
    assert second["replicates"][0]["reason"] == "1 pair of replicates, an interval needs 3"
    assert found["same_load"] is True
    assert all(math.isfinite(number) for number in numbers(found))


def test_no_successful_request_leaves_nulls_a_count_of_zero_and_a_note(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [finished(f"r{i}", i, tokens=[], reason="failed", hit=None) for i in range(3)])
    (comparison,) = compare_paths([run], Options(slo=parse_slo(["ttft<1s"])))
    (column,) = comparison.columns
    latencies = [m for m in MEASURES if m.key.startswith(("ttft_", "tpot_", "e2e_", "itl_"))]
    values = {measure.key: column.value(measure) for measure in latencies}
    assert len(values) == 20
    assert set(values.values()) == {None}
    text = render(comparison)
    assert "no request succeeded" in text
    assert "-: not reported" in text
    assert "0 of 3 requests met ttft<1s" in text


def test_a_later_second_does_not_change_what_is_compared(tmp_path: Path) -> None:
    """Set-up before the first arrival is in no duration, rate or phase."""
    for name, late in (("early", 0), ("later", 7 * S)):
        times = {f"r{i}": [late + i * S + k * 100 * MS for k in (1, 2)] for i in range(4)}
        ends = [finished(n, i, at=late + i * S, tokens=t) for i, (n, t) in enumerate(times.items())]
        make_run(tmp_path / name, [*steps_of(times), *ends], policy=name)
    (comparison,) = compare_paths([tmp_path])
    second = comparison.columns[1]
    keys = ("ttft_p50_ns", "duration_ns", "requests_s", "offered_requests_s")
    assert {comparison.change(m, second) for m in MEASURES if m.key in keys} == {0}
