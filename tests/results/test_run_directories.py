"""Run directories: names, what stands in the way, what is not a run, what was killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import polars as pl
import pytest
from result_runs import events_of, make_engine, manifest_of, record, specs

from kvtop.engine.errors import UsageError
from kvtop.engine.events import RunEnded
from kvtop.results.files import FileError
from kvtop.results.load import find_runs, open_run
from kvtop.results.manifest import MANIFEST_KEYS, git_state, read_manifest, write_manifest
from kvtop.results.recording import FRAMES_NAME, FrameWriter, read_frames
from kvtop.results.rundir import prepare_run_dir, run_dir_name
from kvtop.results.schema import REQUESTS, RUNS
from kvtop.results.tables import write_tables
from kvtop.run.spec import RunSpec
from kvtop.workloads.spec import WorkloadSpec


def spec(**values: object) -> RunSpec:
    return RunSpec(**({"workload": WorkloadSpec(name="/data/My trace.jsonl.gz")} | values))  # type: ignore[arg-type]


def test_names_are_deterministic_and_differ_by_what_matters() -> None:
    name = run_dir_name(spec(engine={"policy": "lpm"}))
    assert name.startswith("lpm-My_trace-")
    assert name == run_dir_name(spec(engine={"policy": "lpm"}, run_dir="/elsewhere", start_paused=True))
    others = [
        spec(engine={"policy": "lpm"}, seed=1),
        spec(engine={"policy": "lpm"}, replicate=1),
        spec(engine={"policy": "lpm"}, num_blocks=7),
        spec(engine={"policy": "lpm", "allocator": "contiguous-max"}),
        spec(engine={"policy": "lpm"}, workload=WorkloadSpec(name="/data/My trace.jsonl.gz", limit=3)),
    ]
    assert len({name, *map(run_dir_name, others)}) == 6
    assert "-r1-" in run_dir_name(others[1])
    assert "-contiguous-max-" in run_dir_name(others[3])


def test_a_name_can_never_leave_its_directory() -> None:
    for workload in ("../../etc/passwd", "..", "/", "a b\n/c"):
        name = run_dir_name(spec(workload=WorkloadSpec(name=workload), engine={"policy": "../x"}))
        assert "/" not in name
        assert not name.startswith(".")


def test_a_fresh_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    path = prepare_run_dir(tmp_path / "a" / "b")
    assert path.is_dir()
    assert list(path.iterdir()) == []


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("precious")
    for target in (tmp_path / "a", tmp_path / "a" / "b" / "c"):
        with pytest.raises(UsageError, match=r"a: is a file, expected a directory"):
            prepare_run_dir(target)
    assert (tmp_path / "a").read_text() == "precious"


def test_a_refusing_system_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UsageError, match=r"run: cannot write: permission denied"):
        prepare_run_dir(tmp_path / "run")


def test_a_complete_run_is_never_overwritten(tmp_path: Path) -> None:
    run_dir = record(tmp_path / "run", events_of(make_engine(), specs(3)))
    write_tables(run_dir)
    before = {path.name: path.read_bytes() for path in run_dir.iterdir()}
    with pytest.raises(UsageError, match="already holds a complete run"):
        prepare_run_dir(run_dir)
    assert {path.name: path.read_bytes() for path in run_dir.iterdir()} == before


def test_an_interrupted_run_makes_room_and_other_files_stay(tmp_path: Path) -> None:
    run_dir = record(tmp_path / "run", events_of(make_engine(), specs(3)), status=None)
    write_tables(run_dir)
    (run_dir / "notes.txt").write_text("mine")
    prepare_run_dir(run_dir)
    assert [path.name for path in run_dir.iterdir()] == ["notes.txt"]


def test_a_run_being_written_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with FrameWriter(tmp_path / "run" / FRAMES_NAME):
        with pytest.raises(UsageError, match="being written"):
            prepare_run_dir(tmp_path / "run")
        with pytest.raises(UsageError, match="still being written"):
            open_run(tmp_path / "run")


def test_what_is_not_a_run_is_told_with_the_runs_nearby(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        open_run(tmp_path / "none")
    with pytest.raises(UsageError, match="no runs below it"):
        open_run(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file, expected a run directory"):
        open_run(tmp_path / "file")
    for name in ("fcfs-x-1", "lpm-x-2"):
        record(tmp_path / name, [])
    with pytest.raises(UsageError, match="runs below it: fcfs-x-1, lpm-x-2"):
        open_run(tmp_path)
    assert [path.name for path in find_runs(tmp_path)] == ["fcfs-x-1", "lpm-x-2"]
    assert find_runs(tmp_path / "lpm-x-2") == [tmp_path / "lpm-x-2"]


def test_tables_of_a_killed_run_are_derived_when_it_is_opened(tmp_path: Path) -> None:
    run_dir = record(tmp_path / "run", events_of(make_engine(), specs(8), max_steps=9), status=None)
    assert read_manifest(run_dir)["status"] == "running"
    run = open_run(run_dir)
    assert run.manifest["status"] == "interrupted"
    assert run.requests.collect().height == 8
    assert read_manifest(run_dir)["status"] == "interrupted"


def test_a_lost_manifest_is_taken_from_the_recording(tmp_path: Path) -> None:
    run_dir = record(tmp_path / "run", events_of(make_engine(), specs(3)))
    run_id = read_manifest(run_dir)["run_id"]
    (run_dir / "run.json").unlink()
    assert open_run(run_dir).run_id == run_id


@pytest.mark.parametrize(("text", "hint"), [("{", "is not JSON"), ("[1]", "found list, expected a JSON object")])
def test_a_broken_manifest_is_one_line(tmp_path: Path, text: str, hint: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(FileError, match=hint):
        open_run(tmp_path)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    run_dir = record(tmp_path / "run", events_of(make_engine(), specs(2)))
    manifest = write_tables(run_dir)
    write_manifest(run_dir, manifest | {"schema_version": 99})
    with pytest.raises(UsageError, match="schema version 99"):
        open_run(run_dir)


def test_columns_that_an_older_schema_did_not_have_are_null(tmp_path: Path) -> None:
    run_dir = record(tmp_path / "run", events_of(make_engine(), specs(2)))
    manifest = write_tables(run_dir)
    table = run_dir / "requests.parquet"
    assert pl.read_parquet(table)["phase"].null_count() == 0
    pl.read_parquet(table).drop("host_hit_tokens", "shared_prefix_tokens").write_parquet(table)
    write_manifest(run_dir, manifest | {"schema_version": 1, "definitions_version": 1})
    requests = open_run(run_dir).requests.collect()
    assert requests["host_hit_tokens"].to_list() == requests["shared_prefix_tokens"].to_list() == [None, None]
    assert requests["phase"].to_list() == [None, None], "it had no meaning then"
    assert set(requests.columns) == set(REQUESTS)


def test_the_manifest_has_every_key_and_is_plain_json(tmp_path: Path) -> None:
    manifest = manifest_of()
    assert list(manifest)[: len(MANIFEST_KEYS)] == list(MANIFEST_KEYS)
    assert list(RUNS) == [*MANIFEST_KEYS, "run_dir"]
    write_manifest(tmp_path, manifest)
    assert json.loads((tmp_path / "run.json").read_text()) == json.loads(json.dumps(manifest))
    assert manifest["cost_model"] is None
    assert manifest["python"] == sys.version.split()[0]


def test_run_ids_follow_the_content_in_virtual_time_only() -> None:
    assert manifest_of()["run_id"] == manifest_of()["run_id"]
    assert manifest_of()["run_id"] != manifest_of(num_blocks=17)["run_id"]
    assert manifest_of(clock="real")["run_id"] != manifest_of(clock="real")["run_id"]


def test_a_sweep_point_is_the_same_for_all_its_seeds() -> None:
    from kvtop.results.manifest import build_manifest

    base = RunSpec(workload=WorkloadSpec(name="w", seed=0), executor="null")
    other = RunSpec(workload=WorkloadSpec(name="w", seed=5), executor="null", seed=5, replicate=5)
    a, b = (
        build_manifest(s, {"clock": "virtual"}, workload_hash=h, trace_sha256=None, num_requests=1)
        for s, h in ((base, "x"), (other, "y"))
    )
    assert a["sweep_point_hash"] == b["sweep_point_hash"]
    assert a["run_id"] != b["run_id"]
    c = msgspec.structs.replace(base, num_blocks=9)
    changed = build_manifest(c, {"clock": "virtual"}, workload_hash="x", trace_sha256=None, num_requests=1)
    assert changed["sweep_point_hash"] != a["sweep_point_hash"]


def test_the_commit_is_that_of_the_checkout_which_tracks_the_file(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@t"]
    (tmp_path / "ours.py").write_text("1")
    (tmp_path / "installed.py").write_text("1")
    for command in (["init", "-q"], ["add", "ours.py"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    sha = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert git_state(tmp_path / "ours.py") == (sha, False)
    (tmp_path / "ours.py").write_text("2")
    assert git_state(tmp_path / "ours.py") == (sha, True)
    assert git_state(tmp_path / "installed.py") == (None, None)


def test_a_run_whose_tables_are_still_to_be_written_is_left_alone(tmp_path: Path) -> None:
    writer = FrameWriter(tmp_path / FRAMES_NAME)
    writer.write([RunEnded(t_ns=1, status="complete")])
    writer.finish()
    assert [event for events in read_frames(tmp_path / FRAMES_NAME) for event in events]
    with pytest.raises(UsageError, match="another run is being written here"):
        prepare_run_dir(tmp_path)
    writer.close()
    prepare_run_dir(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}", "run_id is missing"),
        ('{"run_id": "a"}', "status is missing"),
        ('{"run_id": 3, "status": "complete"}', "run_id is 3, expected a text"),
        ('{"run_id": "a", "status": "complete", "warmup_requests": "many"}', "warmup_requests is"),
        ('{"run_id": "a", "status": "complete", "num_blocks": true}', "num_blocks is true, expected a whole number"),
    ],
)
def test_a_manifest_of_other_kinds_is_one_line(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(FileError, match=said) as raised:
        read_manifest(tmp_path)
    assert "run.json" in str(raised.value)
    assert "\n" not in str(raised.value)
