"""Runs that are kept under a URL: uploaded whole or not at all, found again, and compared as local ones are."""

from __future__ import annotations

import io
import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import polars as pl
import pytest
from bench_process import run_dirs
from made_runs import simple_run

from kvtop.bench.inputs import collect, unpack
from kvtop.bench.store import Store, StoreError, is_url, plan_in_store
from kvtop.cli.main import main
from kvtop.engine.errors import UsageError
from kvtop.results.identity import point_identity
from kvtop.results.rundir import run_dir_name
from kvtop.results.runs_table import write_runs
from kvtop.run.spec import RunSpec
from kvtop.workloads.load import load_workload
from kvtop.workloads.spec import WorkloadSpec


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store of objects, and one on a file system."""
    if request.param == "file":
        yield f"file://{tmp_path / 'store'}"
        return
    folder = f"/{uuid.uuid4().hex}"
    yield f"memory:/{folder}"
    memory = fsspec.filesystem("memory")
    if memory.exists(folder):
        memory.rm(folder, recursive=True)


def names(url: str) -> list[str]:
    """Every file, relative to the store."""
    files, root = fsspec.core.url_to_fs(url)
    return sorted(path[len(root) :].strip("/") for path in files.find(root))


def test_a_run_comes_back_as_it_went(url: str, tmp_path: Path) -> None:
    run_dir, store = simple_run(tmp_path / "run"), Store(url)
    store.check_writable()
    assert not store.is_complete("run")
    store.upload(run_dir, "run")
    assert store.is_complete("run")
    assert names(url) == sorted(f"run/{path.name}" for path in run_dir.iterdir()), "nothing else is left there"
    store.download("run", tmp_path / "back")
    for path in run_dir.iterdir():
        assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes()


def test_an_upload_that_breaks_off_leaves_no_run(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it stops; also when a complete run was there before: its manifest must not stand beside other tables."""
    run_dir, store = simple_run(tmp_path / "run"), Store(url)
    files = len(list(run_dir.iterdir()))
    put = Store._put
    for stop_after in range(files):
        store.upload(run_dir, "run")
        num_put = 0

        def breaking(self: Store, local: Path, remote: str, *, stop_after: int = stop_after) -> None:
            nonlocal num_put
            num_put += 1
            if num_put > stop_after:
                raise OSError(28, "No space left on device")
            put(self, local, remote)

        monkeypatch.setattr(Store, "_put", breaking)
        with pytest.raises(StoreError, match=r"/run: cannot write: No space left on device"):
            store.upload(run_dir, "run")
        monkeypatch.undo()
        assert not store.is_complete("run")
        assert not any(".tmp" in name for name in names(url))
    store.upload(run_dir, "run")
    assert store.is_complete("run")


def test_half_a_table_in_a_store_is_no_run(url: str, tmp_path: Path) -> None:
    run_dir, store = simple_run(tmp_path / "run"), Store(url)
    whole = (run_dir / "steps.parquet").read_bytes()
    (run_dir / "steps.parquet").write_bytes(whole[:-9])
    store.upload(run_dir, "run")
    assert not store.is_complete("run")


def test_complete_runs_are_refused_kept_or_replaced(url: str, tmp_path: Path) -> None:
    spec, store = RunSpec(workload=WorkloadSpec(name="default"), executor="null"), Store(url)
    name = run_dir_name(spec)
    store.upload(simple_run(tmp_path / "made"), name)

    def plan(**how: bool) -> list[tuple[RunSpec, bool]]:
        return plan_in_store([spec, spec], store, tmp_path / "mirror", **({"resume": False, "force": False} | how))

    with pytest.raises(UsageError, match=rf"{name}: already complete \(--resume"):
        plan()
    ((planned, kept),) = plan(resume=True)
    assert kept
    assert Path(str(planned.run_dir), "requests.parquet").exists(), "what is kept is there to be compared"
    ((_, kept),) = plan(force=True)
    assert not kept


def test_a_bench_can_keep_its_runs_in_a_store(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "-w", "poisson-shared-prefix", "--executor", "null", "--limit", "3", "-p", "fcfs"]
    assert main([*words, "-o", url]) == 0
    assert main([*words, "-o", str(tmp_path / "local")]) == 0
    (local,) = run_dirs(tmp_path / "local")
    out = capsys.readouterr().out
    assert "TTFT p99" in out
    if url.startswith("memory"):
        assert f"-> {url}/{local.name}" in out
        assert names(url) == sorted([*(f"{local.name}/{path.name}" for path in local.iterdir()), "runs.parquet"])
    assert main([*words, "-o", url]) == 2
    capsys.readouterr()
    assert main([*words, "-o", url, "--resume", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["status"] for run in found["runs"]] == ["kept"]
    assert found["runs"][0]["run"].endswith(local.name)
    (comparison,) = found["comparisons"]
    assert len(comparison["columns"]) == 1


def runs_of(url: str) -> pl.DataFrame:
    files, root = fsspec.core.url_to_fs(url)
    return pl.read_parquet(io.BytesIO(files.cat_file(f"{root}/runs.parquet")))


def test_the_table_of_runs_in_a_store_is_that_of_a_folder(url: str, tmp_path: Path) -> None:
    """Runs that others have put there have rows too; what is no run, or breaks off before its manifest, has none."""
    store = Store(url)
    store.check_writable()
    store.write_runs()
    assert runs_of(url).height == 0
    for name in ("b", "a"):
        store.upload(simple_run(tmp_path / "local" / name, policy=name), name)
    files, root = fsspec.core.url_to_fs(url)
    for name, data in (("half/steps.parquet", b"PAR1"), ("broken/run.json", b"{"), ("notes.txt", b"run")):
        files.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
        files.pipe_file(f"{root}/{name}", data)
    store.write_runs()
    assert write_runs(tmp_path / "local") == 2
    found = runs_of(url)
    assert found["run_dir"].to_list() == ["a", "b"]
    assert found["policy"].to_list() == ["a", "b"]
    assert found.equals(pl.read_parquet(tmp_path / "local" / "runs.parquet"))


def test_a_store_that_refuses_the_table_of_runs_is_one_line(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Store, name: str, data: bytes) -> None:
        raise StoreError(f"{self.url}/{name}: cannot write: it is full")

    monkeypatch.setattr(Store, "write", refuse)
    words = ["bench", "-w", "poisson-shared-prefix", "--executor", "null", "--limit", "3", "-p", "fcfs", "-o", url]
    is_local = url.startswith("file")  # a folder of this machine is written into without a store
    assert main(words) == (0 if is_local else 1)
    assert ("kvtop: " + url + "/runs.parquet: cannot write: it is full\n" in capsys.readouterr().err) is not is_local


def test_a_store_of_objects_is_not_asked_for_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, making a folder makes the bucket: a mistyped name would become one before anything is run."""
    url = f"memory://{uuid.uuid4().hex}"
    files, _ = fsspec.core.url_to_fs(url)
    monkeypatch.setattr("kvtop.bench.store.WITHOUT_FOLDERS", ("memory",))
    monkeypatch.setattr(type(files), "makedirs", lambda *_, **__: pytest.fail("a folder was made"))
    Store(url).check_writable()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("s3://a/b", True), ("file:///a", True), ("out/a", False), ("/a:/b", False), ("://x", False), ("a b://c", False)],
)
def test_what_is_a_url(text: str, expected: bool) -> None:
    assert is_url(text) is expected


def test_a_protocol_that_nobody_knows_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "-w", "poisson-shared-prefix", "--executor", "null", "--limit", "3", "-o", "nowhere://a/b"]
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith("kvtop: -o nowhere://a/b: ")
    assert err.count("\n") == 1


# -- what travels with a point ---------------------------------------------------------------------------------------


def prompts(spec: RunSpec) -> list[Any]:
    workload = load_workload(spec.workload, vocab_size=100)
    return [(row.arrival_ns, row.prompt_tokens, row.output_tokens) for row in workload.rows]


@pytest.mark.parametrize("where", ["trace.jsonl", "../traces/trace.jsonl", "down/trace.jsonl"])
def test_what_a_point_reads_can_be_taken_to_another_machine(tmp_path: Path, where: str) -> None:
    from bench_process import write_trace

    home, trace = tmp_path / "home" / "specs", tmp_path / "home" / "specs" / where
    home.mkdir(parents=True)
    trace.parent.mkdir(exist_ok=True)
    write_trace(trace, [(0, 16, 4), (7, 20, 5)])
    (home / "w.toml").write_text(f'kind = "trace"\npath = "{where}"\n')
    (home / "mine.py").write_text("def order(seq, context):\n    return (seq.num_prompt,)\n")
    for name in (str(home / "w.toml"), str(trace)):
        spec = RunSpec(
            workload=WorkloadSpec(name=name), engine={"policy": f"{home / 'mine.py'}:order"}, executor="null"
        )
        expected, identity, inputs = prompts(spec), point_identity(spec), collect(spec)
        moved = unpack(spec, inputs, tmp_path / "worker" / Path(name).name)
        shutil.move(tmp_path / "home", tmp_path / "away")
        assert prompts(moved) == expected
        assert point_identity(moved) == identity
        shutil.move(tmp_path / "away", tmp_path / "home")


def test_built_in_workloads_and_policies_need_nothing() -> None:
    spec = RunSpec(workload=WorkloadSpec(name="default"), engine={"policy": "lpm", "eviction": "lru"})
    assert collect(spec) == {}
    assert unpack(spec, {}, Path("nowhere")) == spec
