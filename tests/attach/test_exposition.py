"""The exposition parser against hand-written lines, against texts it did not write, and against rubbish."""

from __future__ import annotations

import math
import random

import pytest
from fake_server import recorded_metrics
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.attach.exposition import Exposition
from kvtop.attach.names import WANTED, understand


def parsed(text: str) -> list[tuple[str, dict[str, str], float]]:
    return [(one.name, one.labels, one.value) for one in Exposition().parse(text).series]


@pytest.mark.parametrize(
    ("line", "name", "labels", "value"),
    [
        ("up 1", "up", {}, 1.0),
        ('a:b_total{x="1"} 2.5e3', "a:b_total", {"x": "1"}, 2500.0),
        ('a{x="1",y="2",} 3', "a", {"x": "1", "y": "2"}, 3.0),
        ('a{ x = "1" , y="2" } 3', "a", {"x": "1", "y": "2"}, 3.0),
        ("a{} 4", "a", {}, 4.0),
        ('a{x="1"} 5 1700000000000', "a", {"x": "1"}, 5.0),
        ("a 5 1700000000000", "a", {}, 5.0),
        ('a_bucket{le="1"} 6 # {trace_id="} 9"} 0.67 1.2', "a_bucket", {"le": "1"}, 6.0),
        ('a{x="quote \\" back \\\\ line \\n end"} 7', "a", {"x": 'quote " back \\ line \n end'}, 7.0),
        ('a{x="brace } and # and , and = "} 8', "a", {"x": "brace } and # and , and = "}, 8.0),
        ('a{x="} 99 # {"} 8', "a", {"x": "} 99 # {"}, 8.0),
        ('a{x="日本 [/] \x1b]0;x\x07"} 9', "a", {"x": "日本 [/] \x1b]0;x\x07"}, 9.0),
        ('a\t{x="1"}\t10', "a", {"x": "1"}, 10.0),
        ('a{x="1"} +Inf', "a", {"x": "1"}, math.inf),
        ('a{x="1"} -inf', "a", {"x": "1"}, -math.inf),
        ('a{x="1"} 1e400', "a", {"x": "1"}, math.inf),
    ],
)
def test_a_line_is_read_as_it_was_meant(line: str, name: str, labels: dict[str, str], value: float) -> None:
    assert parsed(f"{line}\n") == [(name, labels, value)]


def test_nan_is_a_value_and_not_the_end_of_the_scrape() -> None:
    values = [value for _, _, value in parsed("a 1\nb NaN\nc 3\n")]
    assert (values[0], math.isnan(values[1]), values[2]) == (1.0, True, 3.0)


@pytest.mark.parametrize(
    "line", ["a", "a x", "a 1_0", "1a 2", 'a{x="1} 2', "a{x=1} 2", 'a{x="1"', "{} 1", 'a{="1"} 2', "a 1 2 3", "a 1 x"]
)
def test_what_is_no_sample_is_counted_and_does_not_end_the_reading(line: str) -> None:
    found = Exposition().parse(f"first 1\n{line}\nlast 2\n")
    assert [one.name for one in found.series] == ["first", "last"]
    assert (found.num_bad, found.bad) == (1, [line])


def test_comments_blank_lines_and_unwanted_names_are_passed_over() -> None:
    found = Exposition({"a"}).parse("# HELP a b\n# TYPE a gauge\n\na 1\nb 2\n# EOF\n")
    assert ([one.name for one in found.series], found.num_lines, found.num_bad) == (["a"], 2, 0)


def test_a_text_without_its_last_line_end_was_cut_off() -> None:
    assert not Exposition().parse("a 1\na_total 12").is_whole
    assert Exposition().parse("a 1\na_total 1234\n").is_whole


def test_a_text_read_twice_with_what_is_remembered_of_it_is_the_same() -> None:
    reader, texts = Exposition(WANTED), [text for _, text in recorded_metrics()[::20]]
    again = [reader.parse(text).series for text in (*texts, *texts)]
    assert again[: len(texts)] == again[len(texts) :] == [Exposition(WANTED).parse(text).series for text in texts]


_names = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,8}", fullmatch=True)
_labels = st.dictionaries(
    st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,6}", fullmatch=True), st.text(max_size=12), max_size=4
)
_values = st.floats(allow_nan=False)


@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(_names, _labels, _values, st.booleans()), max_size=6))
def test_whatever_is_written_by_the_rules_is_read_back(rows: list[tuple[str, dict[str, str], float, bool]]) -> None:
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

    lines = []
    for name, labels, value, has_time in rows:
        inside = ",".join(f'{key}="{escaped(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{inside}}} {value!r}{' 1700000000000' if has_time else ''}\n")
    assert parsed("".join(lines)) == [(name, labels, value) for name, labels, value, _ in rows]


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.sampled_from('ab{}="\\,# \n\t1.eNI+-\x00é'), max_size=80))
def test_no_text_makes_it_fail(text: str) -> None:
    understand(Exposition().parse(text).series)


def test_no_damage_to_a_real_text_makes_it_fail() -> None:
    chance = random.Random(7)
    text = recorded_metrics()[40][1]
    for _ in range(150):
        cut = list(text[: chance.randrange(2000, 6000)])
        for _ in range(30):
            cut[chance.randrange(len(cut))] = chance.choice('{}"\\\n ,=#x9\x00')
        understand(Exposition(WANTED).parse("".join(cut)).series)


def test_lines_are_read_far_faster_than_a_look_a_second_needs() -> None:
    """16 engines' lines in well under a tenth of a second: off the screen's thread, and short enough for it anyway."""
    import time

    one = recorded_metrics()[40][1]
    text = "".join(one.replace('engine="0"', f'engine="{n}"') for n in range(16))
    reader = Exposition(WANTED)
    reader.parse(text)
    began = time.thread_time()
    found = understand(reader.parse(text).series)
    assert len(found.engines) == 16
    assert time.thread_time() - began < 0.2
