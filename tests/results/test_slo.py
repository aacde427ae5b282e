"""Which requests met their objectives, and what the shares are of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from result_runs import STEP_NS, events_of, make_engine, record, specs

from kvtop.analysis.slo import COLUMNS, Slo, goodput, parse_slo
from kvtop.engine.errors import KvtopError
from kvtop.results.judge import judge_run
from kvtop.results.manifest import read_manifest
from kvtop.results.tables import write_tables

MS, S = 10**6, 10**9


def request(klass: str | None = None, status: str = "ok", **times: int | None) -> dict[str, Any]:
    known = {f"{name}_ns": value for name, value in times.items()}
    return dict.fromkeys(COLUMNS.values()) | {"class": klass, "status": status} | known


def slo(*texts: str) -> Slo:
    return parse_slo(texts)


def test_failed_requests_are_in_the_denominator() -> None:
    rows = [request(ttft=100 * MS)] * 9 + [request(status="failed", ttft=30 * MS)]
    found = goodput(rows, slo("ttft<2s"), 5 * S)
    assert (found.met, found.judged, found.attainment) == (9, 10, 0.9)
    assert found.requests_s == pytest.approx(1.8)
    assert found.missed == {"status": 1}


@pytest.mark.parametrize("status", ["failed", "rejected", "aborted", "empty"])
def test_whatever_did_not_succeed_missed_its_objectives(status: str) -> None:
    assert slo("ttft<2s").judge(request(status=status)) is False


def test_what_the_run_cut_off_is_not_judged_and_is_counted() -> None:
    rows = [request(ttft=MS)] * 7 + [request(status="cutoff", ttft=9 * S)] * 3
    found = goodput(rows, slo("ttft<2s"), S)
    assert (found.met, found.judged, found.cutoff, found.no_objective) == (7, 7, 3, 0)


def test_a_class_without_an_objective_does_not_count_as_passing() -> None:
    """Half of the class with a target meets it: 0.5, not 0.75."""
    rows = [request("chat", ttft=MS), request("chat", ttft=3 * S), request("batch", ttft=MS), request("batch", ttft=MS)]
    found = goodput(rows, slo("chat:ttft<2s"), S)
    assert found.attainment == 0.5
    assert (found.judged, found.no_objective) == (2, 2)
    assert found.classes["batch"].attainment is None
    assert found.classes["chat"].attainment == 0.5


def test_a_class_has_its_own_objectives_in_place_of_the_general_ones() -> None:
    found = slo("ttft<1s,tpot<50ms", "batch: e2e<60s")
    assert found.judge(request("batch", ttft=30 * S, e2e=50 * S)) is True
    assert found.judge(request("chat", ttft=30 * S, tpot=MS, e2e=50 * S)) is False
    assert found.judge(request(None, ttft=MS, tpot=60 * MS)) is False
    assert found.judge(request(None, ttft=MS, tpot=40 * MS)) is True


def test_tpot_does_not_apply_to_one_token_answers_and_is_counted() -> None:
    one_token = [request(ttft=MS)] * 10
    alone = goodput(one_token, slo("tpot<20ms"), S)
    assert (alone.judged, alone.attainment, alone.no_objective) == (0, None, 10)
    assert alone.not_applicable == {"tpot": 10}
    both = goodput([*one_token[:9], request(ttft=3 * S)], slo("ttft<2s,tpot<20ms"), S)
    assert (both.met, both.judged) == (9, 10), "judged by the objectives that apply"
    assert both.missed == {"ttft": 1}


def test_bounds_are_strict_where_they_are_written_so() -> None:
    assert slo("ttft<2s").judge(request(ttft=2 * S)) is False
    assert slo("ttft<=2s").judge(request(ttft=2 * S)) is True


def test_the_share_of_ten_in_a_hundred_is_a_tenth_whatever_was_measured() -> None:
    rows = [request(ttft=MS)] * 90 + [request(status="failed")] * 10
    found = goodput(rows, slo("ttft<1s"), S)
    assert found.judged - found.met == 10
    assert found.attainment == 0.9


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (("ttf<2s",), "unknown metric in --slo 'ttf'; did you mean 'ttft'"),
        (("ttft<2",), "expected a unit"),
        (("chat:tpot",), "'tpot' is no condition"),
        (("ttft<2s", "tpot<1s"), "objectives of every class are given twice"),
        (("a:ttft<2s", "a:tpot<1s"), "objectives of class 'a' are given twice"),
        (("ttft>+5%",), "no baseline"),
    ],
)
def test_objectives_that_cannot_be_meant_are_one_line(texts: tuple[str, ...], says: str) -> None:
    with pytest.raises(KvtopError) as caught:
        parse_slo(texts)
    assert says in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_run_is_judged_in_its_table_and_its_manifest(tmp_path: Path) -> None:
    run_dir = record(tmp_path / "run", events_of(make_engine(num_blocks=9), specs(40)))
    write_tables(run_dir)
    assert pl.read_parquet(run_dir / "requests.parquet")["slo_ok"].null_count() == 40
    judge_run(run_dir, slo(f"ttft<{5 * STEP_NS}ns"))
    table = pl.read_parquet(run_dir / "requests.parquet")
    expected = [value is not None and value < 5 * STEP_NS for value in table["ttft_ns"]]
    assert 0 < sum(expected) < 40
    assert table["slo_ok"].to_list() == expected
    assert read_manifest(run_dir)["slo"] == ["ttft<50000000ns"]
    again = write_tables(run_dir)
    assert json.dumps(again["slo"]) == '["ttft<50000000ns"]'
    assert pl.read_parquet(run_dir / "requests.parquet")["slo_ok"].to_list() == expected, "derived anew, judged alike"
