"""The load a run really got, and where its cache hits went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_runs import MS, S, arrived, finished, make_run, steps_of

from kvtop.analysis.compare import compare_paths
from kvtop.analysis.hits import hit_loss
from kvtop.analysis.load_rates import same_load
from kvtop.analysis.measures import BY_KEY
from kvtop.analysis.summary import load_run
from kvtop.cli.comparison import render
from kvtop.engine.events import StepEvent
from kvtop.results.tokens import write_tokens


def served(run_dir: Path, gaps_ms: list[float], *, late_ms: float = 0, stretch: float = 1.0, **values: Any) -> Path:
    """Requests due at these gaps; handed in ``late_ms`` late and at ``stretch`` times the gaps."""
    due = [round(sum(gaps_ms[:i]) * MS) for i in range(len(gaps_ms) + 1)]
    sent = [round(at * stretch + late_ms * MS) for at in due]
    times = {f"r{i}": [at + 10 * MS, at + 20 * MS] for i, at in enumerate(sent)}
    ends = [finished(f"r{i}", i, at=due[i], tokens=times[f"r{i}"], t_submit_ns=sent[i]) for i in range(len(due))]
    starts = [arrived(f"r{i}", i, at=due[i]) for i in range(len(due))]
    return make_run(run_dir, [*starts, *steps_of(times), *ends], **values)


def test_offered_and_realised_rates_are_both_told(tmp_path: Path) -> None:
    """Asked for 200 requests/s; relative sleeps make it 183.5."""
    run = load_run(served(tmp_path / "run", [5.0] * 400, stretch=200 / 183.5))
    assert run.load.offered_s == pytest.approx(200)
    assert run.load.realised_s == pytest.approx(183.5)
    assert run.load.deviation == pytest.approx(-0.0825)
    assert "handed in at 91.8 % of the rate that was asked for" in render(compare_paths([tmp_path / "run"])[0])


def test_a_constant_delay_is_lag_and_no_change_of_rate(tmp_path: Path) -> None:
    run = load_run(served(tmp_path / "run", [100.0] * 20, late_ms=300))
    assert (run.load.lag.p50, run.load.lag.max, run.load.lag.n) == (300 * MS, 300 * MS, 21)
    assert run.load.deviation == pytest.approx(0)
    assert run.ttft.p50 == 310 * MS, "from the intended arrival"


def test_a_generator_that_was_held_up_is_told_with_its_lag(tmp_path: Path) -> None:
    """Steps of 10 ms; every other request is handed in 50 ms late. A lag within a step is the engine's own."""
    due = [i * 100 * MS for i in range(20)]

    def run(name: str, late_ms: int) -> Path:
        sent = [at + (late_ms * MS if i % 2 else 0) for i, at in enumerate(due)]
        ends = [
            finished(f"r{i}", i, at=due[i], tokens=[sent[i] + 10 * MS], t_submit_ns=sent[i]) for i in range(len(due))
        ]
        made = [
            StepEvent(step=i, t_start_ns=at, t_planned_ns=at, t_done_ns=at + 10 * MS, num_running=1)
            for i, at in enumerate(sent)
        ]
        return make_run(tmp_path / name, [*made, *ends])

    held = load_run(run("held", 50))
    assert (held.load.num_late, held.load.longest_step_ns, held.load.lag.p99) == (10, 10 * MS, 50 * MS)
    assert "10 of 20 requests were handed in later" in render(compare_paths([tmp_path / "held"])[0], 200)
    assert "(lag p99 50 ms, longest step 10 ms)" in render(compare_paths([tmp_path / "held"])[0], 200)
    assert load_run(run("in time", 9)).load.num_late == 0


def test_rates_of_one_request_or_of_all_at_once_are_not_known(tmp_path: Path) -> None:
    assert load_run(served(tmp_path / "one", [])).load.realised_s is None
    at_once = load_run(served(tmp_path / "at once", [0.0] * 5))
    assert (at_once.load.offered_s, at_once.load.deviation) == (None, None)


def test_a_load_that_differs_by_more_than_a_percent_is_not_called_the_same(tmp_path: Path) -> None:
    """A closed loop with fixed and with uneven think times of the same mean: 2.00 and 1.79 requests/s."""
    fixed = served(tmp_path / "fixed", [500.0] * 40, policy="fixed", loop="closed")
    uneven = served(tmp_path / "uneven", [500.0 * 2.0 / 1.79] * 40, policy="uneven", loop="closed")
    (comparison,) = compare_paths([fixed, uneven])
    assert comparison.same_load is False
    text = render(comparison, 200)
    assert "not the same load: 1.79 requests/s arrived under uneven, 2 under fixed (-10.5 %)" in text
    assert "closed loop: the next turn waits for an answer" in text
    assert "\n  same load" not in text


def test_a_load_within_a_percent_is_called_the_same(tmp_path: Path) -> None:
    one = served(tmp_path / "one", [500.0] * 40, policy="one", loop="open")
    two = served(tmp_path / "two", [503.0] * 40, policy="two", loop="open")
    (comparison,) = compare_paths([one, two])
    assert comparison.same_load is True
    assert "same load: realised rates within 1 %" in render(comparison)
    assert "closed loop" not in render(comparison)


@pytest.mark.parametrize(("gap_ms", "same"), [(495.5, True), (504.5, True), (494.5, False), (505.5, False)])
def test_the_same_load_is_within_one_percent_either_way(tmp_path: Path, gap_ms: float, same: bool) -> None:
    """2 requests/s against 2.018 and 1.982, and against 2.022 and 1.978."""
    first = load_run(served(tmp_path / "one", [500.0] * 10)).load
    assert same_load(first, load_run(served(tmp_path / "two", [gap_ms] * 10)).load) is same


Tokens = int | None


def row(prompt: int, shared: Tokens, ideal: Tokens, hit: Tokens, reason: str, host: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt, "shared_prefix_tokens": shared, "ideal_hit_tokens": ideal, "hit_tokens": hit,
        "host_hit_tokens": host, "miss_reason": reason,
    }  # fmt: skip


def test_hits_are_what_was_shared_less_the_losses() -> None:
    rows = [
        row(100, 70, 64, 64, "never_seen"),  # 6 lost to whole blocks
        row(100, 64, 64, 16, "evicted"),  # 48 evicted
        row(100, 80, 80, 32, "not_yet_computed"),  # 48 still being computed
        row(50, 32, 32, 0, "other_salt"),
        row(50, 0, 0, 16, "never_seen"),  # an answer that came back as a prompt
        row(100, 48, 48, 16, "evicted", host=16),  # half of what was evicted is in host memory
        row(100, None, None, None, "never_seen"),  # never looked up
    ]
    found = hit_loss(rows)
    assert found is not None
    assert (found.num_requests, found.prompt_tokens, found.shared_prefix) == (6, 500, 294)
    assert (found.block_rounding, found.capacity, found.concurrency, found.other, found.beyond) == (6, 64, 48, 32, 16)
    assert found.found == 64 + 16 + 32 + 16 + 32
    left = found.shared_prefix - found.block_rounding - found.capacity - found.concurrency - found.other
    assert left + found.beyond == found.found
    assert found.share("capacity") == pytest.approx(0.128)


def test_without_a_bound_or_a_lookup_nothing_is_told(tmp_path: Path) -> None:
    assert hit_loss([row(100, None, None, 16, "evicted")]) is None
    assert hit_loss([]) is None
    run = load_run(served(tmp_path / "run", [100.0] * 3))
    assert run.hits is None
    assert BY_KEY["lost_capacity"].read(run) is None
    assert "Hits of prompt tokens" not in render(compare_paths([tmp_path / "run"])[0])


def test_gaps_are_the_same_from_the_recording_and_from_the_table_of_tokens(tmp_path: Path) -> None:
    run_dir = served(tmp_path / "run", [3.0] * 30)
    recorded = load_run(run_dir)
    write_tokens(run_dir)
    (run_dir / "frames.msgpack.zst").unlink()
    tabled = load_run(run_dir)
    assert tabled.itl == recorded.itl
    assert tabled.itl.n == 31
    assert sorted(tabled.samples["itl"]) == sorted(recorded.samples["itl"])


def rows_of(run_dir: Path) -> dict[str, str]:
    """Last cell of each line of the table, by its first."""
    lines = [line for line in render(compare_paths([run_dir])[0]).splitlines() if line.strip()]
    return {line.split("  ")[0]: line.split()[-1] for line in lines}


def test_whole_run_and_steady_rates_stand_side_by_side(tmp_path: Path) -> None:
    """31 answers of 100 tokens and one of 2,000: the tail alone emits 1,900 of 5,100 tokens."""
    times = {f"r{i}": [MS * k for k in range(1, 101)] for i in range(31)} | {"long": [MS * k for k in range(1, 2001)]}
    ends = [finished(name, i, tokens=tokens) for i, (name, tokens) in enumerate(times.items())]
    make_run(tmp_path / "run", [*steps_of(times), *ends])
    rows = rows_of(tmp_path / "run")
    assert (rows["output tokens/s"], rows["output tokens/s, steady"]) == ("2,550", "32,000")


def test_a_first_token_after_start_up_is_in_the_whole_rate_only(tmp_path: Path) -> None:
    """First completion at 20 s, then one a second: 1.00 steadily, 50 / 69 in all."""
    times = {f"r{i}": [(20 + i) * S] for i in range(50)}
    ends = [finished(name, i, tokens=tokens) for i, (name, tokens) in enumerate(times.items())]
    make_run(tmp_path / "run", [*steps_of(times), *ends])
    rows = rows_of(tmp_path / "run")
    assert (rows["requests/s"], rows["requests/s, steady"]) == ("0.725", "1.00")
