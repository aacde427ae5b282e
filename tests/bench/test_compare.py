"""Which runs may be compared, how replicates form columns, and what a difference is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_runs import MS, arrived, finished, make_run, simple_run, steps_of

from kvtop.analysis.compare import compare_paths
from kvtop.analysis.inference import Interval
from kvtop.analysis.measures import MEASURES
from kvtop.cli.comparison import format_change, render
from kvtop.cli.comparison_cells import format_relative, from_to
from kvtop.cli.main import main
from kvtop.engine.errors import UsageError

BY_KEY = {measure.key: measure for measure in MEASURES}


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("workload_hash", "bbbb", "workload hash"),
        ("clock", "real", "clock kind"),
        ("cost_model", "h100", "cost model"),
        ("block_size_tokens", 32, "block size"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, value: Any, name: str
) -> None:
    runs = [simple_run(tmp_path / "one"), simple_run(tmp_path / "two", policy="lpm", **{key: value})]
    with pytest.raises(UsageError, match=f"not comparable: {name} is .*{value}") as caught:
        compare_paths(runs)
    assert caught.value.exit_code == 2
    assert main(["compare", *map(str, runs)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["compare", "--force", *map(str, runs)]) == 0
    assert f"forced: {name}" in capsys.readouterr().out


def test_what_attends_names_the_columns_that_differ_in_it(tmp_path: Path) -> None:
    ways = {
        "auto": "CPU kernels (linear, norm); attention by CPU kernels",
        "int8": "torch; attention by torch operations",
    }
    runs = [simple_run(tmp_path / name, kv_dtype=name, computed_by=way) for name, way in ways.items()]
    labels = [column.label for column in compare_paths(runs)[0].columns]
    assert labels == ["fcfs auto attn=CPU", "fcfs int8 attn=torch"]
    unknown = [simple_run(tmp_path / "old", computed_by=None), runs[0]]
    assert compare_paths(unknown)[0].columns[0].label == "fcfs"


def test_a_run_against_itself_is_the_same_in_every_row(tmp_path: Path) -> None:
    run = simple_run(tmp_path / "one", host_cache_blocks=4)
    comparison = compare_paths([run, run])[0]
    assert len(comparison.columns) == 2
    labels = [column.label for column in comparison.columns]
    assert len(set(labels)) == 2
    second = comparison.columns[1]
    changes = {key: comparison.change(measure, second) for key, measure in BY_KEY.items() if second.value(measure)}
    assert len(changes) > 30
    assert set(changes.values()) == {0}


def test_differences_are_relative_for_times_and_absolute_for_ratios_and_counts(tmp_path: Path) -> None:
    one = simple_run(tmp_path / "one", ttft_ms=100, num_blocks=100)
    two = simple_run(tmp_path / "two", ttft_ms=75, num_blocks=50, policy="lpm")
    comparison = compare_paths([one, two])[0]
    second = comparison.columns[1]
    assert comparison.change(BY_KEY["ttft_p50_ns"], second) == pytest.approx(-0.25)
    assert comparison.change(BY_KEY["peak_occupancy"], second) == pytest.approx(0.07)
    assert comparison.change(BY_KEY["peak_used_blocks"], second) == 0
    text = render(comparison)
    assert "-25.0 %" in text
    assert "+7.0 points" in text


def test_the_table_shows_n_beside_percentiles_and_readable_units(tmp_path: Path) -> None:
    text = render(compare_paths([simple_run(tmp_path / "one"), simple_run(tmp_path / "two", policy="lpm")])[0])
    rows = {line.split("  ")[0]: line.split() for line in text.splitlines()}
    assert rows["TTFT n"][2:] == ["3", "3"]
    assert rows["ITL n"][2:] == ["9", "9"]
    assert rows["TTFT p99"][2:4] == ["100", "ms"]
    assert rows["duration"][1:3] == ["2.13", "s"]
    assert rows["prefix hit rate"][3:5] == ["50.0", "%"]
    assert "one replicate each: no interval" in text
    assert "simulated" in text


def test_columns_are_named_by_what_differs(tmp_path: Path) -> None:
    runs = [
        simple_run(tmp_path / "one", allocator="paged", num_blocks=100),
        simple_run(tmp_path / "two", allocator="contiguous-max", num_blocks=100),
        simple_run(tmp_path / "three", allocator="paged", num_blocks=200),
    ]
    labels = [column.label for column in compare_paths(runs)[0].columns]
    assert labels == ["fcfs paged num_blocks=100", "fcfs contiguous-max num_blocks=100", "fcfs paged num_blocks=200"]


def test_runs_of_a_directory_come_in_the_order_of_their_settings_not_of_their_hashes(tmp_path: Path) -> None:
    simple_run(tmp_path / "fcfs-made-1111", prefix_caching=True, max_num_seqs=10)
    simple_run(tmp_path / "fcfs-made-2222", prefix_caching=True, max_num_seqs=9)
    simple_run(tmp_path / "fcfs-made-3333", prefix_caching=False, max_num_seqs=10)
    simple_run(tmp_path / "belady-made-4444", prefix_caching=True, max_num_seqs=10, policy="lpm")
    labels = [column.label for column in compare_paths([tmp_path])[0].columns]
    assert labels == [
        "lpm cache=on max_num_seqs=10",
        "fcfs cache=off max_num_seqs=10",
        "fcfs cache=on max_num_seqs=9",
        "fcfs cache=on max_num_seqs=10",
    ]


def test_replicates_form_one_column_and_show_their_mean(tmp_path: Path) -> None:
    for replicate, ttft in enumerate((100, 120, 140)):
        for policy in ("fcfs", "lpm"):
            simple_run(
                tmp_path / f"{policy}{replicate}",
                ttft_ms=ttft - 50 * (policy == "lpm"),
                policy=policy,
                replicate=replicate,
                seed=replicate,
                workload_hash=f"hash{replicate}",
            )
    comparison = compare_paths([tmp_path])[0]
    assert [(column.label, len(column.runs)) for column in comparison.columns] == [("fcfs", 3), ("lpm", 3)]
    assert [column.value(BY_KEY["ttft_p50_ns"]) for column in comparison.columns] == [120 * MS, 70 * MS]
    assert [column.n(BY_KEY["ttft_p50_ns"]) for column in comparison.columns] == [9, 9]
    assert "means over replicates (fcfs 3, lpm 3)" in render(comparison)


def test_a_replicate_with_another_workload_is_refused(tmp_path: Path) -> None:
    simple_run(tmp_path / "a", replicate=1, workload_hash="x")
    simple_run(tmp_path / "b", replicate=1, workload_hash="y", policy="lpm")
    with pytest.raises(UsageError, match="workload hash"):
        compare_paths([tmp_path])


def test_a_directory_with_two_workloads_gives_two_comparisons(tmp_path: Path) -> None:
    for workload in ("chat", "code"):
        simple_run(tmp_path / workload, workload=workload, workload_hash=workload)
    assert [comparison.workload for comparison in compare_paths([tmp_path])] == ["chat", "code"]
    with pytest.raises(UsageError, match="workload hash"):
        compare_paths([tmp_path / "chat", tmp_path / "code"])


def test_interrupted_failed_and_cut_off_are_marked(tmp_path: Path) -> None:
    times = {f"r{i}": [100 * MS, 200 * MS] for i in range(10)}
    events = [
        *(arrived(name, i) for i, name in enumerate(times)),
        *steps_of(times),
        *(finished(name, i, tokens=times[name]) for i, name in enumerate(list(times)[:7])),
    ]
    make_run(tmp_path / "cut", events, status="interrupted")
    make_run(tmp_path / "bad", events, status="failed", error="out of memory", policy="lpm")
    text = render(compare_paths([tmp_path])[0])
    assert "interrupted" in text
    assert "failed (out of memory)" in text
    assert "3 of 10 requests were cut off by the end of the run" in text
    assert "high percentiles are too low" in text
    assert "7 / 10" in text


def test_json_is_valid_with_nulls_and_never_nan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ends = [finished(f"r{i}", i, tokens=[], reason="failed", hit=None) for i in range(3)]
    make_run(tmp_path / "runs" / "one", ends)
    assert main(["compare", "--json", str(tmp_path / "runs")]) == 0

    def refuse(word: str) -> None:
        raise AssertionError(word)

    (found,) = json.loads(capsys.readouterr().out, parse_constant=refuse)
    (column,) = found["columns"]
    assert column["values"]["ttft_p99_ns"] is None
    assert column["n"]["ttft_p99_ns"] == 0
    assert column["runs"][0]["statuses"] == {"failed": 3}
    assert found["comparable"] is True


def test_empty_percentiles_print_a_dash(tmp_path: Path) -> None:
    make_run(tmp_path / "one", [finished("a", 0, tokens=[], reason="failed", hit=None)])
    rows = {line.split("  ")[0]: line.split()[-1] for line in render(compare_paths([tmp_path])[0]).splitlines() if line}
    assert rows["TTFT p50"] == "-"
    assert rows["prefix hit rate"] == "-"


def test_an_unreadable_run_in_a_directory_is_left_out_and_named(tmp_path: Path) -> None:
    simple_run(tmp_path / "good")
    bad = simple_run(tmp_path / "bad")
    (bad / "steps.parquet").write_bytes(b"nothing")
    text = render(compare_paths([tmp_path])[0])
    assert f"left out: {bad}" in text


def test_neither_runs_nor_a_workload_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare"]) == 2
    assert main(["compare", str(tmp_path / "nowhere")]) == 2
    assert main(["compare", str(tmp_path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("kvtop: ") for line in lines)


def test_changes_are_worded_by_kind() -> None:
    assert format_change(BY_KEY["ttft_p50_ns"], 0.123) == "+12.3 %"
    assert format_change(BY_KEY["ttft_p50_ns"], 19.0) == "x 20.0"
    assert format_change(BY_KEY["preemptions"], -3) == "-3"
    assert format_change(BY_KEY["hit_rate"], 0.031) == "+3.1 points"
    assert format_change(BY_KEY["hit_rate"], 0.0) == "same"
    assert format_change(BY_KEY["hit_rate"], None) == "-"


def test_a_name_in_a_run_cannot_command_the_terminal(tmp_path: Path) -> None:
    run_dir = simple_run(tmp_path / "run", workload="naïve \x1b[31m☃", policy="p\x1b]0;title\x07")
    text = render(compare_paths([run_dir])[0])
    assert "workload naïve ?[31m☃" in text
    assert "\x1b" not in text
    assert "\x07" not in text


def test_an_interval_that_ends_at_no_change_ends_at_0() -> None:
    assert from_to(Interval(-0.5, -0.8, 0.0, 5), format_relative) == "-80.0 % to 0"
    assert from_to(Interval(0.1, 0.0, 0.2, 5), format_relative) == "0 to +20.0 %"
    assert from_to(Interval(0.0, 0.0, 0.0, 5), format_relative) == "same"
    assert from_to(None, format_relative) == "-"
