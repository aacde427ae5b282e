"""`kvtop report` of a recording of kvtop's own server: what only it tells is in the page and in the JSON."""

from __future__ import annotations

from pathlib import Path

from own_server import moments
from test_attached_own import looks
from test_attached_report import data_of, page_of, plots, recording, text_of

from kvtop.report.observed import observe
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
