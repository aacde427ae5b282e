"""Text from tokens: whole characters, cut before a stop string, and nothing of one shown too early."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.engine.text import Detokenizer, TextStream


class ByteTokenizer:
    """Token i is the i-th piece of some bytes; bytes that are no character read as U+FFFD, as with byte-level BPE."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def decode(self, ids: list[int]) -> str:
        return b"".join(self.pieces[i] for i in ids).decode("utf-8", "replace")


def byte_fallback(ids: list[int]) -> str:
    """As tokenizers with byte tokens read them: one U+FFFD a byte wherever a run of them is not whole."""
    data = bytes(ids)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "\ufffd" * len(data)


def stream_of(pieces: list[bytes], stop: list[str]) -> TextStream:
    return TextStream(ByteTokenizer(pieces).decode, stop)


def run(pieces: list[bytes], stop: list[str], min_tokens: int = 0) -> tuple[list[str], TextStream]:
    """What is shown with each token, and at the end."""
    stream, shown = stream_of(pieces, stop), []
    for index in range(len(pieces)):
        shown.append(stream.push(index, may_stop=index + 1 >= min_tokens))
        if stream.stopped:
            return shown, stream
    return [*shown, stream.flush()], stream


def answer(text: str, stop: list[str], begin: int = 0) -> tuple[str, bool]:
    """The right answer, from the whole text: cut before the stop string that is complete first, behind ``begin``."""
    ends = [(end, end - len(s)) for s in stop for end in range(begin + 1, len(text) + 1) if text[:end].endswith(s)]
    return (text[: min(ends)[1]], True) if ends else (text, False)


@st.composite
def split_texts(draw: st.DrawFn) -> tuple[str, list[bytes], list[str]]:
    alphabet = st.sampled_from("aab\u00e9\u20ac\U0001f600")
    text = draw(st.text(alphabet, max_size=14))
    data = text.encode()
    cuts = sorted(draw(st.sets(st.integers(0, len(data)), max_size=12)) | {0, len(data)})
    stop = draw(st.lists(st.text(alphabet, min_size=1, max_size=4), min_size=1, max_size=3))
    return text, [data[a:b] for a, b in pairwise(cuts)], stop


@settings(max_examples=1500, deadline=None)
@given(split_texts())
def test_any_split_of_any_text_is_cut_where_the_whole_text_would_be(case: tuple[str, list[bytes], list[str]]) -> None:
    text, pieces, stop = case
    shown, stream = run(pieces, stop)
    assert ("".join(shown), stream.stopped) == answer(text, stop)
    assert stream.text == "".join(shown)


@settings(max_examples=500, deadline=None)
@given(split_texts(), st.integers(0, 6))
def test_below_min_tokens_no_stop_string_ends_the_answer(
    case: tuple[str, list[bytes], list[str]], min_tokens: int
) -> None:
    text, pieces, stop = case
    shown, stream = run(pieces, stop, min_tokens)
    before = b"".join(pieces[: max(0, min_tokens - 1)])
    if len(pieces) < min_tokens:
        assert "".join(shown) == text
        return
    begin = len(before.decode("utf-8", "ignore"))
    assert ("".join(shown), stream.stopped) == answer(text, stop, begin)


@settings(max_examples=500, deadline=None)
@given(split_texts())
def test_nothing_is_shown_that_a_longer_answer_would_take_back(case: tuple[str, list[bytes], list[str]]) -> None:
    text, pieces, stop = case
    shown, _ = run(pieces, stop)
    final = answer(text, stop)[0]
    for count in range(len(shown)):
        assert final.startswith("".join(shown[:count]))


def test_a_stop_string_over_two_tokens_is_cut_and_its_beginning_never_shown() -> None:  # M5
    shown, stream = run([b"12", b"ab", b"c3", b"4"], ["abc"])
    assert (shown, stream.stopped, stream.text) == (["12", "", ""], True, "12")


def test_what_only_looked_like_a_stop_string_is_shown_as_soon_as_it_is_none() -> None:
    shown, stream = run([b"x ab", b"d", b"ab"], ["abc"])
    assert (shown, stream.stopped) == (["x ", "abd", "", "ab"], False)


def test_bytes_of_one_character_give_nothing_and_then_the_character() -> None:  # M6
    assert run([b"\xf0\x9f\x98", b"\x80"], ["stop"])[0] == ["", "\U0001f600", ""]


@pytest.mark.parametrize("begun", [b"\xf0", b"\xf0\x9f", b"\xf0\x9f\x98", b"\xe2\x82"])
def test_an_unfinished_character_is_one_replacement_at_the_end(begun: bytes) -> None:  # M6
    assert run([b"ok", begun], ["stop"])[0] == ["ok", "", "\ufffd"]
    characters = Detokenizer(byte_fallback)
    assert [characters.push(byte) for byte in begun] == [""] * len(begun)
    assert characters.flush() == "\ufffd"


@given(st.text("a\u00e9\u20ac\U0001f600", max_size=12))
def test_one_token_a_byte_gives_every_character_when_it_is_whole(text: str) -> None:
    for decode in (byte_fallback, lambda ids: bytes(ids).decode("utf-8", "replace")):
        characters, shown = Detokenizer(decode), ""
        for letter in text:
            for byte in letter.encode():
                shown += characters.push(byte)
            assert shown.endswith(letter)
        assert shown + characters.flush() == text


def test_rubbish_is_shown_and_costs_no_more_with_time() -> None:
    sizes: list[int] = []

    def decode(ids: list[int]) -> str:
        sizes.append(len(ids))
        return "\ufffd" * len(ids)

    characters = Detokenizer(decode)
    shown = "".join(characters.push(0) for _ in range(1000))
    assert len(shown) > 900
    assert max(sizes) < 100


def test_tokens_without_text_are_passed_over() -> None:
    def decode(ids: list[int]) -> str:  # the first token loses its space, 0 is a special one
        return "".join(f" w{i}" for i in ids if i).removeprefix(" ")

    characters = Detokenizer(decode)
    assert [characters.push(token) for token in (0, 1, 0, 0, 2)] == ["", "w1", "", "", " w2"]


def test_a_copy_goes_on_by_itself() -> None:
    pieces = [b"x a", b"b", b"c", b"d"]
    stream = stream_of(pieces, ["abc"])
    assert stream.push(0) == "x "
    twin = stream.copy()
    assert (stream.push(1), stream.push(2), stream.stopped) == ("", "", True)
    assert (twin.push(3), twin.stopped, twin.text) == ("ad", False, "x ad")
