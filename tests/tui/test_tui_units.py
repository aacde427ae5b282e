"""Small parts: text, numbers, charts, the grid."""

from __future__ import annotations

import random
import re
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from kvtop.analysis.stats import percentile
from kvtop.state.model import History, PoolState
from kvtop.state.samples import Samples
from kvtop.state.windows import recent_rate, summarise
from kvtop.tui.frame import Sharing
from kvtop.tui.glyphs import bar_chart, locale_is_utf8, to_ascii
from kvtop.tui.stats import levels, means, rates
from kvtop.tui.text import clean, clock, duration, fit, fit_ends, join_fitting, percent, seconds, short
from kvtop.tui.widgets.grid import lay_out
from kvtop.tui.widgets.lines import cut


@given(st.text(max_size=40), st.integers(0, 30))
def test_any_text_fits_exactly_and_cannot_steer_the_terminal(text, width):
    shown = clean(text)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufe0f\ufeff]", shown)
    assert cell_len(fit(shown, width)) == width
    assert cell_len(to_ascii(shown)) == len(to_ascii(shown))


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (None, "-"), (0, "0 ns"), (999, "999 ns"), (85_240, "85.2 µs"), (999_700, "1.00 ms"), (182_400_000, "182 ms"),
        (1_414_000_000, "1.41 s"), (99_949_000_000, "99.9 s"), (99_960_000_000, "1m40s"), (10_920_000_000_000, "3h02m"),
    ],
)  # fmt: skip
def test_durations_have_three_digits_and_their_unit(ns, shown):
    assert duration(ns) == shown


@given(st.integers(0, 10**14))
def test_no_duration_or_count_outgrows_its_column(ns):
    assert len(duration(ns)) <= 7
    assert len(short(ns)) <= 5
    assert len(seconds(min(ns, 10**13 * 3))) <= 6


def test_short_counts():
    assert [short(n) for n in (0, 999, 1000, 12_345, 123_456, 1_234_567)] == [
        "0",
        "999",
        "1.0k",
        "12.3k",
        "123k",
        "1.2M",
    ]


def test_run_time_reads_as_a_clock():
    assert clock(3_723_000_000_000) == "1:02:03"


def test_a_share_is_never_rounded_to_all_or_nothing():
    assert percent(0, 0) == "-"
    assert percent(0, 7) == "0.0 %"
    assert percent(1, 100_000) == "<0.1 %"
    assert percent(99_999, 100_000) == ">99.9 %"
    assert percent(7, 7) == "100 %"


def test_a_list_that_does_not_fit_says_how_many_are_left_out():
    assert join_fitting(["r1", "r2", "r3"], 20) == "r1 r2 r3"
    assert join_fitting(["r1", "r2", "r3", "r4"], 9) == "r1 r2 +2"


def test_charts_are_eighths_and_show_the_smallest_value():
    assert bar_chart([0, 1, 800, 400], 5) == ["  ▁█▄"]
    assert bar_chart([8, 16], 2, height=2) == [" █", "██"]
    assert bar_chart([5], 3, top=10) == ["  ▄"]
    assert bar_chart([], 3) == ["   "]


def test_a_bar_is_the_mean_of_its_second():
    samples = Samples()
    for t_s, value in ((1, 10), (1.5, 30), (3.2, 7)):
        samples.add(int(t_s * 1e9), value)
    assert means(samples.points, int(3.9e9), 4) == [0.0, 20.0, 0.0, 7.0]


def test_rates_add_up_and_levels_carry_on():
    history = History()
    for t_s, tokens in ((0.2, 99), (1.1, 5), (1.9, 6), (4.0, 1)):
        history.t_ns.append(int(t_s * 1e9))
        history.decode_tokens.append(tokens)
    assert rates(history, history.decode_tokens, int(4.5e9), 4) == [11, 0, 0, 1]
    assert levels(history, history.decode_tokens, int(4.5e9), 4) == [6, 6, 6, 1]
    assert levels(history, history.decode_tokens, int(4.5e9), 3) == [6, 6, 1]


def test_the_rate_of_a_window_without_a_step_is_zero_and_not_the_last_one():
    history = History()
    assert recent_rate(history, history.decode_tokens, int(9e9)) is None
    for t_s in (1.0, 2.0):
        history.t_ns.append(int(t_s * 1e9))
        history.decode_tokens.append(50)
    assert recent_rate(history, history.decode_tokens, int(4e9)) == 25
    assert recent_rate(history, history.decode_tokens, int(60e9)) == 0
    assert rates(history, history.decode_tokens, int(60e9), 5) == [0] * 5


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4)), max_size=40))
def test_a_summary_of_counted_samples_is_that_of_each_by_itself(points):
    samples = Samples()
    for value, count in points:
        samples.add(1, value, count)
    values = sorted(value for value, count in points for _ in range(count))
    found = summarise(samples)
    assert found.n == len(values)
    assert found.peak == (values[-1] if values else None)
    for q, got in ((50, found.p50), (99, found.p99)):
        expected = percentile(values, q)
        assert got == (None if expected is None else pytest.approx(expected))


def test_a_summary_interpolates():
    samples = Samples()
    for i in range(1, 101):
        samples.add(i, i)
    found = summarise(samples)
    assert (found.n, found.p50, found.p99) == (100, 50.5, pytest.approx(99.01))


@given(st.integers(0, 200_000), st.integers(1, 200), st.integers(1, 60))
def test_the_grid_shows_every_block(num_blocks, width, height):
    grid = lay_out(num_blocks, width, height)
    assert grid.num_rows <= height
    assert grid.num_rows * grid.blocks_a_row >= num_blocks
    assert grid.gutter + grid.columns * grid.pitch <= width
    assert grid.density == 1 or lay_out(num_blocks, width, height, 1).num_rows > height


def test_shared_blocks_are_counted_from_the_dirty_ones_alone():
    pool = PoolState.empty(50, 16)
    sharing, rng = Sharing(), random.Random(1)
    for _ in range(30):
        pool.dirty.clear()
        for _ in range(5):
            block = rng.randrange(50)
            pool.refcount[block] = rng.randrange(5)
            pool.dirty.add(block)
        sharing.update(pool)
        assert sharing.num_shared == sum(1 for n in pool.refcount if n > 1)
        assert sharing.saved == sum(n - 1 for n in pool.refcount if n > 1)
    other = PoolState.empty(4, 16)
    other.refcount = array("q", [3, 0, 2, 1])
    sharing.update(other)
    assert (sharing.num_shared, sharing.saved) == (2, 3)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"LC_ALL": "C", "LANG": "en_US.UTF-8"}, False),
        ({"LANG": "en_US.UTF-8"}, True),
        ({"LC_CTYPE": "C.utf8"}, True),
        ({"LANG": "de_DE.ISO-8859-1"}, False),
        ({"LANG": "xx.nonsense"}, False),
        ({}, False),
    ],
)
def test_the_locale_decides_about_glyphs(monkeypatch, environment, expected):
    for key in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(key, raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    assert locale_is_utf8() is expected


def test_the_last_word_of_a_name_that_is_too_long_stays():
    assert fit_ends("queue time p50", 14) == "queue time p50"
    assert fit_ends("queue time p95", 11) == "queue… p95 "
    assert fit_ends("prefix hits, last minute", 14) == "prefix… minute"
    assert fit_ends("runway", 4) == "run…"
    assert [len(fit_ends("queue time p50", width)) for width in range(20)] == list(range(20))


def test_a_line_ends_in_an_ellipsis_where_more_than_blanks_is_lost():
    assert cut([("ab", "x"), ("cd    ", "y")], 4) == [("ab", "x"), ("cd", "y")]
    assert cut([("ab", "x"), ("  ", ""), (" ", "y")], 2) == [("ab", "x")]
    assert cut([("ab", "x"), ("cd   e", "y")], 4) == [("ab", "x"), ("c…", "y")]
    assert cut([("ab", "x"), ("  ", ""), ("e", "y")], 3) == [("ab", "x"), ("…", "")]
