"""Which points a bench has, where they go, and what may be overwritten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_runs import finished, simple_run, steps

from kvtop.bench import Progress, plan_points, point_label, replicates, run_point
from kvtop.cli.bench_report import progress_text
from kvtop.cli.main import main
from kvtop.engine.errors import UsageError
from kvtop.engine.events import Notice, RunStarted
from kvtop.results.recording import FRAMES_NAME, FrameWriter
from kvtop.run.spec import RunSpec
from kvtop.workloads.spec import WorkloadSpec


def spec(policy: str = "fcfs", **values: object) -> RunSpec:
    return RunSpec(workload=WorkloadSpec(name="default", seed=7), engine={"policy": policy}, seed=7, **values)  # type: ignore[arg-type]


def test_replicates_change_the_seed_of_workload_and_sampling_alike() -> None:
    for policy in ("fcfs", "lpm"):
        made = replicates(spec(policy), 3)
        assert [(r.seed, r.workload.seed, r.replicate) for r in made] == [(7, 7, 0), (8, 8, 1), (9, 9, 2)]


def test_points_get_different_directories_and_the_same_point_the_same(tmp_path: Path) -> None:
    specs = [*replicates(spec("fcfs"), 2), *replicates(spec("lpm"), 2), spec("fcfs")]
    points = plan_points(specs, tmp_path, resume=False, force=False)
    directories = [point.run_dir for point, _ in points]
    assert len(directories) == len(set(directories)) == 4
    assert all(Path(str(path)).parent == tmp_path for path in directories)
    again = plan_points(specs, tmp_path, resume=False, force=False)
    assert [point.run_dir for point, _ in again] == directories


def test_a_complete_point_is_refused_kept_or_replaced_as_asked(tmp_path: Path) -> None:
    ((point, kept),) = plan_points([spec()], tmp_path, resume=False, force=False)
    assert not kept
    simple_run(Path(str(point.run_dir)))
    with pytest.raises(UsageError, match=r"already complete \(--resume keeps it .* --force"):
        plan_points([spec(), spec("lpm")], tmp_path, resume=False, force=False)
    flags = [kept for _, kept in plan_points([spec(), spec("lpm")], tmp_path, resume=True, force=False)]
    assert flags == [True, False]
    assert [kept for _, kept in plan_points([spec()], tmp_path, resume=False, force=True)] == [False]


def test_an_interrupted_point_is_run_again_without_asking(tmp_path: Path) -> None:
    ((point, _),) = plan_points([spec()], tmp_path, resume=False, force=False)
    run_dir = simple_run(Path(str(point.run_dir)))
    manifest = json.loads((run_dir / "run.json").read_text())
    (run_dir / "run.json").write_text(json.dumps(manifest | {"status": "interrupted"}))
    assert [kept for _, kept in plan_points([spec()], tmp_path, resume=True, force=False)] == [False]
    assert [kept for _, kept in plan_points([spec()], tmp_path, resume=False, force=False)] == [False]


def test_an_output_that_is_a_file_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UsageError, match="out: is a file, expected a directory"):
        plan_points([spec()], tmp_path / "out", resume=False, force=False)
    assert (tmp_path / "out").read_text() == "mine"


def test_planning_leaves_an_empty_directory(tmp_path: Path) -> None:
    plan_points([spec()], tmp_path / "out", resume=False, force=False)
    assert list((tmp_path / "out").iterdir()) == []


def test_labels_name_what_differs() -> None:
    assert point_label(spec()) == "fcfs default"
    other = RunSpec(
        workload=WorkloadSpec(name="a/b.jsonl"), engine={"policy": "lpm", "allocator": "contiguous-max"}, replicate=2
    )
    assert point_label(other) == "lpm b.jsonl contiguous-max r2"


def test_the_progress_line_follows_the_events() -> None:
    progress = Progress("fcfs default")
    assert progress_text(progress) == "fcfs default: starting"
    progress.fold(Notice(t_ns=0, text="loading the model", progress=0.5))
    assert progress_text(progress) == "fcfs default: loading the model 50 %"
    progress.fold(RunStarted(run_id="r", manifest={"num_requests": 64, "num_blocks": 200}))
    for step in steps({2_000_000_000: [("a", 1)]}, used_blocks=50, num_running=3, num_waiting=5):
        progress.fold(step)
    progress.fold(finished("a", 0, tokens=[1]))
    assert (
        progress_text(progress) == "fcfs default: 1/64 done, 3 running, 5 waiting, 25 % of blocks used, step 1, 2.0 s"
    )
    progress.fold(Notice(t_ns=0, text="request 'b' is too long", level="warning"))
    assert progress_text(progress).endswith("step 1, 2.0 s"), "warnings are told at the end"
    progress.fold(Notice(t_ns=0, text="writing the tables"))
    assert progress_text(progress) == "fcfs default: 1/64 done, writing the tables"


def test_force_does_not_take_the_directory_of_a_run_that_is_being_written(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with FrameWriter(run_dir / FRAMES_NAME):
        outcome = run_point(spec(executor="null", run_dir=str(run_dir)), lambda _: None, force=True)
        assert (outcome.status, outcome.exit_code) == ("failed", 2)
        assert outcome.error == f"{run_dir}: another run is being written here; choose another directory"
        assert (run_dir / FRAMES_NAME).exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("-w default -p fcsf", "unknown queue policy 'fcsf'; did you mean 'fcfs'?"),
        ("-w default --eviction lruu", "unknown eviction policy 'lruu'; did you mean 'lru'?"),
        ("-w default --allocator pagd", "unknown allocator 'pagd'; did you mean 'paged'?"),
        ("-w defalt", "'defalt'; did you mean 'default'?"),
        ("-w nowhere.jsonl", "nowhere.jsonl: no such file"),
        ("-w default -m nowhere/at/all", "'nowhere/at/all': no such file or directory"),
        ("-w default -m smoll", "unknown model 'smoll'"),
        ("-w default --executor nul", "unknown executor 'nul'; did you mean 'null'?"),
        ("-w default --too-long cut", "unknown rule for too long requests 'cut'"),
        ("-w default --num-blocks 0", "--num-blocks: '0' is out of range"),
        ("-w default --kv-memory 2G", "write 2GiB"),
        ("-w default --num-blocks 5 --kv-memory 2GiB", "not allowed with"),
        ("-w default --limit -3", "--limit: '-3' is out of range"),
        ("-w default --length-scale 0", "--length-scale: '0' is out of range"),
        ("-w default --time-scale nan", "--time-scale: 'nan' is out of range"),
        ("-w default --replicates 0", "--replicates: '0' is out of range"),
        ("-w default --resume --force", "not allowed with"),
        ("-p fcfs", "needs a workload"),
    ],
)
def test_every_argument_is_checked_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, says: str
) -> None:
    assert main(["bench", *words.split(), "-o", str(tmp_path / "out")]) == 2
    found = capsys.readouterr()
    assert found.err.startswith("kvtop: ")
    assert found.err.count("\n") == 1
    assert says in found.err
    assert not (tmp_path / "out").exists()


def test_a_broken_trace_names_its_row_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = '{"timestamp": 0, "input_length": 20, "output_length": 3, "hash_ids": [1]}'
    (tmp_path / "trace.jsonl").write_text(f"{row}\n{row}\nnot json\n")
    assert main(["bench", "-w", str(tmp_path / "trace.jsonl"), "-o", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert f"{tmp_path / 'trace.jsonl'}:3: " in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()
