"""Where the KV memory went: each figure worked by hand, and the matrix that bench and compare print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_runs import finished, make_run, simple_run

from kvtop.analysis.compare import compare_paths
from kvtop.analysis.memory_report import ROWS, load_memory
from kvtop.analysis.summary import load_run
from kvtop.cli.comparison import render
from kvtop.cli.main import main
from kvtop.engine.events import StepEvent


def two_steps(run_dir: Path, **values: Any) -> Path:
    """Ten blocks of 4 slots. A step of 10 ns with 8 used blocks, then one of 30 ns with 4, its head refused."""
    skipped = [
        ("skipped", name, reason, None, 5, 2) for name, reason in (("a", "no_blocks"), ("b", "no_hole"), ("c", "seats"))
    ]
    steps = [
        StepEvent(
            step=0, t_start_ns=0, t_planned_ns=0, t_done_ns=10, num_running=2, used_blocks=8, fresh_blocks=2,
            filled_slots=20, reserved_unused_slots=12, decisions=skipped,
        ),
        StepEvent(
            step=1, t_start_ns=70, t_planned_ns=70, t_done_ns=100, num_running=1, used_blocks=4, fresh_blocks=6,
            filled_slots=10, reserved_unused_slots=6, waiting_reason="no_hole", head_of_line="b", preemptions=3,
        ),
    ]  # fmt: skip
    end = finished("a", 0, tokens=[10, 100])
    return make_run(run_dir, [*steps, end], num_blocks=10, block_size_tokens=4, **values)


def test_each_figure_of_a_contiguous_allocator_by_hand(tmp_path: Path) -> None:
    """Slots times duration: pool 40 x 40 = 1600, tokens 10 x 20 + 30 x 10 = 500, unused 10 x 12 + 30 x 6 = 300, fresh
    while the head was refused 30 x 24 = 720. The idle time between the steps counts for nothing."""
    memory = load_memory(load_run(two_steps(tmp_path / "run", allocator="contiguous-max")))
    assert memory.utilisation == pytest.approx(500 / 1600)
    assert memory.internal_waste == pytest.approx(300 / 800)
    assert memory.external_waste == pytest.approx(720 / 1600)
    assert memory.waste == pytest.approx((300 + 720) / (500 + 300 + 720))
    assert memory.blocked_fresh == pytest.approx(720 / 1600)
    assert memory.blocked_time == pytest.approx(30 / 40)
    assert memory.mean_running == pytest.approx((10 * 2 + 30 * 1) / 40)
    assert (memory.peak_running, memory.refusals, memory.preemptions) == (2, 2, 3)
    assert memory.output_tokens_s == pytest.approx(2 / 100e-9)


def test_a_paged_pool_has_no_holes_its_fresh_blocks_are_shown_apart(tmp_path: Path) -> None:
    memory = load_memory(load_run(two_steps(tmp_path / "run", allocator="paged")))
    assert memory.external_waste == 0
    assert memory.waste == memory.internal_waste == pytest.approx(300 / 800)
    assert memory.blocked_fresh == pytest.approx(720 / 1600)


def test_what_was_not_measured_is_null(tmp_path: Path) -> None:
    memory = load_memory(load_run(make_run(tmp_path / "run", [finished("a", 0)], allocator="paged")))
    assert (memory.utilisation, memory.waste, memory.mean_running, memory.peak_running) == (None, None, None, None)
    assert memory.refusals == 0


def test_the_section_appears_where_allocators_differ_only(tmp_path: Path) -> None:
    paged = two_steps(tmp_path / "paged", allocator="paged")
    other = two_steps(tmp_path / "max", allocator="contiguous-max")
    same = two_steps(tmp_path / "lpm", allocator="paged", policy="lpm")
    text = render(compare_paths([paged, other])[0])
    rows = {line.split("  ")[0]: line.split()[-4:] for line in text.splitlines()}
    assert rows["waste"] == ["37.5", "%", "67.1", "%"]
    assert rows["external waste"] == ["0.0", "%", "45.0", "%"]
    assert rows["running, mean"][-2:] == ["1.2", "1.2"]
    assert all(label in rows for _, label, _ in ROWS)
    assert "Memory" not in render(compare_paths([paged, same])[0])


def test_json_has_it_too_or_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(two_steps(tmp_path / a, allocator=a)) for a in ("paged", "contiguous-max")]
    assert main(["compare", "--json", *runs]) == 0
    memory = [column["memory"] for column in json.loads(capsys.readouterr().out)[0]["columns"]]
    assert [set(found) for found in memory] == [{key for key, _, _ in ROWS}] * 2
    assert memory[1]["external_waste"] == pytest.approx(0.45)
    assert main(["compare", "--json", str(simple_run(tmp_path / "alone"))]) == 0
    assert json.loads(capsys.readouterr().out)[0]["columns"][0]["memory"] is None


def test_replicates_show_their_mean_and_none_where_one_has_no_value(tmp_path: Path) -> None:
    two_steps(tmp_path / "r0", allocator="paged")
    make_run(tmp_path / "r1", [finished("a", 0)], allocator="paged", num_blocks=10, block_size_tokens=4, replicate=1)
    two_steps(tmp_path / "max", allocator="contiguous-max")
    comparison = compare_paths([tmp_path])[0]
    memory = {
        column.runs[0].manifest["allocator"]: m for column, m in zip(comparison.columns, comparison.memory, strict=True)
    }
    assert memory["paged"]["utilisation"] is None
    assert memory["paged"]["refusals"] == 1
    assert memory["contiguous-max"]["utilisation"] == pytest.approx(500 / 1600)


def test_bench_prints_the_matrix_and_paging_wastes_less_than_a_block_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "bench -w azure-conv --limit 16 --executor null --num-blocks 400 --max-model-len 2048 --max-batched-tokens 2048"
    )
    options = "--time-scale 0 --too-long clip --no-prefix-caching --allocator paged --allocator contiguous-max"
    assert main([*words.split(), *options.split(), "-o", str(tmp_path / "out")]) == 0
    assert "internal waste" in capsys.readouterr().out
    comparison = compare_paths([tmp_path / "out"])[0]
    memory = {
        column.runs[0].manifest["allocator"]: m for column, m in zip(comparison.columns, comparison.memory, strict=True)
    }
    assert memory["paged"]["waste"] is not None
    assert 0 < memory["paged"]["waste"] < 0.04
    assert memory["contiguous-max"]["peak_running"] == 3  # 400 blocks hold three times 128
    assert memory["contiguous-max"]["waste"] is not None
    assert memory["contiguous-max"]["waste"] > 10 * memory["paged"]["waste"]
