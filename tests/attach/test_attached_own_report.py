"""`kvtop report` of a recording of kvtop's own server: what only it tells is in the page and in the JSON."""

from __future__ import annotations

from pathlib import Path

from attach_helpers import SERVER, gauge, removed, sample, stored
from own_server import moments
from test_attached_own import looks
from test_attached_report import data_of, page_of, plots, recording, text_of
from test_attached_sums import OTHER, engine
from test_kv_tracker import batch

from kvtop.attach.kv_tracker import KvTracker
from kvtop.engine.events import Event
from kvtop.report.figure import Figure
from kvtop.report.observed import observe
from kvtop.report.observed_figures import observed_figures
from kvtop.state.numbers import MISS_WORDS


def grown(name: str) -> int:
    first, last = (moment.numbers[name] for moment in moments())
    assert isinstance(first, int)
    assert isinstance(last, int)
    return last - first


def test_what_a_server_of_ours_counts_is_reported_from_the_first_look_on(tmp_path: Path) -> None:
    run = recording(tmp_path / "run", looks())
    page = page_of(run)
    text, data = text_of(page), data_of(page)
    for name, words in (
        ("cache.evictions", "blocks evicted"), ("cache.regretted_tokens", "tokens computed again after an eviction"),
        ("run.recomputed_tokens", "tokens computed again after a preemption"), ("run.copies", "blocks copied"),
    ):  # fmt: skip
        assert f"{words}| {grown(name):,}| exact" in text, words
    ends = {name: n for name, n in (moments()[1].lookup_ends - moments()[0].lookup_ends).items() if n}
    for reason, count in ends.items():
        assert f"prefix matches that ended: {MISS_WORDS[reason]}| {count}| exact" in text
    assert data["lookup_ends"] == ends
    assert (data["evictions"], data["regretted_tokens"]) == (grown("cache.evictions"), grown("cache.regretted_tokens"))
    for words in ("idle blocks| 2|", "fresh blocks| 2|", "shared blocks| 2|", "token fill| 2|"):
        assert words in text
    assert "blocks removed from the cache" not in text
    assert "evictions and what was wanted again are not reported" not in text
    assert f"counters, in 120 equal stretches: blocks evicted ({grown('cache.evictions'):,} in all" in text
    assert plots(observe(run))["evictions"]


def own(prefill: int, forced: int, regretted: int, n: int = 0) -> str:
    """What engine ``n`` of kvtop's own counts."""
    label = {"engine": str(n)}
    text = gauge("kvtop_evictions_total", prefill, **label, cause="prefill")
    text += gauge("kvtop_evictions_total", forced, **label, cause="forced")
    return text + gauge("kvtop_regretted_tokens_total", regretted, **label) + gauge("kvtop_run_info", 1)


def bars(run: Path) -> Figure:
    return next(figure for figure in observed_figures(observe(run)) if figure.key == "evictions")


def test_one_look_tells_nothing_of_the_time_of_the_recording(tmp_path: Path) -> None:
    page = page_of(recording(tmp_path / "run", looks()[1:]))
    assert "blocks removed from the cache" not in text_of(page)
    assert (data_of(page)["evictions"], data_of(page)["lookup_ends"]) == (None, None)


def test_why_matches_ended_is_null_of_servers_that_do_not_report_it(tmp_path: Path) -> None:
    other: list[Event] = [sample(look, engine(0, look)) for look in (1, 2)]
    assert data_of(page_of(recording(tmp_path / "other", other)))["lookup_ends"] is None
    idle: list[Event] = [sample(look, moments()[1].text) for look in (1, 2)]
    assert data_of(page_of(recording(tmp_path / "idle", idle)))["lookup_ends"] == {}


def test_evictions_are_told_by_what_the_room_was_for(tmp_path: Path) -> None:
    figure = bars(recording(tmp_path / "run", [sample(1, own(4, 0, 0)), sample(2, own(10, 4, 32))]))
    assert "blocks evicted (10 in all, by what the room was for: prefill 6, forced 4)" in figure.caption
    assert "tokens computed again because of it (32)" in figure.caption
    assert "partial" not in (figure.title + figure.caption).lower()


def test_tokens_wanted_again_are_told_where_nothing_more_was_evicted(tmp_path: Path) -> None:
    figure = bars(recording(tmp_path / "again", [sample(1, own(4, 0, 0)), sample(2, own(4, 0, 32))]))
    assert figure.spec is not None
    assert "blocks evicted (0 in all), and tokens computed again because of it (32)" in figure.caption
    nothing = bars(recording(tmp_path / "nothing", [sample(look, own(4, 0, 32)) for look in (1, 2)]))
    assert nothing.spec is None
    assert nothing.caption == "No block was removed from the cache while kvtop looked."


def test_what_is_counted_is_not_mixed_with_what_events_of_another_server_tell(tmp_path: Path) -> None:
    tracker, events = KvTracker(32), list[Event]()
    events += [sample(1, own(4, 0, 0), t_s=1), sample(2, engine(0, 1), t_s=1, server=OTHER)]
    for seq, told in enumerate(([stored(5, 6)], [removed(6, 5)], [stored(5, 6)])):
        tracker.take("tcp://a:1", seq, batch(*told), 0.0)
        events += tracker.drain(seq + 3, (seq + 2) * 1_000_000_000)
    events += [sample(6, own(9, 0, 16), t_s=5), sample(7, engine(0, 2), t_s=5, server=OTHER)]
    run = recording(tmp_path / "run", events, kv_events=["tcp://a:1"], servers=[SERVER, OTHER])
    found, figure = observe(run), bars(run)
    assert (found.evicted, found.regretted) == ([(3, 2)], [(4, 8)])
    assert found.counted == {"evictions": [(5, 5)], "regretted_tokens": [(5, 16)]}
    assert "blocks evicted (5 in all, by what the room was for: prefill 5)" in figure.caption
    assert "because of it (16)" in figure.caption
    assert figure.title.endswith(" (partial)")
    assert figure.caption.endswith("Partial: 1 of 2 engines.")


def test_evictions_that_one_engine_does_not_count_are_partial(tmp_path: Path) -> None:
    page = [own(4, 0, 0), own(9, 0, 16)]
    figure = bars(recording(tmp_path / "run", [sample(n, text + engine(1, n)) for n, text in enumerate(page, 1)]))
    assert figure.title.endswith(" (partial)")
    assert figure.caption.endswith("Partial: 1 of 2 engines.")
    idle = bars(recording(tmp_path / "idle", [sample(n, page[0] + engine(1, n)) for n in (1, 2)]))
    assert idle.caption == "No block was removed from the cache while kvtop looked. Partial: 1 of 2 engines."
