"""A WORKLOAD argument resolves to the same requests every time, and its hash names exactly them."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvtop.engine.errors import KvtopError, UnknownName, WorkloadError
from kvtop.workloads.builtins import AZURE_CONV_SLICE, DATA, MOONCAKE_SLICE
from kvtop.workloads.load import Workload, builtin_workloads, load_workload
from kvtop.workloads.spec import WorkloadSpec

NAMES = list(builtin_workloads())


def load(name: str = "mooncake-conversation", vocab_size: int = 49_152, max_model_len: int | None = None, **changes):
    return load_workload(WorkloadSpec(name=name, **changes), vocab_size=vocab_size, max_model_len=max_model_len)


def everything(workload: Workload) -> list:
    """All requests in order, as if each ended as soon as it was due."""
    source, specs = workload.source(), []
    while (due := source.next_due()) is not None:
        batch = source.pop_due(due)
        specs += batch
        for spec in batch:
            source.on_finished(spec.request_id or "", due)
    assert source.exhausted
    return sorted(specs, key=lambda spec: int((spec.request_id or "")[1:]))


@pytest.mark.parametrize("name", NAMES)
def test_every_builtin_loads_and_serves_its_recorded_lengths(name: str):
    workload = load(name, length_scale=0.125, limit=50)
    specs = everything(workload)
    assert len(specs) == workload.num_requests == min(50, load(name).num_requests)
    for spec, row in zip(specs, workload.rows, strict=True):
        assert len(spec.prompt) == row.prompt_tokens
        assert spec.params.max_tokens == row.output_tokens
        assert spec.params.ignore_eos
        assert spec.params.stop == ()
        assert spec.arrival_ns == row.arrival_ns
    assert specs[0].arrival_ns == 0
    assert len({spec.request_id for spec in specs}) == len(specs)


def test_the_default_workload_is_made_for_a_small_cpu():
    workload = load("default")
    mean = sum(r.prompt_tokens for r in workload.rows) / workload.num_requests
    assert 200 < mean < 600
    assert 0.2 < workload.num_requests / (workload.span_ns / 1e9) < 0.6


def test_a_users_scales_multiply_those_of_a_builtin():
    rows = load("default").rows
    halved = load("default", length_scale=0.5, time_scale=0.5).rows
    assert [r.arrival_ns for r in halved] == [round(r.arrival_ns / 2) for r in rows]
    assert {r.hash_block_tokens for r in rows} == {16}
    assert {r.hash_block_tokens for r in halved} == {8}


def test_sharing_only_keeps_the_rows_of_conversations_that_go_on():
    whole = load("mooncake-conversation", length_scale=1 / 32)
    kept = load("default")
    start = next(r.arrival_ns for r in whole.rows if r.hash_ids == kept.rows[0].hash_ids)
    assert kept.num_requests == 378  # counted by a script of its own from the published file
    assert kept.notices[0] == "378 of 1,000 requests are served: those that share a prefix with another"
    by_ids = {(3 * (r.arrival_ns - start), r.hash_ids): r for r in whole.rows}  # gaps x 3
    for row in kept.rows:
        assert by_ids[(row.arrival_ns, row.hash_ids)].output_tokens == row.output_tokens
        assert sum(not set(row.hash_ids[1:]).isdisjoint(other.hash_ids) for other in whole.rows) >= 2


def test_a_source_is_an_absolute_schedule_and_may_be_made_again():
    workload = load(limit=60, length_scale=0.0625)
    source = workload.source()
    seen = []
    while not source.exhausted:
        due = source.next_due()
        assert due is not None
        assert source.pop_due(due - 1) == []
        batch = source.pop_due(due)
        assert {spec.arrival_ns for spec in batch} == {due}
        seen += batch
        source.on_finished(batch[0].request_id or "", due)
    assert source.next_due() is None
    assert source.pop_due(10**18) == []
    assert seen == everything(workload)


def test_a_late_engine_gets_every_request_with_its_own_scheduled_time():
    source = load("azure-conv", limit=20).source()
    assert [s.arrival_ns for s in source.pop_due(10**18)] == [r.arrival_ns for r in load("azure-conv", limit=20).rows]


def test_prompts_are_made_only_when_they_are_due():
    source = load().source()
    first = source.next_due()
    assert first == 0
    made: list[int] = []
    tokens = source._tokens  # type: ignore[attr-defined]
    real = tokens.packed_prompt
    tokens.packed_prompt = lambda row, index: made.append(index) or real(row, index)
    source.pop_due(0)
    assert made == list(range(10))  # the trace's first burst


def test_the_hash_is_of_what_is_served_and_can_be_recomputed():
    workload = load(limit=3, length_scale=0.0625, seed=5)
    lines = [json.dumps(["kvtop-workload-1", 5, 49_152], separators=(",", ":"))]
    for r in workload.rows:
        row = [r.arrival_ns, r.prompt_tokens, r.output_tokens, list(r.hash_ids), 32, 0, 1, 0.0, 0, "", "", "", 0, ""]
        lines.append(json.dumps(row, separators=(",", ":")))
    assert workload.hash == hashlib.sha256("".join(line + "\n" for line in lines).encode()).hexdigest()


def test_the_hash_changes_with_whatever_changes_the_requests():
    variants = [
        load(),
        load(seed=1),
        load(seed=2),
        load(limit=999),
        load(time_scale=0.5),
        load(length_scale=0.5),
        load(vocab_size=1000),
        load(too_long="clip", max_model_len=4096),
        load(too_long="truncate", max_model_len=4096),
        load("azure-conv"),
        load("poisson-shared-prefix"),
        load("poisson-shared-prefix", seed=1),
    ]
    assert len({w.hash for w in variants}) == len(variants)


def test_the_hash_ignores_what_does_not_change_the_requests(tmp_path: Path):
    plain = tmp_path / "other-name.jsonl"
    plain.write_bytes(gzip.decompress(MOONCAKE_SLICE.read_bytes()))
    want = load().hash
    assert load(str(plain)).hash == want
    assert load(str(plain), format="mooncake").hash == want
    assert load(limit=1000).hash == want
    assert load(max_model_len=4096).hash == want  # reject changes no request
    assert load(too_long="clip").hash == want
    assert load(too_long="clip", max_model_len=1_000_000).hash == want


@pytest.mark.parametrize("name", ["mooncake-conversation", "poisson-shared-prefix"])
def test_the_hash_is_the_same_in_another_process_and_hash_seed(name: str):
    code = (
        "from kvtop.workloads.load import load_workload; from kvtop.workloads.spec import WorkloadSpec;"
        f"print(load_workload(WorkloadSpec(name={name!r}, seed=3), vocab_size=777).hash)"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={"PYTHONHASHSEED": seed, "PATH": ""},
        ).stdout.strip()
        for seed in ("0", "1")
    }
    assert hashes == {load(name, vocab_size=777, seed=3).hash}


def test_trace_sha256_is_reported_for_traces_only():
    assert load().trace_sha256 == hashlib.sha256(MOONCAKE_SLICE.read_bytes()).hexdigest()
    assert load("poisson-shared-prefix").trace_sha256 is None


def test_listing_the_workloads_loads_neither_numpy_nor_torch():
    code = (
        "import sys; from kvtop.workloads.load import builtin_workloads; builtin_workloads();"
        "print([m for m in ('numpy', 'torch', 'polars', 'transformers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert out.strip() == "[]"


def test_the_readme_names_the_files_that_are_shipped():
    readme = (DATA / "README.md").read_text()
    for path in (MOONCAKE_SLICE, AZURE_CONV_SLICE):
        assert path.name in readme
        assert hashlib.sha256(path.read_bytes()).hexdigest() in readme
        assert hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest() in readme
    assert {p.name for p in DATA.iterdir()} == {MOONCAKE_SLICE.name, AZURE_CONV_SLICE.name, "README.md"}
    assert sum(p.stat().st_size for p in DATA.iterdir()) < 200_000


@pytest.mark.parametrize(
    ("name", "nearest"), [("mooncake-conversaton", "mooncake-conversation"), ("azure", "azure-conv"), ("", None)]
)
def test_an_unknown_workload_names_the_nearest_builtin(name: str, nearest: str | None):
    with pytest.raises(UnknownName) as caught:
        load(name)
    assert caught.value.nearest == nearest


@pytest.mark.parametrize(
    "name", ["no/such/trace.jsonl", "absent.toml", "absent.csv.gz", "/dir\0/x", "x" * 5000, "a\0b", "~nobody/x"]
)
def test_a_name_that_is_no_file_is_one_line(name: str):
    with pytest.raises(KvtopError) as caught:
        load(name)
    assert "\n" not in str(caught.value)
    assert "\0" not in str(caught.value)


def test_a_missing_file_named_like_a_builtin_points_to_it():
    with pytest.raises(WorkloadError, match="no such file; did you mean the built-in 'mooncake-conversation'"):
        load("traces/mooncake-conversation.jsonl")


def test_a_format_for_something_that_is_no_trace_file_is_refused():
    with pytest.raises(WorkloadError, match="built-in workload, not a trace file"):
        load("default", format="mooncake")
    with pytest.raises(UnknownName, match="did you mean 'azure'"):
        load("default", format="azur")
