"""Two runs of one configuration in virtual time: nothing may differ, in any row of the comparison."""

from __future__ import annotations

from pathlib import Path

from result_runs import events_of, make_engine, record, specs

from kvtop.analysis.compare import Options, compare_paths
from kvtop.analysis.measures import MEASURES
from kvtop.analysis.slo import parse_slo
from kvtop.cli.comparison import render
from kvtop.results.tables import write_tables


def test_a_against_a_is_exactly_nothing_in_every_row(tmp_path: Path) -> None:
    for name in ("first", "again"):
        write_tables(record(tmp_path / name, events_of(make_engine(num_blocks=9), specs(120))))
    (comparison,) = compare_paths([tmp_path], Options(slo=parse_slo(["ttft<200ms"])))
    assert len(comparison.columns) == 2
    second = comparison.columns[1]
    values = [measure for measure in MEASURES if second.value(measure) is not None]
    assert len(values) > 35
    assert {comparison.change(measure, second) for measure in values} == {0}
    found = comparison.statistics[1]
    ttft, tpot, e2e = (metric.all.n for metric in found.paired)
    assert ttft == e2e == 120
    assert 100 < tpot < 120, "answers of one token have none"
    for metric in found.paired:
        assert (metric.all.num_worse, metric.all.num_better, metric.all.mean, metric.worst) == (0, 0, 0, None)
    intervals = [change.interval for change in found.change_only if change.interval is not None]
    assert len(intervals) == 4
    assert {(interval.low, interval.estimate, interval.high) for interval in intervals} == {(0, 0, 0)}
    table = render(comparison).split("By request")[0]
    cells = {line.split()[-1] for line in table.splitlines() if line.startswith(("TTFT p", "ITL m", "E2E p", "evict"))}
    assert cells == {"same"}
