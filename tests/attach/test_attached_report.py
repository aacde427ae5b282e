"""`kvtop report` of a recording of attached servers, against the recording's own description and counting by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from attach_helpers import SERVER, folded, gauge, histogram, removed, sample, silence, stored
from attach_tui import recorded
from test_attached_sums import OTHER, TTFT, engine
from test_kv_tracker import batch

from kvtop.attach.kv_tracker import KvTracker
from kvtop.attach.recorder import Recorder
from kvtop.cli.main import main
from kvtop.engine.errors import UsageError
from kvtop.engine.events import Event, RunEnded, RunStarted
from kvtop.report import observed
from kvtop.report.observed import Observed, observe
from kvtop.report.observed_figures import MAX_DRAWN, observed_figures
from kvtop.state.attached_numbers import read_number
from kvtop.state.attached_reading import NO_KV
from kvtop.tui.feed import time_of

NS = 1_000_000_000
LIMIT_S = 100.0


def recording(path: Path, events: list[Event], *, end: bool = True, **manifest: object) -> Path:
    """``events`` as ``kvtop attach --record`` writes them."""
    known: dict[str, Any] = {
        "run_id": "x", "executor": "attached", "clock": "real", "workload": SERVER, "servers": [SERVER],
        "kv_events": [], "interval_ns": NS, **manifest,
    }  # fmt: skip
    recorder = Recorder(path, known)
    last = [RunEnded(t_ns=max(time_of(event) for event in events), status="complete")] if end else []
    recorder.write([RunStarted(run_id="x", manifest=known), *events, *last], {})
    assert recorder.close(LIMIT_S) == ""
    return path


def page_of(run: Path) -> str:
    html = run.parent / "page.html"
    assert main(["report", str(run), "--html", str(html)]) == 0
    return html.read_text(encoding="utf-8")


def text_of(page: str) -> str:
    """What a reader sees, without plots and scripts; cells parted by |."""
    page = re.sub(r"<(script|style|svg).*?</\1>", " ", page, flags=re.S)
    page = re.sub(r"</t[hd]>", "|", page)
    return " ".join(re.sub(r"<[^>]+>", " ", page).replace("&lt;", "<").replace("&gt;", ">").split())


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'id="comparisons">(.*?)</script>', page, re.S)
    assert found is not None
    (data,) = json.loads(found[1])
    return data


def plots(found: Observed) -> dict[str, bool]:
    return {figure.key: figure.spec is not None for figure in observed_figures(found)}


def test_the_recorded_server_is_reported_with_its_facts(tmp_path: Path) -> None:
    page = page_of(recording(tmp_path / "run", recorded(200), kv_events=["tcp://a:1"]))
    text = text_of(page)
    for row in (
        "requests finished| 48| exact", "prompt tokens looked up| 12,112| exact",
        "prompt tokens found in the cache| 4,800| exact", "generated tokens| 1,335| exact", "preemptions| 0| exact",
        "prefix cache hit rate| 39.6 %| exact", "blocks removed from the cache| 146| events",
        "cached at the end| 103| events", "tcp://a:1 rank 0| 71| 0| 0| 103| whole",
    ):  # fmt: skip
        assert row in text, row
    assert re.search(r"TTFT\| 48\| 1-2.5 s\| 10-20 s\| 10-20 s\| bucket", text)
    assert page.count('<div class="plot"') == 8
    assert "simulated" not in text
    data = data_of(page)
    assert data["counted"]["finished"] == {"value": 48, "truth": "exact"}
    assert (data["evictions"], data["regretted_tokens"]) == (146, 0)


def test_without_kv_events_the_report_names_what_would_give_them(tmp_path: Path) -> None:
    looks: list[Event] = [sample(look, engine(0, look)) for look in range(1, 5)]
    run = recording(tmp_path / "run", looks)
    text = text_of(page_of(run))
    assert text.count(NO_KV) >= 3  # a finding, the figure, the table
    assert "cached at the end" not in text
    assert "evicted and wanted again|" not in text
    assert plots(observe(run)) == {
        "pool": True, "queue": True, "tokens": True, "hits": True, "latency-ttft": True, "latency-itl": False,
        "latency-queue": False, "evictions": False,
    }  # fmt: skip
    assert data_of(page_of(run))["evictions"] is None


def test_what_was_counted_before_the_first_look_is_not_in_it(tmp_path: Path) -> None:
    """The first look is where counting starts, and so is the first one after a restart."""
    looks: list[Event] = [sample(n, engine(0, look)) for n, look in enumerate((100, 101, 102, 1, 2), 1)]
    found = observe(recording(tmp_path / "run", looks))
    assert found.totals.sums("generation_tokens", "preemptions") == [30, 3]
    assert found.totals.num_restarts == 1
    assert found.totals.truth("exact", found.attached, "preemptions").startswith("partial: not what was counted")
    assert "1 restart of engines" in text_of(page_of(found.path))


def test_a_figure_of_a_part_says_of_which(tmp_path: Path) -> None:
    looks: list[Event] = [sample(look, engine(0, look) + engine(1, look, leave_out=("hits",))) for look in (1, 2)]
    looks.append(silence(3, "unreachable: connection refused", t_s=3, server=OTHER))
    found = observe(recording(tmp_path / "run", looks, servers=[SERVER, OTHER]))
    assert found.totals.truth("exact", found.attached, "hit_tokens") == "partial: 1 of 2 servers, 1 of 2 engines"
    assert found.totals.truth("exact", found.attached, "preemptions") == "partial: 1 of 2 servers"
    assert found.totals.sums("hit_tokens", "query_tokens") is None  # not of the same engines
    text = text_of(page_of(found.path))
    assert f"{OTHER} never answered: unreachable: connection refused: it is in no figure" in text
    assert "prefix cache hit rate|" not in text


def test_a_plot_of_a_part_is_marked_where_it_is_one(tmp_path: Path) -> None:
    """The second server is known from the fifth second on: until then a sum lacks it."""
    looks: list[Event] = [silence(1, "unreachable: connection refused", t_s=1, server=OTHER)]
    for look in range(1, 10):
        looks.append(sample(look, engine(0, look)))
        if look >= 5:
            looks.append(sample(look, engine(0, look), server=OTHER))
    found = observe(recording(tmp_path / "run", looks, servers=[SERVER, OTHER]))
    figures = {figure.key: figure for figure in observed_figures(found)}
    for key in ("queue", "tokens", "latency-ttft"):
        figure = figures[key]
        assert figure.spec is not None
        assert figure.title.endswith(" (partial)"), key
        assert "Shaded: partial, 1 of 2 servers" in figure.caption
        band = figure.spec["layer"][0]
        (start, end), *_ = [map(float, row.split(",")) for row in band["data"]["values"].splitlines()[1:]]
        assert (start, end) == (1 if key == "queue" else 2, 5 if key == "queue" else end)
    assert "partial" not in figures["evictions"].title
    page = page_of(found.path)
    assert "Running and waiting (partial)" in page
    assert page.count('<div class="plot"') == sum(figure.spec is not None for figure in figures.values())


def test_what_is_whole_is_not_marked(tmp_path: Path) -> None:
    found = observe(recording(tmp_path / "run", recorded(200), kv_events=["tcp://a:1"]))
    for figure in observed_figures(found):
        assert figure.spec is not None
        assert "partial" not in (figure.title + figure.caption).lower()
        assert "layer" not in figure.spec


def test_findings_name_every_stretch_in_which_lines_break(tmp_path: Path) -> None:
    """The recorded server's gauges stood still once, while it compiled."""
    text = text_of(page_of(recording(tmp_path / "run", recorded(200), kv_events=["tcp://a:1"])))
    assert "once the gauges of an engine stood still, and what it said was not trusted, for 4.1 s in all" in text
    looks: list[Event] = [sample(n, engine(0, n), t_s=t_s) for n, t_s in enumerate((1, 2, 3, 60, 61), 1)]
    assert "once kvtop did not look, for 57.0 s in all" in text_of(page_of(recording(tmp_path / "two", looks)))


def test_stretches_without_an_answer_are_listed_and_no_line_bridges_them(tmp_path: Path) -> None:
    looks: list[Event] = [sample(look, engine(0, look)) for look in range(1, 5)]
    looks += [silence(look, "slow: no answer in 5 s", t_s=look) for look in range(5, 12)]
    looks += [sample(look, engine(0, look)) for look in range(12, 15)]
    looks.append(sample(15, engine(0, 40), t_s=60))  # nobody looked in between
    found = observe(recording(tmp_path / "run", looks))
    assert [(s.start_s, s.end_s, s.who, s.why) for s in found.stretches] == [
        (5, 12, SERVER, "slow: no answer in 5 s"),
        (14, 60, "kvtop", "did not look (suspended, or too slow)"),
    ]
    drawn = {t: reading.value for t, reading in zip(found.times_s, found.series["queue.running"], strict=True)}
    shown = next(figure for figure in observed_figures(found) if figure.key == "queue")
    assert shown.spec is not None
    rows = dict(line.split(",") for line in shown.spec["data"]["values"].splitlines()[1:])
    assert (rows["4"], rows["8"], rows["14"], rows["15"], rows["60"]) == ("2", "", "2", "", "2")
    assert drawn[15.0] is None
    assert "slow: no answer in 5 s" in text_of(page_of(found.path))


def test_a_mean_is_over_the_time_in_which_somebody_answered(tmp_path: Path) -> None:
    looks: list[Event] = [sample(look, gauge("vllm:generation_tokens_total", 100 * look)) for look in range(1, 12)]
    looks += [silence(look, "unreachable: connection refused", t_s=look) for look in range(12, 32)]
    text = text_of(page_of(recording(tmp_path / "run", looks)))
    assert "generated tokens a second, mean| 100|" in text


def test_gaps_of_kv_events_and_regrets_are_told(tmp_path: Path) -> None:
    tracker, events = KvTracker(32), list[Event]()
    said = [(0, [stored(5, 6)]), (1, [removed(6, 5)]), (2, [stored(5, 6)]), (6, [removed(6)]), (7, [stored(9)])]
    for step, (seq, told) in enumerate(said, 1):
        tracker.take("tcp://a:1", seq, batch(*told), 0.0)
        events += tracker.drain(step, step * NS)
    found = observe(recording(tmp_path / "run", events, kv_events=["tcp://a:1"], servers=[]))
    assert found.regretted == [(3, 8)]
    assert found.evicted == [(2, 2), (4, 1)]
    (gap,) = found.stretches
    bars = next(figure for figure in observed_figures(found) if figure.key == "evictions")
    assert bars.title == "Evictions, and tokens wanted again (partial)"
    assert f"Partial: {gap.why}." in bars.caption
    assert (gap.start_s, gap.end_s, gap.who) == (4, None, "KV events of tcp://a:1 rank 0")
    text = text_of(page_of(found.path))
    assert "tokens evicted and wanted again| 8| partial" in text
    assert "blocks removed from the cache| 3| partial" in text
    assert "3 messages of KV events were lost" in text


def test_a_long_recording_is_thinned_and_says_so(tmp_path: Path) -> None:
    looks: list[Event] = [sample(look, gauge("vllm:num_requests_running", look % 7)) for look in range(1, 2001)]
    found = observe(recording(tmp_path / "run", looks))
    shown = next(figure for figure in observed_figures(found) if figure.key == "queue")
    assert shown.spec is not None
    assert len(shown.spec["data"]["values"].splitlines()) <= MAX_DRAWN + 1
    assert "Of 2,000 looks the last one of each 2.5 s is drawn." in shown.caption


def test_an_interrupted_recording_is_reported_as_far_as_it_goes(tmp_path: Path) -> None:
    looks: list[Event] = [sample(look, engine(0, look)) for look in (1, 2)]
    text = text_of(page_of(recording(tmp_path / "run", looks, end=False)))
    assert "the recording is interrupted" in text
    assert "generated tokens| 10| exact" in text


def test_a_server_that_never_answered_makes_a_report_of_that(tmp_path: Path) -> None:
    text = text_of(page_of(recording(tmp_path / "run", [silence(1, "HTTP 401: needs --api-key", t_s=1)])))
    assert f"{SERVER} never answered: HTTP 401: needs --api-key" in text
    assert "No server reported a counter twice." in text


def test_figures_of_a_report_are_rounded_and_have_a_name_that_says_what_they_count(tmp_path: Path) -> None:
    """One of 18 looks found one request waiting; 12,345 tokens a second; a look that failed lasts no time."""
    looks: list[Event] = [
        sample(
            look,
            gauge("vllm:num_requests_waiting", int(look == 5)) + gauge("vllm:generation_tokens_total", 12_345 * look),
        )
        for look in range(1, 19)
    ]
    looks.append(silence(19, "slow: no answer in 5 s", t_s=20.9))
    text = text_of(page_of(recording(tmp_path / "run", looks)))
    assert "requests waiting| 18| 0| 0.06| 1| exact" in text
    assert "generated tokens a second, mean| 12,345| exact" in text
    assert "once a server did not answer: see When" in text
    assert "0.0 s" not in text
    never = text_of(
        page_of(recording(tmp_path / "never", [silence(1, "HTTP 401", t_s=1), silence(2, "HTTP 401", t_s=9)]))
    )
    assert f"{SERVER} never answered: HTTP 401" in never
    assert "a server did not answer" not in never  # the same again


def test_a_recording_of_events_alone_says_so(tmp_path: Path) -> None:
    tracker = KvTracker(32)
    tracker.take("tcp://a:1", 0, batch(stored(5, 6)), 0.0)
    events = tracker.drain(1, NS)
    text = text_of(page_of(recording(tmp_path / "run", list(events), kv_events=["tcp://a:1"], servers=[])))
    assert "A recording of 1.0 s: KV events of 1 rank." in text
    looks: list[Event] = [sample(look, engine(0, look)) for look in (1, 2)]
    text = text_of(page_of(recording(tmp_path / "both", [*looks, *tracker.drain(3, 3 * NS)], kv_events=["tcp://a:1"])))
    assert re.search(r"A recording of [23].0 s: 2 looks at 1 engine", text)


def test_engines_with_other_buckets_have_no_percentiles_together(tmp_path: Path) -> None:
    def both(look: int, second: str) -> str:
        first = histogram(TTFT, {"1": 20 * look, "+Inf": 20 * look}, engine="0")
        return first + histogram(TTFT, {second: 20 * look, "+Inf": 20 * look}, engine="1")

    same = observe(recording(tmp_path / "same", [sample(look, both(look, "1")) for look in (1, 2)]))
    known = same.totals.histograms["ttft"]
    assert known is not None
    assert known.counts == [40, 40]
    other = observe(recording(tmp_path / "other", [sample(look, both(look, "2")) for look in (1, 2)]))
    assert other.totals.histograms["ttft"] is None
    assert "TTFT|" not in text_of(page_of(other.path))


def test_what_a_server_counts_for_all_its_engines_is_whole(tmp_path: Path) -> None:
    """A metric without the label of an engine, beside two engines."""
    looks: list[Event] = [
        sample(look, engine(0, look) + engine(1, look) + gauge("vllm:request_success_total", 3 * look))
        for look in (1, 2)
    ]
    found = observe(recording(tmp_path / "run", looks))
    assert len(found.totals.engines) == 2
    assert found.totals.sums("finished") == [3]
    assert found.totals.truth("exact", found.attached, "finished") == "exact"


def test_stretches_are_in_order_of_their_start_and_end_where_the_reason_does(tmp_path: Path) -> None:
    looks: list[Event] = [sample(1, engine(0, 1)), silence(2, "HTTP 401", t_s=2, server=OTHER)]
    looks += [silence(3, "HTTP 500", t_s=3), silence(4, "HTTP 503", t_s=4), sample(5, engine(0, 2))]
    found = observe(recording(tmp_path / "run", looks, servers=[SERVER, OTHER]))
    assert [(each.start_s, each.end_s, each.who, each.why) for each in found.stretches] == [
        (2, None, OTHER, "HTTP 401"),
        (3, 4, SERVER, "HTTP 500"),
        (4, 5, SERVER, "HTTP 503"),
    ]
    assert found.answered_s == (1, 5)


def test_what_is_missing_is_told_as_of_the_last_good_answer(tmp_path: Path) -> None:
    looks: list[Event] = [sample(look, engine(0, look)) for look in (1, 2, 3)]
    looks += [silence(look, "slow: no answer in 5 s", t_s=look) for look in range(4, 20)]
    found = observe(recording(tmp_path / "run", looks))
    reasons = {reading.missing for _, reading in found.missing()}
    assert reasons
    assert not any("stale" in reason for reason in reasons)
    assert found.end_s == 19


def test_news_are_counted_further_than_they_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed, "MOST_NEWS", 3)
    looks: list[Event] = [silence(look, f"HTTP {500 + look}", t_s=look) for look in range(1, 8)]
    found = observe(recording(tmp_path / "run", looks))
    assert (len(found.news), found.num_news) == (3, 7)
    assert "4 more are not shown." in text_of(page_of(found.path))


def test_a_recording_without_a_start_cannot_be_reported(tmp_path: Path) -> None:
    Recorder(tmp_path / "run", {"run_id": "x", "executor": "attached"}).close(LIMIT_S)
    with pytest.raises(UsageError, match="breaks off before its first look"):
        observe(tmp_path / "run")


def test_the_last_figures_are_those_of_the_screen(tmp_path: Path) -> None:
    events = recorded(60)
    found, state = observe(recording(tmp_path / "run", events)), folded(events)
    for name in ("pool.used_share", "queue.running", "cache.recent_hit_rate", "latency.ttft_p50_ns"):
        assert found.series[name][-1] == read_number(state, name)


def test_recordings_stand_beside_runs_and_the_same_one_makes_the_same_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording(tmp_path / "runs" / "monday", recorded(20))
    words = ["bench", "-w", "chat", "-p", "fcfs", "--executor", "null", "--limit", "4", "-o", str(tmp_path / "runs")]
    assert main(words) == 0
    first = page_of(tmp_path / "runs")
    assert "Workload chat" in first
    assert f"Attached servers: {SERVER}" in first
    assert first == page_of(tmp_path / "runs")
    assert main(["report", str(tmp_path / "runs" / "monday"), "--svg", str(tmp_path / "plots")]) == 0
    assert len(list((tmp_path / "plots").glob("*.svg"))) >= 5
