"""Request by request, and within one run: what became of the same requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_runs import MS, S, arrived, finished, make_run, simple_run, steps_of

from kvtop.analysis.compare import Options, compare_paths, compare_runs
from kvtop.analysis.paired import paired_metrics
from kvtop.analysis.single_run import change_intervals, run_intervals
from kvtop.analysis.summary import Selection, load_run
from kvtop.cli.comparison import render


def run_of(run_dir: Path, ttfts_ms: dict[str, int], *, classes: dict[str, str] | None = None, **values: Any) -> Path:
    """Requests that arrive 1 s apart and emit two tokens, the second 10 ms after the first."""
    times = {name: [i * S + ms * MS, i * S + (ms + 10) * MS] for i, (name, ms) in enumerate(ttfts_ms.items())}
    ends = [
        finished(name, i, at=i * S, tokens=tokens, klass=(classes or {}).get(name, ""))
        for i, (name, tokens) in enumerate(times.items())
    ]
    return make_run(run_dir, [*steps_of(times), *ends], **values)


def test_a_policy_that_helps_most_and_starves_one_is_seen_for_what_it_is(tmp_path: Path) -> None:
    before = {f"r{i}": 100 for i in range(10)}
    after = {f"r{i}": 50 for i in range(9)} | {"r9": 900}
    runs = [load_run(run_of(tmp_path / name, ms, policy=name)) for name, ms in (("a", before), ("b", after))]
    ttft, tpot, e2e = paired_metrics(runs[:1], runs[1:])
    assert (ttft.key, ttft.all.n, ttft.unpaired) == ("ttft", 10, (0, 0))
    assert ttft.all.p50 == -50 * MS
    assert (ttft.all.worse, ttft.all.better) == (0.1, 0.9)
    assert ttft.all.mean == pytest.approx((9 * -50 + 800) / 10 * MS)
    assert ttft.worst is not None
    assert (ttft.worst.request_id, ttft.worst.before, ttft.worst.after) == ("r9", 100 * MS, 900 * MS)
    assert (tpot.all.num_worse, tpot.worst) == (0, None)
    assert e2e.worst is not None
    assert e2e.worst.difference == 800 * MS
    text = render(compare_runs(runs))
    assert "TTFT most lost: r9, 100 ms to 900 ms (+800 ms)" in text
    assert max(map(len, text.splitlines())) <= 80


def test_classes_stand_apart(tmp_path: Path) -> None:
    classes = {f"r{i}": "chat" if i % 2 else "batch" for i in range(8)}
    before = dict.fromkeys(classes, 100)
    after = {name: 80 if klass == "chat" else 150 for name, klass in classes.items()}
    runs = [load_run(run_of(tmp_path / n, ms, classes=classes, policy=n)) for n, ms in (("a", before), ("b", after))]
    ttft = paired_metrics(runs[:1], runs[1:])[0]
    assert {name: (found.n, found.p50) for name, found in ttft.classes.items()} == {
        "batch": (4, 50 * MS), "chat": (4, -20 * MS),
    }  # fmt: skip


def test_requests_that_one_run_did_not_serve_are_counted_and_not_compared(tmp_path: Path) -> None:
    whole = load_run(run_of(tmp_path / "a", {f"r{i}": 100 for i in range(4)}))
    times = {"r0": [50 * MS, 60 * MS]}
    events = [*steps_of(times), finished("r0", 0, tokens=times["r0"]), finished("r1", 1, tokens=[], reason="failed")]
    part = load_run(make_run(tmp_path / "b", events, policy="lpm"))
    ttft = paired_metrics([whole], [part])[0]
    assert (ttft.all.n, ttft.unpaired) == (1, (3, 0))
    assert "TTFT of 3 requests only in the first, of 0 only here" in render(compare_runs([whole, part]))


def test_replicates_are_pooled_and_the_victim_says_which(tmp_path: Path) -> None:
    first = [load_run(run_of(tmp_path / f"a{r}", {"r0": 100, "r1": 100}, replicate=r)) for r in range(2)]
    other = [load_run(run_of(tmp_path / f"b{r}", {"r0": 100, "r1": 100 + 30 * r}, replicate=r)) for r in range(2)]
    ttft = paired_metrics(first, other)[0]
    assert (ttft.all.n, ttft.all.num_worse) == (4, 1)
    assert ttft.worst is not None
    assert (ttft.worst.request_id, ttft.worst.replicate) == ("r1", 1)


def test_within_one_run_intervals_need_enough_requests(tmp_path: Path) -> None:
    few = load_run(run_of(tmp_path / "few", {f"r{i}": 100 + i for i in range(9)}))
    some = load_run(run_of(tmp_path / "some", {f"r{i}": 100 + (37 * i) % 60 for i in range(60)}))
    assert all(found.interval is None for found in run_intervals(few))
    by_key = {found.key: found for found in run_intervals(some)}
    assert by_key["ttft_p99_ns"].interval is None, "99 % of 60 values is hardly more than the largest"
    interval = by_key["ttft_p50_ns"].interval
    assert interval is not None
    assert some.ttft.p50 == interval.estimate
    assert some.ttft.p50 is not None
    assert 100 * MS <= interval.low < some.ttft.p50 < interval.high < 160 * MS


def test_paired_resampling_knows_that_both_runs_had_the_same_requests(tmp_path: Path) -> None:
    """Every request is 10 % faster: each resample says so, however much the requests differ from each other."""
    before = {f"r{i}": 100 + 10 * ((37 * i) % 60) for i in range(60)}
    after = {name: ms * 9 // 10 for name, ms in before.items()}
    runs = [load_run(run_of(tmp_path / name, ms, policy=name)) for name, ms in (("a", before), ("b", after))]
    found = {change.key: change.interval for change in change_intervals(*runs)}
    interval = found["ttft_p50_ns"]
    assert interval is not None
    assert (interval.low, interval.estimate, interval.high) == pytest.approx((-0.1, -0.1, -0.1))
    assert "This run only" in render(compare_runs(runs))
    assert "says nothing about other runs" in render(compare_runs(runs))


def test_a_run_against_itself_changes_by_nothing_within_it(tmp_path: Path) -> None:
    run = load_run(run_of(tmp_path / "a", {f"r{i}": 100 + (37 * i) % 60 for i in range(60)}))
    for found in change_intervals(run, run):
        if found.interval is not None:
            assert (found.interval.low, found.interval.estimate, found.interval.high) == (0, 0, 0)


def test_declared_warm_up_is_left_out_and_kept(tmp_path: Path) -> None:
    """The first three requests of a cold engine take 130 ms, the others 100."""
    ttfts = {f"r{i}": 130 if i < 3 else 100 for i in range(10)}
    declared = load_run(run_of(tmp_path / "declared", ttfts, warmup_requests=3))
    assert (declared.ttft.n, declared.ttft.max, declared.num_left_out) == (7, 100 * MS, 3)
    assert declared.itl.n == 7
    assert declared.num_requests == 10
    run_dir = run_of(tmp_path / "plain", ttfts)
    assert load_run(run_dir).ttft.n == 10
    assert load_run(run_dir, selection=Selection(warmup=3)).ttft.max == 100 * MS
    assert load_run(tmp_path / "declared", selection=Selection(warmup=0)).ttft.n == 10
    text = render(compare_paths([tmp_path / "declared"])[0])
    assert "3 of 10 requests enter no latency as warm-up" in text


def test_only_the_phases_asked_for_enter_the_latencies(tmp_path: Path) -> None:
    """Four run together from the second step on; one goes first and one is left over for long."""
    times = {"first": [S]} | {f"r{i}": [2 * S + k * MS for k in range(50)] for i in range(4)} | {"late": [9 * S]}
    ends = [finished(name, i, tokens=tokens) for i, (name, tokens) in enumerate(times.items())]
    run_dir = make_run(tmp_path / "run", [arrived("first", 0), *steps_of(times), *ends])
    everything = load_run(run_dir)
    assert everything.phases == {"drain": 1, "steady": 4, "warmup": 1}
    assert everything.ttft.n == 6
    steady = load_run(run_dir, selection=Selection(phases=("steady",)))
    assert (steady.ttft.n, steady.ttft.p50, steady.ttft.max) == (4, 2 * S, 2 * S)
    assert steady.output_tokens_s == everything.output_tokens_s
    text = render(compare_paths([run_dir], Options(selection=Selection(phases=("steady",))))[0])
    assert "latencies are of the steady phase only" in text
    assert "1 / 4 / 1" in text


def test_a_selection_keeps_pairs_of_the_same_requests(tmp_path: Path) -> None:
    runs = [
        load_run(run_of(tmp_path / n, {f"r{i}": 100 + i for i in range(10)}, policy=n), selection=Selection(warmup=4))
        for n in ("a", "b")
    ]
    assert paired_metrics(runs[:1], runs[1:])[0].all.n == 6


def test_many_columns_and_long_names_stay_within_the_width(tmp_path: Path) -> None:
    for seats in range(7):
        simple_run(tmp_path / f"run{seats}", max_num_seqs=seats, kv_dtype="int8", prefix_caching=bool(seats % 2))
    text = render(compare_paths([tmp_path])[0], 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "  A  fcfs" in text
    assert "  G  fcfs" in text
    wide = render(compare_paths([tmp_path])[0], 400)
    assert "  A  fcfs" not in wide
