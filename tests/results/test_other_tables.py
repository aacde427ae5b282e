"""runs.parquet, tokens.parquet, and tables that are larger than what is held at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from result_runs import events_of, make_engine, manifest_of, record, specs

from kvtop.engine.errors import UsageError
from kvtop.engine.events import RunStarted
from kvtop.results.builder import TableBuilder
from kvtop.results.files import FileError
from kvtop.results.load import open_run
from kvtop.results.manifest import read_manifest, write_manifest
from kvtop.results.recording import FRAMES_NAME, FrameWriter
from kvtop.results.rundir import prepare_run_dir
from kvtop.results.runs_table import read_runs, write_runs
from kvtop.results.schema import RUNS, TOKENS
from kvtop.results.tables import write_tables
from kvtop.results.tokens import write_tokens


def test_there_is_a_row_for_each_run_with_its_manifest(tmp_path: Path) -> None:
    for name, seats in (("b", 2), ("a", 4)):
        run_dir = record(tmp_path / name, events_of(make_engine(max_num_seqs=seats), specs(5)))
        manifest = write_tables(run_dir)
        params = {"aging_steps": 7} if name == "a" else None
        write_manifest(run_dir, manifest | {"max_num_seqs": seats, "policy_params": params, "seed": 3})
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    assert write_runs(tmp_path) == 2
    table = pl.read_parquet(tmp_path / "runs.parquet")
    assert dict(table.schema) == RUNS
    assert table["run_dir"].to_list() == ["a", "b"]
    assert table["max_num_seqs"].to_list() == [4, 2]
    assert table["policy_params"].to_list() == ['{"aging_steps": 7}', None]
    assert table["window_end_ns"].to_list() == [read_manifest(tmp_path / name)["window_end_ns"] for name in "ab"]
    assert table["num_blocks"].to_list() == [16, 16]


def test_a_runs_table_of_an_older_schema_opens_with_nulls(tmp_path: Path) -> None:
    write_tables(record(tmp_path / "a", events_of(make_engine(), specs(2))))
    write_runs(tmp_path)
    path = tmp_path / "runs.parquet"
    pl.read_parquet(path).drop("slo", "run_dir").write_parquet(path)
    assert set(read_runs(tmp_path).columns) == set(RUNS)
    assert read_runs(tmp_path)["run_dir"].to_list() == [None]


def test_no_runs_make_an_empty_table(tmp_path: Path) -> None:
    assert write_runs(tmp_path) == 0
    assert dict(pl.read_parquet_schema(tmp_path / "runs.parquet")) == RUNS


def test_token_times_agree_with_the_table_of_requests(tmp_path: Path) -> None:
    run_dir = record(tmp_path / "run", events_of(make_engine(num_blocks=9), specs(40)))
    write_tables(run_dir)
    assert open_run(run_dir).tokens is None
    count = write_tokens(run_dir)
    table = open_run(run_dir).tokens
    assert table is not None
    tokens, requests = table.collect(), open_run(run_dir).requests.collect()
    assert dict(tokens.schema) == TOKENS
    assert tokens.height == count == requests["output_tokens"].sum()
    each = tokens.group_by("req_index").agg(
        pl.len().alias("count"), pl.col("t_ns").min().alias("first"), pl.col("t_ns").max().alias("last")
    )
    both = requests.join(each.with_columns(pl.col("count").cast(pl.Int64)), on="req_index").sort("req_index")
    assert both.height == 40
    assert both["count"].to_list() == both["output_tokens"].to_list()
    assert both["first"].to_list() == both["t_first_token_ns"].to_list()
    assert both["last"].to_list() == both["t_last_token_ns"].to_list()
    branches = tokens.group_by("req_index", "branch").agg(pl.col("token_index"))
    assert all(sorted(indices) == list(range(len(indices))) for indices in branches["token_index"].to_list())
    steps = open_run(run_dir).steps.collect()
    assert steps["output_tokens"].sum() == count
    ends = dict(steps.select("step", "t_done_ns").iter_rows())
    assert all(ends[step] == t_ns for step, t_ns in tokens.select("step", "t_ns").iter_rows())


def test_token_times_need_a_recording(tmp_path: Path) -> None:
    run_dir = record(tmp_path / "run", events_of(make_engine(), specs(3)))
    write_tables(run_dir)
    (run_dir / "frames.msgpack.zst").unlink()
    with pytest.raises(UsageError, match=r"no frames\.msgpack\.zst"):
        write_tokens(run_dir)


def test_token_times_that_were_asked_for_survive_a_lost_manifest(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    manifest = manifest_of() | {"tokens": True}
    with FrameWriter(run_dir / FRAMES_NAME) as writer:
        writer.write([RunStarted(run_id=str(manifest["run_id"]), manifest=manifest)])
        writer.write(events_of(make_engine(), specs(3)))
    run = open_run(run_dir)
    assert run.tokens is not None
    assert run.tokens.collect()["run_id"].unique().to_list() == [manifest["run_id"]]
    assert run.manifest["status"] == "interrupted"


def test_a_run_again_leaves_no_table_of_the_one_before(tmp_path: Path) -> None:
    run_dir = record(tmp_path / "run", events_of(make_engine(), specs(3)), status="interrupted")
    write_tables(run_dir)
    write_tokens(run_dir)
    prepare_run_dir(run_dir)
    assert list(run_dir.iterdir()) == []


def rows_of(count: int) -> list[tuple[object, ...]]:
    return [("run", i, i % 2, i // 3, i * 1_000, i // 5) for i in range(count)]


def test_what_is_larger_than_a_chunk_waits_on_disk_and_comes_back_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtop.results.builder.CHUNK_ROWS", 100)
    monkeypatch.setattr("kvtop.results.builder.ROW_GROUP", 250)
    rows = rows_of(1_030)
    with TableBuilder("tokens", tmp_path) as table:
        for start in range(0, len(rows), 7):
            table.add(rows[start : start + 7])
            assert len(table._rows) < 107
        table.write("run")
    assert [path.name for path in tmp_path.iterdir()] == ["tokens.parquet"]
    assert pl.read_parquet(tmp_path / "tokens.parquet").rows() == rows


LIMITED = """
import resource, sys
from pathlib import Path
from kvtop.results import builder
from kvtop.results.files import FileError
builder.CHUNK_ROWS = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
rows = [("run", i * 7919 % 65537, i, i, i * 1_000, i) for i in range(20_000)]
try:
    with builder.TableBuilder("tokens", Path(sys.argv[1])) as table:
        table.add(rows)
        table.write("run")
except FileError as error:
    print(error)
"""


@pytest.mark.parametrize("chunk_rows", [100_000, 1_000], ids=["at the end", "while rows wait"])
def test_what_the_disk_refuses_is_one_line_and_the_old_table_stays(tmp_path: Path, chunk_rows: int) -> None:
    """A real limit on the size of files, not a fault made up in Python."""
    old = tmp_path / "tokens.parquet"
    old.write_bytes(b"old")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path), str(chunk_rows)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{old}: cannot write: the file would exceed the size limit\n"
    assert old.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [old]


def test_an_error_that_is_none_of_the_disk_is_not_hidden(tmp_path: Path) -> None:
    with TableBuilder("tokens", tmp_path) as table:
        table.add([("too", "short")])
        with pytest.raises(Exception, match="column") as caught:
            table.write("run")
    assert not isinstance(caught.value, FileError)
