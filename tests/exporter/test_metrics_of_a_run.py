"""What a whole run exports: read by Prometheus' own parser, and held to the tables that the run has written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx2
import msgspec
import polars as pl
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvtop.exporter.meter import Exporter, MeteredSession
from kvtop.exporter.server import MetricsServer
from kvtop.run.spec import RunSpec
from kvtop.state.model import RunState
from kvtop.state.reduce import reduce
from kvtop.workloads.spec import WorkloadSpec

VLLM = {
    "vllm:num_requests_running": "gauge", "vllm:num_requests_waiting": "gauge",
    "vllm:num_requests_waiting_by_reason": "gauge", "vllm:kv_cache_usage_perc": "gauge",
    "vllm:prefix_cache_queries": "counter", "vllm:prefix_cache_hits": "counter",
    "vllm:external_prefix_cache_hits": "counter", "vllm:prompt_tokens_cached": "counter",
    "vllm:num_preemptions": "counter", "vllm:prompt_tokens": "counter", "vllm:generation_tokens": "counter",
    "vllm:request_success": "counter", "vllm:admission_rejections": "counter",
    "vllm:request_prompt_tokens": "histogram", "vllm:request_generation_tokens": "histogram",
    "vllm:request_params_max_tokens": "histogram", "vllm:request_params_n": "histogram",
    "vllm:iteration_tokens_total": "histogram", "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram", "vllm:request_time_per_output_token_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram", "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_inference_time_seconds": "histogram", "vllm:request_prefill_time_seconds": "histogram",
    "vllm:request_decode_time_seconds": "histogram", "vllm:cache_config_info": "gauge",
}  # fmt: skip
"""Names and kinds as a vLLM 0.32 server gives them, those that kvtop has."""
TTFT_BOUNDS = [
    "0.001", "0.005", "0.01", "0.02", "0.04", "0.06", "0.08", "0.1", "0.25", "0.5", "0.75", "1.0", "2.5", "5.0", "7.5",
    "10.0", "20.0", "40.0", "80.0", "160.0", "640.0", "2560.0", "+Inf",
]  # fmt: skip
"""Of the same server."""


class Ran:
    """A run that is over: its directory, the state a screen would have, and what was exported."""

    def __init__(self, folder: Path) -> None:
        spec = RunSpec(
            workload=WorkloadSpec(name="poisson-shared-prefix", limit=60, time_scale=0.1),
            engine={"max_num_seqs": 24, "max_batched_tokens": 256},
            executor="null",
            executor_params={"step_time_ns": 12_000_000},
            num_blocks=120,
            run_dir=str(folder / "run"),
        )
        self.exporter, self.state = Exporter(), RunState()
        session = MeteredSession(spec, self.exporter)
        session.start()
        while not session.ended:
            for event in session.poll(0.5):
                reduce(self.state, event)
        assert self.state.status == "complete", self.state.error
        self.text = self.exporter.render()
        self.requests = pl.read_parquet(folder / "run" / "requests.parquet")
        self.steps = pl.read_parquet(folder / "run" / "steps.parquet")
        self.families = {family.name: family for family in text_string_to_metric_families(self.text)}

    def value(self, name: str, **labels: str) -> float:
        """The one sample of this name that has these labels."""
        found = [
            sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert len(found) == 1, (name, labels, found)
        return found[0]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(tmp_path_factory.mktemp("exported"))


def test_names_and_kinds_are_vllms(ran: Ran) -> None:
    ours = {name: family.type for name, family in ran.families.items() if name.startswith("vllm:")}
    assert ours == VLLM
    buckets = [s.labels["le"] for s in ran.families["vllm:time_to_first_token_seconds"].samples if "le" in s.labels]
    assert buckets == TTFT_BOUNDS


def test_every_sample_is_labelled_and_told_to_be_simulated(ran: Ran) -> None:
    samples = [s for family in ran.families.values() for s in family.samples if s.name != "process_start_time_seconds"]
    assert len(samples) > 100
    assert all(s.labels["simulated"] == "true" and s.labels["engine"] == "0" for s in samples)
    assert {s.labels["model_name"] for s in samples} == {"none"}


def test_the_run_preempted_and_evicted_and_shared(ran: Ran) -> None:
    """Else the comparisons below compare zeros."""
    assert ran.requests["num_preemptions"].sum() > 0
    assert ran.steps["evictions"].sum() > 0
    assert ran.requests["hit_tokens"].sum() > 0


def test_counters_are_those_of_the_tables(ran: Ran) -> None:
    requests, steps = ran.requests, ran.steps
    assert ran.value("vllm:prefix_cache_queries_total") == requests["prompt_tokens"].sum()
    assert ran.value("vllm:prefix_cache_hits_total") == requests["hit_tokens"].sum()
    assert ran.value("vllm:prompt_tokens_total") == requests["prompt_tokens"].sum()
    assert ran.value("vllm:generation_tokens_total") == requests["output_tokens"].sum()
    assert ran.value("vllm:num_preemptions_total") == requests["num_preemptions"].sum()
    assert ran.value("vllm:request_success_total", finished_reason="length") == requests.height
    evicted = [ran.value("kvtop_evictions_total", cause=cause) for cause in ("prefill", "decode")]
    assert ran.value("kvtop_evictions_total", cause="forced") == 0  # told from the start: else the first jump is lost
    assert sum(evicted) == steps["evictions"].sum()
    assert ran.value("kvtop_recomputed_tokens_total") == requests["recomputed_tokens"].sum()
    assert ran.value("kvtop_block_copies_total") == steps["copies"].sum()


@pytest.mark.parametrize(
    ("metric", "expression"),
    [
        ("vllm:time_to_first_token_seconds", pl.col("t_first_token_ns") - pl.col("t_sched_ns")),
        ("vllm:e2e_request_latency_seconds", pl.col("t_done_ns") - pl.col("t_sched_ns")),
        ("vllm:request_queue_time_seconds", pl.col("t_first_sched_ns") - pl.col("t_submit_ns")),
        ("vllm:request_time_per_output_token_seconds", pl.col("tpot_ns")),
    ],
)
def test_histograms_are_those_of_the_tables(ran: Ran, metric: str, expression: pl.Expr) -> None:
    values: list[int] = ran.requests.select(expression.alias("ns"))["ns"].drop_nulls().to_list()
    assert ran.value(f"{metric}_count") == len(values)
    assert ran.value(f"{metric}_sum") == pytest.approx(sum(values) / 1e9, abs=1e-6)
    for sample in ran.families[metric].samples:
        if "le" in sample.labels:
            assert sample.value == sum(ns / 1e9 <= float(sample.labels["le"]) for ns in values), sample


def test_gaps_add_up_to_what_lies_between_first_and_last_tokens(ran: Ran) -> None:
    """Each of the n branches has its tokens minus one gaps."""
    gaps = (ran.requests["output_tokens"] - ran.requests["n"]).sum()
    assert ran.value("vllm:inter_token_latency_seconds_count") == gaps


def test_blocks_are_those_of_the_state_and_all_are_back(ran: Ran) -> None:
    states = ("fresh", "idle", "used", "in_transfer", "withheld")
    found = {state: ran.value("kvtop_blocks", state=state) for state in states}
    assert ran.state.pool is not None
    assert list(found.values()) == ran.state.pool.counts
    assert (found["used"], sum(found.values())) == (0, 120)
    assert ran.value("vllm:kv_cache_usage_perc") == 0
    assert ran.value("vllm:num_requests_running") == ran.value("vllm:num_requests_waiting") == 0


def test_labels_are_escaped(ran: Ran) -> None:
    exporter = Exporter()
    meter = exporter.open()
    meter.state.manifest = {"model": 'a "b"\\c\nd', "num_blocks": 4}
    families = {f.name: f for f in text_string_to_metric_families(exporter.render())}
    assert families["vllm:num_requests_running"].samples[0].labels["model_name"] == 'a "b"\\c\nd'


def test_runs_under_way_have_numbers_of_their_own_and_give_them_back() -> None:
    exporter = Exporter()
    first, second = exporter.open(), exporter.open()
    assert (first.engine, second.engine) == ("0", "1")
    exporter.ended(first)
    third = exporter.open()
    assert third.engine == "0"
    for meter in (second, third):
        meter.state.manifest = {"model": "m", "num_blocks": 1}
    families = {f.name: f for f in text_string_to_metric_families(exporter.render())}
    assert [s.labels["engine"] for s in families["vllm:num_requests_running"].samples] == ["0", "1"]


def test_before_a_run_has_begun_nothing_is_reported_as_zero() -> None:
    exporter = Exporter()
    exporter.open()
    families = {f.name: f for f in text_string_to_metric_families(exporter.render())}
    assert sorted(families) == ["kvtop_run_info", "process_start_time_seconds"]  # who answers, for whoever attaches
    assert families["kvtop_run_info"].samples[0].labels["status"] == "starting"


@pytest.fixture
def server(ran: Ran) -> Iterator[MetricsServer]:
    served = MetricsServer(ran.exporter.render, "127.0.0.1", 0)
    yield served
    served.close()


def test_the_metrics_are_served(ran: Ran, server: MetricsServer) -> None:
    answer = httpx2.get(server.url)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.text == ran.text
    assert httpx2.get(server.url.replace("/metrics", "/other")).status_code == 404


def test_the_dashboard_asks_only_for_what_is_exported(ran: Ran) -> None:
    path = Path(__file__).parents[2] / "docs" / "grafana" / "kvtop.json"
    board = msgspec.json.decode(path.read_bytes())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    assert len(queries) > 10
    exported = {s.name for family in ran.families.values() for s in family.samples}
    asked = {name for query in queries for name in re.findall(r"\b(?:vllm:|kvtop_)[a-z0-9_]+", query)}
    assert asked - exported == set()
    assert len(asked) > 15
