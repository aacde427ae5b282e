"""Parquet tables against hand-worked runs, and against the engine's own totals."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from result_runs import STEP_NS, events_of, make_engine, manifest_of, record, specs

from kvtop.engine.api import RequestSpec, SamplingParams
from kvtop.engine.errors import InvalidRequest, KvtopError
from kvtop.engine.events import DECISION_FIELDS, ConfigChanged, Event, RequestEvent, StepEvent
from kvtop.results.builder import TableBuilder
from kvtop.results.files import FileError
from kvtop.results.load import open_run
from kvtop.results.manifest import read_manifest
from kvtop.results.schema import EVENTS, REQUESTS, SCHEMAS, STEPS
from kvtop.results.tables import write_tables


def tables(run_dir: Path) -> dict[str, pl.DataFrame]:
    write_tables(run_dir)
    return {name: pl.read_parquet(run_dir / f"{name}.parquet") for name in SCHEMAS}


def test_schemas_are_the_fixed_ones_even_without_a_row(tmp_path: Path) -> None:
    got = tables(record(tmp_path / "run", []))
    assert dict(got["requests"].schema) == REQUESTS
    assert dict(got["steps"].schema) == STEPS
    assert dict(got["events"].schema) == EVENTS
    assert all(frame.is_empty() for frame in got.values())


def test_one_request_by_hand(tmp_path: Path) -> None:
    """6 prompt tokens, 5 of them intended at -15 ms; budget 4: two chunks, then two decodes of 10 ms each."""
    engine = make_engine(max_batched_tokens=4)
    request = RequestSpec([1, 2, 3, 4, 5, 6], SamplingParams(max_tokens=3), request_id="a", arrival_ns=-15_000_000)
    got = tables(record(tmp_path / "run", events_of(engine, [request])))
    row = got["requests"].row(0, named=True)
    expected = {
        "req_index": 0, "request_id": "a", "turn": 0, "n": 1, "prompt_tokens": 6, "requested_output_tokens": 3,
        "output_tokens": 3, "t_sched_ns": -15_000_000, "t_submit_ns": 0, "t_first_sched_ns": 0,
        "t_first_token_ns": 2 * STEP_NS, "t_last_token_ns": 4 * STEP_NS, "t_done_ns": 4 * STEP_NS,
        "lag_ns": 15_000_000, "queue_first_ns": 0, "queue_total_ns": 0, "prefill_ns": 2 * STEP_NS,
        "ttft_ns": 35_000_000, "ttft_submit_ns": 2 * STEP_NS, "tpot_ns": STEP_NS, "e2e_ns": 55_000_000,
        "itl_max_ns": STEP_NS, "hit_tokens": 0, "ideal_hit_tokens": None, "miss_reason": "never_seen",
        "restored_tokens": 0, "recomputed_tokens": 0, "num_preemptions": 0, "preempted_ns": 0, "peak_blocks": 2,
        "shared_blocks_saved": 0, "finish_reason": "length", "status": "ok", "phase": "steady", "slo_ok": None,
        "session_id": None, "tenant": None,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    kinds = got["events"]["kind"].to_list()
    assert kinds[:5] == ["arrived", "alloc", "lookup", "admitted", "chunk"]
    times = got["events"].filter(pl.col("kind") == "first_token")["t_ns"].to_list()
    assert times == [2 * STEP_NS]
    assert got["events"]["seq"].to_list() == list(range(len(kinds)))


def test_what_was_changed_while_it_ran_is_in_the_manifest_with_its_old_value(tmp_path: Path) -> None:
    def after(step: int, **changes: object) -> list[Event]:
        end = (step + 1) * STEP_NS
        return [
            StepEvent(step=step, t_start_ns=end - STEP_NS, t_planned_ns=end - STEP_NS, t_done_ns=end),
            ConfigChanged(t_ns=end, changes=changes),
        ]

    events = [*after(3, policy="sjf", num_blocks=8), *after(9, arrival_rate=2.0, num_blocks=16)]
    events += after(12, arrival_rate=0.5)
    manifest = write_tables(record(tmp_path / "run", events))
    assert manifest["config_changes"] == [
        {"key": "policy", "old": "fcfs", "new": "sjf", "step": 3, "t_ns": 4 * STEP_NS},
        {"key": "num_blocks", "old": 16, "new": 8, "step": 3, "t_ns": 4 * STEP_NS},
        {"key": "arrival_rate", "old": 1.0, "new": 2.0, "step": 9, "t_ns": 10 * STEP_NS},
        {"key": "num_blocks", "old": 8, "new": 16, "step": 9, "t_ns": 10 * STEP_NS},
        {"key": "arrival_rate", "old": 2.0, "new": 0.5, "step": 12, "t_ns": 13 * STEP_NS},
    ]
    assert read_manifest(tmp_path / "run") == manifest
    assert "config_changes" not in write_tables(record(tmp_path / "unchanged", []))


def test_tables_agree_with_the_engine_and_with_each_other(tmp_path: Path) -> None:
    engine = make_engine(num_blocks=9)
    events = events_of(engine, specs(40))
    got = tables(record(tmp_path / "run", events))
    requests, steps, log, totals = got["requests"], got["steps"], got["events"], engine.counters()
    assert totals.preemptions > 0
    assert totals.evictions > 0
    assert steps["preemptions"].sum() == totals.preemptions == requests["num_preemptions"].sum()
    assert log.filter(pl.col("kind") == "preempted").height == totals.preemptions
    assert log.filter(pl.col("kind") == "evict").height == totals.evictions == steps["evictions"].sum()
    assert requests["hit_tokens"].sum() == totals.hit_tokens == steps["hit_tokens"].sum()
    assert requests["restored_tokens"].sum() == totals.restored_tokens
    assert requests["recomputed_tokens"].sum() == totals.recomputed_tokens
    assert steps["copies"].sum() == totals.copies == log.filter(pl.col("kind") == "copy").height
    pool = steps["used_blocks"] + steps["idle_blocks"] + steps["fresh_blocks"] + steps["in_transfer_blocks"]
    assert pool.unique().to_list() == [9]
    assert requests["request_id"].to_list() == [f"q{i}" for i in range(40)]
    assert log.filter(pl.col("kind") == "skipped").select("need_blocks", "have_blocks").null_count().row(0) == (0, 0)


def test_no_file_holds_a_nan(tmp_path: Path) -> None:
    got = tables(record(tmp_path / "run", events_of(make_engine(), specs(10))))
    floats = [(n, c) for n, frame in got.items() for c, kind in frame.schema.items() if kind.is_float()]
    assert floats == []


def test_a_rejected_request_has_a_row_and_no_measures(tmp_path: Path) -> None:
    engine = make_engine()
    with pytest.raises(InvalidRequest):
        engine.submit([1] * 500, request_id="big")
    got = tables(record(tmp_path / "run", events_of(engine, [RequestSpec([1, 2], SamplingParams(), "ok")])))
    row = got["requests"].row(0, named=True)
    assert (row["request_id"], row["status"], row["finish_reason"]) == ("big", "rejected", "rejected")
    for name in ("ttft_ns", "hit_tokens", "output_tokens", "num_preemptions", "queue_first_ns", "peak_blocks"):
        assert row[name] is None, name
    assert got["requests"]["status"].to_list() == ["rejected", "ok"]
    assert got["events"].filter(pl.col("kind") == "rejected")["reason"].to_list() == ["RequestTooLong"]


def test_an_aborted_request_says_so(tmp_path: Path) -> None:
    engine = make_engine()
    engine.submit([1, 2, 3], SamplingParams(max_tokens=30), request_id="a")
    engine.step()
    engine.abort("a")
    got = tables(record(tmp_path / "run", events_of(engine, [])))
    row = got["requests"].row(0, named=True)
    assert (row["status"], row["finish_reason"], row["output_tokens"]) == ("aborted", "aborted", 1)


def test_what_the_run_cut_off_is_kept_as_far_as_it_came(tmp_path: Path) -> None:
    """Against the same requests in a run that goes on: times and counts are equal, the end is unknown."""
    cut = tables(record(tmp_path / "cut", events_of(make_engine(), specs(12), max_steps=12)))["requests"]
    whole = tables(record(tmp_path / "whole", events_of(make_engine(), specs(12))))["requests"]
    alive = cut.filter(pl.col("status") == "cutoff")
    assert 2 <= alive.height < 12
    assert alive["t_done_ns"].null_count() == alive.height
    both = alive.join(whole, on="request_id", suffix="_whole")
    assert both.height == alive.height
    for name in ("t_sched_ns", "t_submit_ns", "t_first_sched_ns", "t_first_token_ns", "hit_tokens", "miss_reason"):
        known = both.filter(pl.col(name).is_not_null())
        assert known.height > 0, name
        assert known[name].to_list() == known[f"{name}_whole"].to_list()
    assert (both["output_tokens"] <= both["output_tokens_whole"]).all()
    assert cut.filter(pl.col("status") == "ok").height > 0


def test_the_decision_log_has_every_decision_in_order_whatever_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row by row against the events; also with keys that are no signed numbers of 64 bits."""
    monkeypatch.setattr("kvtop.results.builder.CHUNK_ROWS", 100)
    events = events_of(make_engine(num_blocks=9, host_cache_blocks=20), specs(40))
    wide = ("publish", "q0", 0, 3, (1 << 63) + 7, (1 << 64) - 1)
    events.append(StepEvent(step=999, t_start_ns=1, t_planned_ns=2, t_done_ns=3, decisions=[wide]))
    expected: list[dict[str, object]] = []
    for event in [event for event in events if isinstance(event, StepEvent)]:
        for kind, *values in event.decisions:
            row = dict(zip(DECISION_FIELDS[kind], values, strict=True))
            row |= {"seq": len(expected), "step": event.step, "kind": kind, "run_id": manifest_of()["run_id"]}
            row |= {"other": str(row["other"])} if row.get("other") is not None else {}
            expected.append({name: row.get(name) for name in EVENTS if name != "t_ns"})
    expected[-1] |= {"block_key": 7 - (1 << 63), "parent_key": -1}
    got = tables(record(tmp_path / "run", events))["events"].drop("t_ns").to_dicts()
    assert len(got) > 1_000
    assert len({row["kind"] for row in expected}) > 12
    assert got == expected


def test_hits_in_host_memory_have_columns_of_their_own(tmp_path: Path) -> None:
    engine = make_engine(num_blocks=9, host_cache_blocks=20)
    got = tables(record(tmp_path / "run", events_of(engine, specs(40))))
    requests, steps, log, totals = got["requests"], got["steps"], got["events"], engine.counters()
    assert totals.host_hit_tokens > 0
    assert requests["host_hit_tokens"].sum() == totals.host_hit_tokens == steps["host_hit_tokens"].sum()
    assert requests["hit_tokens"].sum() == totals.hit_tokens
    assert steps["host_cached_blocks"].max() == steps["host_cached_blocks"].to_list()[-1] == totals.host_cached == 20
    loads = log.filter(pl.col("kind") == "host_load")
    assert loads.height * 4 == log.filter(pl.col("kind") == "host_hit")["num_tokens"].sum() >= totals.host_hit_tokens
    stores = log.filter(pl.col("kind") == "host_store")
    assert stores.height - (stores["reason"] == "there").sum() - log.filter(pl.col("kind") == "host_evict").height == 20


def test_a_request_that_was_cut_off_has_its_hits_apart_too(tmp_path: Path) -> None:
    def run() -> tuple[pl.DataFrame, pl.DataFrame]:
        whole, cut = (make_engine(num_blocks=9, host_cache_blocks=20) for _ in range(2))
        first = tables(record(tmp_path / "whole", events_of(whole, specs(40))))["requests"]
        hit = first.filter(pl.col("host_hit_tokens") > 0)
        step = hit["t_first_sched_ns"].to_list()[0] // STEP_NS
        return first, tables(record(tmp_path / "cut", events_of(cut, specs(40), max_steps=step + 1)))["requests"]

    whole, cut = run()
    both = cut.filter(pl.col("status") == "cutoff").join(whole, on="request_id", suffix="_whole")
    both = both.filter(pl.col("hit_tokens").is_not_null())
    assert both["host_hit_tokens"].sum() > 0
    for name in ("hit_tokens", "host_hit_tokens"):
        assert both[name].to_list() == both[f"{name}_whole"].to_list()


def test_sharing_counts_the_blocks_that_were_not_needed(tmp_path: Path) -> None:
    """8 prompt tokens in blocks of 4, four branches of 4 tokens: 6 blocks instead of 12."""
    engine = make_engine()
    request = RequestSpec(list(range(8)), SamplingParams(max_tokens=4, n=4), request_id="a")
    row = tables(record(tmp_path / "run", events_of(engine, [request])))["requests"].row(0, named=True)
    assert row["shared_blocks_saved"] == 6


def test_status_and_window_come_from_the_recording(tmp_path: Path) -> None:
    """The window by its definition, over a list: from the first to the last step with half the peak running."""
    events = events_of(make_engine(), specs(12))
    write_tables(record(tmp_path / "a", events, status="failed"))
    write_tables(record(tmp_path / "b", events, status=None))
    a, b = read_manifest(tmp_path / "a"), read_manifest(tmp_path / "b")
    assert (a["status"], b["status"]) == ("failed", "interrupted")
    steps = [e for e in events if isinstance(e, StepEvent)]
    peak = max(step.num_running for step in steps)
    assert peak > 2
    steps = [step for step in steps if 2 * step.num_running >= peak]
    assert (a["window_start_ns"], a["window_end_ns"]) == (steps[0].t_start_ns, steps[-1].t_done_ns)


def test_every_file_says_which_schema_it_has(tmp_path: Path) -> None:
    run_dir = record(tmp_path / "run", events_of(make_engine(), specs(3)))
    write_tables(run_dir)
    for name in SCHEMAS:
        metadata = pl.read_parquet_metadata(run_dir / f"{name}.parquet")
        assert metadata["kvtop.schema_version"] == "3"
        assert metadata["kvtop.run_id"] == read_manifest(run_dir)["run_id"]


def test_row_groups_are_cut_by_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the rows arrived: many small additions give the bytes of one large one."""
    monkeypatch.setattr("kvtop.results.builder.CHUNK_ROWS", 10)
    rows = [("r", i, *[0] * (len(STEPS) - 5), None, None, 0) for i in range(95)]
    for name, size in (("a", 1), ("b", 95)):
        (tmp_path / name).mkdir()
        with TableBuilder("steps", tmp_path / name) as builder:
            for start in range(0, 95, size):
                builder.add(rows[start : start + size])
            builder.write("r")
        assert [path.name for path in (tmp_path / name).iterdir()] == ["steps.parquet"]
    assert (tmp_path / "a/steps.parquet").read_bytes() == (tmp_path / "b/steps.parquet").read_bytes()


def test_a_full_disk_leaves_the_old_file_and_no_temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = record(tmp_path / "run", events_of(make_engine(), specs(3)))
    write_tables(run_dir)
    before = {path.name: path.read_bytes() for path in run_dir.iterdir()}

    def full(self: pl.LazyFrame, file: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pl.LazyFrame, "sink_parquet", full)
    with pytest.raises(FileError, match=r"requests\.parquet: cannot write: no space left on the device"):
        write_tables(run_dir)
    assert {path.name: path.read_bytes() for path in run_dir.iterdir()} == before


def test_a_recording_without_a_run_is_told(tmp_path: Path) -> None:
    run_dir = record(tmp_path / "run", [])
    (run_dir / "run.json").unlink()
    (run_dir / "frames.msgpack.zst").write_bytes(b"")
    with pytest.raises(KvtopError, match="holds no run"):
        write_tables(run_dir)


SERVE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from result_runs import events_of, make_engine, record, specs
from kvtop.results.tables import write_tables
run_dir = Path(sys.argv[1])
write_tables(record(run_dir, events_of(make_engine(num_blocks=9), specs(40))))
"""


def test_the_same_run_twice_gives_the_same_bytes_whatever_the_hash_seed(tmp_path: Path) -> None:
    for seed in ("0", "12345"):
        done = subprocess.run(
            [sys.executable, "-c", SERVE, str(tmp_path / seed), str(Path(__file__).parent)],
            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin", "POLARS_MAX_THREADS": "1" if seed == "0" else "2"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
    for name in (*(f"{table}.parquet" for table in SCHEMAS),):
        a, b = ((tmp_path / seed / name).read_bytes() for seed in ("0", "12345"))
        assert a == b, name
        assert len(a) > 1000


def test_a_request_that_ends_without_a_token_is_empty(tmp_path: Path) -> None:
    arrived = RequestEvent(
        phase="arrived", t_ns=0, request_id="a", prompt_tokens=1, requested_output_tokens=1, t_sched_ns=0, t_submit_ns=0
    )
    import msgspec

    ended = msgspec.structs.replace(arrived, phase="finished", finish_reason="capacity", t_done_ns=5)
    row = tables(record(tmp_path / "run", [arrived, ended]))["requests"].row(0, named=True)
    assert (row["status"], row["output_tokens"], row["ttft_ns"], row["e2e_ns"]) == ("empty", 0, None, 5)


def test_open_run_scans_lazily(tmp_path: Path) -> None:
    run = open_run(record(tmp_path / "run", events_of(make_engine(), specs(3))))
    assert run.requests.collect().height == 3
    assert run.manifest["status"] == "complete"
    assert run.frames_path is not None
