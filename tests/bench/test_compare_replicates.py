"""What replicates allow to be said, and what they do not."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from bench_process import kvtop, run_dirs, write_trace
from made_runs import MS, simple_run

from kvtop.analysis.compare import Comparison, Options, compare_runs
from kvtop.analysis.measures import BY_KEY
from kvtop.analysis.replicates import DIFFERENCE, LOG_RATIO, compare_replicates
from kvtop.analysis.run_measures import ASKED_COLUMNS, asked
from kvtop.analysis.stats import Distribution
from kvtop.analysis.summary import RunSummary, load_run
from kvtop.cli.comparison import render
from kvtop.report.tables import verdict


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    return load_run(simple_run(tmp_path_factory.mktemp("made") / "run"))


def made(
    base: RunSummary, policy: str, replicate: int, ttft_ms: float | None, *, clock: str = "virtual", hits: float = 0.5,
    workload: str | None = None, preemptions: int = 0,
) -> RunSummary:  # fmt: skip
    """A run with that median TTFT; its workload depends on the replicate unless ``workload`` says otherwise."""
    manifest = base.manifest | {
        "policy": policy, "replicate": replicate, "clock": clock, "workload_hash": workload or f"w{replicate}",
    }  # fmt: skip
    ttft = Distribution(0) if ttft_ms is None else replace(base.ttft, p50=ttft_ms * MS)
    return replace(
        base, path=f"{policy}{replicate}", manifest=manifest, ttft=ttft, hit_rate=hits, preemptions=preemptions,
        asked=manifest["workload_hash"],
    )  # fmt: skip


BEFORE = (100, 120, 90, 110, 105)
AFTER = (80, 90, 70, 95, 84)


def pair(base: RunSummary, before: tuple[float, ...] = BEFORE, after: tuple[float, ...] = AFTER) -> Comparison:
    runs = [made(base, "fcfs", r, ms) for r, ms in enumerate(before)]
    return compare_runs(runs + [made(base, "lpm", r, ms) for r, ms in enumerate(after)])


def test_five_replicates_give_a_paired_interval_on_the_log_ratio(base: RunSummary) -> None:
    """By hand: mean and standard deviation of the five log ratios, 2.776 from the table."""
    logs = [math.log(b / a) for a, b in zip(BEFORE, AFTER, strict=True)]
    mean = sum(logs) / 5
    error = math.sqrt(sum((x - mean) ** 2 for x in logs) / 4) / math.sqrt(5)
    test = pair(base).statistics[1].tests[0]
    assert (test.measure.key, test.scale, test.n) == ("ttft_p50_ns", LOG_RATIO, 5)
    assert test.change is not None
    assert test.change.estimate == pytest.approx(math.exp(mean) - 1)
    assert test.change.low == pytest.approx(math.exp(mean - 2.7764 * error) - 1, abs=1e-5)
    assert test.change.high == pytest.approx(math.exp(mean + 2.7764 * error) - 1, abs=1e-5)
    assert test.change.high < 0


def test_replicates_pair_by_their_number_whatever_order_they_come_in(base: RunSummary) -> None:
    runs = [made(base, "fcfs", r, ms) for r, ms in enumerate(BEFORE)]
    other = [made(base, "lpm", r, ms) for r, ms in enumerate(AFTER)]
    measures = [BY_KEY["ttft_p50_ns"]]
    straight = compare_replicates(runs, [other], measures)
    assert compare_replicates(runs[::-1], [other[2:] + other[:2]], measures) == straight
    assert compare_replicates(runs, [[*other[1:], made(base, "lpm", 9, 1)]], measures)[0][0].n == 4


def test_holm_counts_every_primary_metric_of_every_column(base: RunSummary) -> None:
    columns = [[made(base, p, r, ms, hits=0.1 * r) for r, ms in enumerate(v)] for p, v in (("a", BEFORE), ("b", AFTER))]
    columns.append([made(base, "c", r, ms, hits=0.1 * r + 0.01 * (r % 2)) for r, ms in enumerate(AFTER)])
    measures = [BY_KEY["ttft_p50_ns"], BY_KEY["hit_rate"]]
    found = compare_replicates(columns[0], columns[1:], measures)
    p = found[0][0].change and found[0][0].change.p
    assert p is not None
    assert found[0][0].p_holm == pytest.approx(4 * p), "the smallest of four"
    assert found[0][1].p_holm == 1.0, "the hit rate is the same in b"


def test_ratios_and_counts_are_compared_by_their_difference(base: RunSummary) -> None:
    first = [made(base, "a", r, 100, hits=0.5, preemptions=r) for r in range(5)]
    other = [made(base, "b", r, 100, hits=0.5 + 0.01 * r, preemptions=r + 2) for r in range(5)]
    hits, preemptions = compare_replicates(first, [other], [BY_KEY["hit_rate"], BY_KEY["preemptions"]])[0]
    assert hits.scale == preemptions.scale == DIFFERENCE
    assert hits.change is not None
    assert hits.change.estimate == pytest.approx(0.02)
    assert hits.change.high - 0.02 == pytest.approx(2.7764 * 0.01 * math.sqrt(2.5) / math.sqrt(5), abs=1e-6)
    assert preemptions.change is not None
    assert (preemptions.change.low, preemptions.change.high, preemptions.change.p) == (2.0, 2.0, None)


@pytest.mark.parametrize(("count", "interval", "holm"), [(1, False, False), (2, False, False), (3, True, False),
                                                         (4, True, False), (5, True, True)])  # fmt: skip
def test_fewer_replicates_allow_less(base: RunSummary, count: int, interval: bool, holm: bool) -> None:
    comparison = pair(base, BEFORE[:count], AFTER[:count])
    test = comparison.statistics[1].tests[0]
    assert (test.change is not None) is interval
    assert (test.p_holm is not None) is holm
    notes = " ".join(comparison.notes)
    if count == 1:
        assert "one replicate each: no interval" in notes
    elif count == 2:
        assert "no interval: 2 pairs of replicates, an interval needs 3" in notes
    else:
        assert ("intervals of" in notes) is (count < 5)


def test_the_same_runs_twice_differ_by_exactly_nothing(base: RunSummary) -> None:
    runs = [made(base, "fcfs", r, ms) for r, ms in enumerate(BEFORE)]
    comparison = compare_runs([*runs, *runs])
    second = comparison.columns[1]
    assert {comparison.change(m, second) for m in BY_KEY.values() if second.value(m) is not None} == {0}
    for test in comparison.statistics[1].tests:
        assert test.change is not None
        assert (test.change.estimate, test.change.low, test.change.high) == (0, 0, 0)
        assert test.p_holm == 1.0
    for metric in comparison.statistics[1].paired:
        assert (metric.all.p5, metric.all.p50, metric.all.p95, metric.worst) == (0, 0, 0, None)
    text = render(comparison)
    assert "+" not in text.split("By request")[1].split("steady:")[0]


def test_simulated_replicates_of_one_trace_are_one_run_repeated(base: RunSummary) -> None:
    runs = [made(base, p, r, ms, workload="trace") for p, ms in (("fcfs", 100), ("lpm", 80)) for r in range(5)]
    comparison = compare_runs(runs)
    assert all(test.change is None for test in comparison.statistics[1].tests)
    (note,) = [note for note in comparison.notes if "one run repeated" in note]
    assert "(fcfs 5, lpm 5): one of each is taken" in note
    assert "95 % interval" not in render(comparison)
    alone = compare_runs([run for run in runs if run.manifest["replicate"] == 0])
    assert comparison.statistics[1].paired == alone.statistics[1].paired
    assert comparison.as_json()["columns"][0]["n"] == alone.as_json()["columns"][0]["n"], "counted once"


def test_replicates_that_came_out_otherwise_are_all_kept(base: RunSummary) -> None:
    """The same requests, and still another result: chance has a part in it, and nothing is thrown away."""
    later = [replace(request, e2e=(request.e2e or 0) + MS) for request in base.requests]
    runs = [made(base, "fcfs", r, 100, workload="trace") for r in range(3)]
    runs[1] = replace(runs[1], requests=later)
    comparison = compare_runs(runs)
    assert len(comparison.columns[0].runs) == 3
    assert not any("one of each" in note for note in comparison.notes)


def test_a_change_that_is_the_same_in_every_pair_has_no_p_value(base: RunSummary) -> None:
    """By hand: each is 0.8 of the one before; the logarithms differ in their last digits, which is no spread."""
    before = (100, 50, 30, 7, 11)
    logs = {math.log(0.8 * ms * MS / (ms * MS)) for ms in before}
    assert len(logs) > 1, "else this tests nothing"
    test = pair(base, before, tuple(0.8 * ms for ms in before)).statistics[1].tests[0]
    assert test.change is not None
    assert (test.n, test.change.p, test.p_holm) == (5, None, None)
    assert test.change.low == test.change.high == pytest.approx(-0.2)
    assert verdict(test) == "none: no spread"


def test_replicates_of_a_recorded_trace_are_known_although_their_seeds_differ(tmp_path: Path) -> None:
    """Token ids come from the seed, so the hashes differ; arrivals, lengths and what is shared do not."""
    trace = write_trace(tmp_path / "trace.jsonl", [(0, 40, 3), (10, 30, 5), (30, 20, 4)])
    words = ("-p", "fcfs", "-p", "sjf", "--executor", "null", "--num-blocks", "16", "--replicates", "3")
    kvtop("bench", "-w", str(trace), *words, "-o", str(tmp_path / "trace"))
    recorded = [load_run(run) for run in run_dirs(tmp_path / "trace")]
    assert len({run.manifest["workload_hash"] for run in recorded}) == 3
    assert len({run.asked for run in recorded}) == 1
    comparison = compare_runs(recorded)
    assert all(test.change is None for test in comparison.statistics[1].tests)
    assert any("one run repeated" in note for note in comparison.notes)


def test_what_is_asked_is_more_than_lengths() -> None:
    row = dict.fromkeys(ASKED_COLUMNS, None) | {"req_index": 0, "prompt_tokens": 9, "t_sched_ns": 5}
    other = row | {"req_index": 1}
    first = asked([row, other])
    assert asked([other, row]) == first, "the order of rows in the table is none of its business"
    for name in ASKED_COLUMNS:
        assert asked([row, other | {name: 2}]) != first, name
    turn = other | {"parent_request_id": "r0"}
    assert asked([row, turn | {"t_sched_ns": 70}]) == asked([row, turn]), "a turn is due when the answer has ended"


def test_measured_replicates_of_one_trace_cover_noise_only(base: RunSummary) -> None:
    values = {"fcfs": BEFORE, "lpm": AFTER}
    runs = [
        made(base, p, r, ms, workload="trace", clock="real")
        for p, all_ms in values.items()
        for r, ms in enumerate(all_ms)
    ]
    comparison = compare_runs(runs)
    assert all(test.change is not None for test in comparison.statistics[1].tests[:1])
    assert any("this machine's noise, not other workloads" in note for note in comparison.notes)


def test_a_replicate_without_the_metric_leaves_no_interval(base: RunSummary) -> None:
    runs = [made(base, "fcfs", r, ms) for r, ms in enumerate(BEFORE)]
    runs += [made(base, "lpm", r, ms if r else None) for r, ms in enumerate(AFTER)]
    test = compare_runs(runs).statistics[1].tests[0]
    assert (test.change, test.reason) == (None, "not reported by every replicate")


def test_a_latency_of_zero_has_no_logarithm_and_is_compared_by_difference(base: RunSummary) -> None:
    test = pair(base, (0, 1, 2), (0, 2, 4)).statistics[1].tests[0]
    assert test.scale == DIFFERENCE
    assert test.change is not None
    assert test.change.estimate == pytest.approx(1 * MS)


def test_the_table_names_intervals_and_adjusted_p(base: RunSummary) -> None:
    text = render(pair(base))
    rows = {line.split("  ")[0]: line for line in text.split("lpm against fcfs")[1].splitlines() if line}
    assert "-20.3 %" in rows["TTFT p50"]
    assert "< 0.001" in rows["TTFT p50"]
    assert "Holm over 4 tests" in text
    assert "This run only" not in text, "replicates say more"
    assert max(map(len, text.splitlines())) <= 80
    assert "Holm over" not in render(pair(base, BEFORE[:4], AFTER[:4]))


def test_what_is_declared_primary_is_tested(base: RunSummary) -> None:
    runs = [made(base, p, r, ms) for p, v in (("a", BEFORE), ("b", AFTER)) for r, ms in enumerate(v)]
    comparison = compare_runs(runs, Options(primary=("e2e_p99_ns", "evictions")))
    assert [test.measure.key for test in comparison.statistics[1].tests] == ["e2e_p99_ns", "evictions"]


def test_replicates_of_three_columns_are_set_against_the_first(base: RunSummary, tmp_path: Path) -> None:
    values = {"a": BEFORE, "b": AFTER, "c": tuple(2 * ms for ms in BEFORE)}
    comparison = compare_runs([made(base, p, r, ms) for p, v in values.items() for r, ms in enumerate(v)])
    changes = [column.tests[0].change for column in comparison.statistics[1:]]
    assert changes[0] is not None
    assert changes[1] is not None
    assert changes[1].estimate == pytest.approx(1.0)
    assert comparison.statistics[0].tests == []
