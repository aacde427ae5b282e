"""Points that run at the same time: the same files as one after the other, and what may not be run so."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from bench_process import kvtop, manifest, run_dirs
from made_runs import simple_run

from kvtop.bench import Outcome, is_virtual, point_labels
from kvtop.bench.progress import Progress
from kvtop.cli.bench import add_arguments, check_placing, make_specs
from kvtop.cli.bench_report import overall_text, report_outcome
from kvtop.cli.bench_runs import Bench
from kvtop.cli.main import main
from kvtop.cli.parser import Parser
from kvtop.cli.text import cut_between
from kvtop.engine.errors import UsageError
from kvtop.engine.events import Notice
from kvtop.results.manifest import build_manifest
from kvtop.results.rundir import run_dir_name
from kvtop.run.spec import RunSpec
from kvtop.workloads.spec import WorkloadSpec

POINTS = ("-w", "poisson-shared-prefix", "-p", "fcfs", "-p", "lpm", "-p", "sjf", "--limit", "20")
TABLES = ("requests.parquet", "steps.parquet", "events.parquet")


def test_runs_at_a_time_leave_the_same_files_and_are_told_in_the_same_order(tmp_path: Path) -> None:
    words = ("bench", *POINTS, "--executor", "null", "--num-blocks", "256")
    alone = kvtop(*words, "-o", str(tmp_path / "alone"))
    together = kvtop(*words, "-o", str(tmp_path / "together"), "--jobs", "3")
    names = [path.name for path in run_dirs(tmp_path / "alone")]
    assert len(names) == 3
    assert [path.name for path in run_dirs(tmp_path / "together")] == names
    for name in names:
        for table in TABLES:
            one, other = tmp_path / "alone" / name / table, tmp_path / "together" / name / table
            assert one.read_bytes() == other.read_bytes()
        assert manifest(tmp_path / "together" / name)["concurrent_points"] == 1, "a virtual clock is not disturbed"
    tables = [done.stdout[done.stdout.index("workload poisson") :] for done in (alone, together)]
    assert tables[0] == tables[1]


def test_each_point_of_a_varied_limit_has_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A list of limits must not collapse to its first."""
    words = ["bench", "-w", "poisson-shared-prefix", "--executor", "null", "--vary", "limit=2,5,5,3"]
    assert main([*words, "--jobs", "2", "-o", str(tmp_path)]) == 0
    found = {manifest(path)["limit"]: manifest(path)["num_requests"] for path in run_dirs(tmp_path)}
    assert found == {2: 2, 5: 5, 3: 3}
    out = capsys.readouterr().out
    assert out.count("\nworkload poisson-shared-prefix") == 3, "another workload is another table"
    assert [f"limit={n}: complete, {n}/{n} ok" in out for n in (2, 5, 3)] == [True] * 3


def specs(*words: str) -> list[RunSpec]:
    parser = Parser("kvtop bench")
    add_arguments(parser)
    args = parser.parse(["-w", "poisson-shared-prefix", "-o", "out", *words])
    made = make_specs(args)
    check_placing(args, made)
    return made


def test_runs_in_real_time_are_refused_together_unless_allowed() -> None:
    with pytest.raises(UsageError, match=r"--jobs 2: executor torch runs in real time, and runs that share a machine"):
        specs("--jobs", "2", "-m", "tiny")
    with pytest.raises(UsageError, match=r"--ray: executor torch runs in real time"):
        specs("--ray", "-m", "tiny")
    with pytest.raises(UsageError, match="--share-machine: one run at a time shares nothing"):
        specs("-m", "tiny", "--share-machine")
    with pytest.raises(UsageError, match="there is no --ray"):
        specs("--executor", "null", "--ray-cpus", "2")
    assert len(specs("--jobs", "2", "-m", "tiny", "--share-machine")) == 1
    assert len(specs("--jobs", "2", "--executor", "null")) == 1


def test_a_run_that_shared_its_machine_says_so_and_is_the_same_point(tmp_path: Path) -> None:
    real = [RunSpec(workload=WorkloadSpec(name="default"), model="tiny", seed=seed) for seed in (0, 1, 2)]
    simulated = RunSpec(workload=WorkloadSpec(name="default"), executor="null")
    planned = Bench(tmp_path, jobs=2)._plan([*real, simulated], False, None)
    assert [point.spec.concurrent_points for point in planned] == [2, 2, 2, 1]
    assert [Path(str(point.spec.run_dir)).name for point in planned[:3]] == [run_dir_name(spec) for spec in real]
    written = build_manifest(planned[0].spec, {}, workload_hash="w", trace_sha256=None, num_requests=1)
    assert written["concurrent_points"] == 2
    alone = build_manifest(real[0], {}, workload_hash="w", trace_sha256=None, num_requests=1)
    assert written["sweep_point_hash"] == alone["sweep_point_hash"]


def test_what_has_a_virtual_clock() -> None:
    spec = RunSpec(workload=WorkloadSpec(name="default"))
    assert [is_virtual(msgspec.structs.replace(spec, executor=name)) for name in ("torch", "null", "sim")] == [
        False,
        True,
        True,
    ]
    assert is_virtual(msgspec.structs.replace(spec, virtual_time=True))


def test_the_progress_line_tells_one_run_in_full_and_of_several_how_far_they_are() -> None:
    one = Progress("fcfs default", step=3, num_ended=4, num_requests=9)
    other = Progress("lpm default", notice="loading the model")
    assert overall_text([one], 1, 5).startswith("[2/5] fcfs default: 4/9 done")
    assert overall_text([one, other], 1, 5) == "[1/5 ended] 2 running: fcfs default 4/9, lpm default loading the model"
    one.fold(Notice(t_ns=0, text="writing the tables"))
    assert overall_text([one, other], 1, 5).endswith(
        "fcfs default 4/9 writing the tables, lpm default loading the model"
    )


@pytest.mark.parametrize("width", [None, 40, 80])
def test_the_line_of_a_run_fits_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int | None
) -> None:
    """In a file it stays one line, which grep finds."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.chdir(tmp_path)
    simple_run(Path("out"))
    assert report_outcome("[1/2] ", Outcome("fcfs default", Path("out"), "complete"))
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(" ".join(lines).split()).startswith("[1/2] fcfs default: complete, 3/3 ok, TTFT p50 100 ms, ")
    assert lines[-1].endswith("-> out")
    if width is None:
        assert len(lines) == 1
    else:
        assert len(lines) > 1
        assert max(map(len, lines)) <= width
        assert all(line.startswith("    ") for line in lines[1:])


def test_a_progress_line_ends_between_its_parts() -> None:
    text = "[1/2] fcfs default: 4/9 done, 3 running, 5 waiting, step 12,345, 2.0 s"
    assert cut_between(text, len(text)) == text
    for width in range(32, len(text)):
        found = cut_between(text, width)
        assert len(found) <= width
        assert found.endswith(" ...")
        assert text.startswith(found.removesuffix(" ...") + ", ")
    assert cut_between("no comma in this", 5) == "no co"


def test_of_a_run_that_was_interrupted_while_loading_there_is_nothing_to_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_outcome("[1/2] ", Outcome("fcfs default", tmp_path / "gone", "interrupted"))
    assert capsys.readouterr() == ("", "")
    assert not report_outcome("[1/2] ", Outcome("fcfs default", tmp_path / "gone", "failed", "no such model"))
    assert capsys.readouterr() == ("", "kvtop: fcfs default: failed: no such model\n")


def test_labels_name_what_makes_another_workload() -> None:
    made = specs("--executor", "null", "--vary", "time-scale=1,0.5", "--vary", "replay=open,closed")
    assert point_labels(made) == [
        f"fcfs poisson-shared-prefix time_scale={scale} replay={replay}"
        for scale in ("1.0", "0.5")
        for replay in ("open", "closed")
    ]


def test_points_that_no_setting_tells_apart_have_their_id() -> None:
    spec = RunSpec(workload=WorkloadSpec(name="default"), executor="null")
    slower = msgspec.structs.replace(spec, executor_params={"step_time_ns": 20_000_000})
    first, second, again = point_labels([spec, slower, spec])
    assert first == again
    assert first != second
    assert second == f"fcfs default {run_dir_name(slower).rpartition('-')[2]}"
    assert point_labels([spec, spec]) == ["fcfs default"] * 2
