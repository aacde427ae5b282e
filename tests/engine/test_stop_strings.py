"""Stop strings in the engine: where an answer ends, what is shown of it, and that its tokens are what they were."""

from __future__ import annotations

from typing import Any

import pytest
from engine_helpers import STEP_NS, distinct, make_engine, request_rows, serve, submit

from kvtop.engine.api import Engine, FinishReason, InvalidRequest, NullExecutor, SamplingParams, StepOutput


class TextExecutor(NullExecutor):
    """Token 1000 + i is the i-th piece of an answer; branch b has every letter raised by b."""

    tokenizer = "bytes"
    vocab_size = 10**9

    def __init__(self, pieces: list[bytes], eos: tuple[int, ...] = ()) -> None:
        super().__init__(STEP_NS)
        self.pieces, self.eos_token_ids = pieces, eos

    def decode(self, ids: list[int]) -> str:
        return b"".join(self._piece(token - 1000) for token in ids).decode("utf-8", "replace")

    def _piece(self, token: int) -> bytes:
        branch, index = divmod(token, 100_000)
        return bytes(byte + branch for byte in self.pieces[index])


def text_engine(*pieces: bytes, eos: tuple[int, ...] = (), num_blocks: int = 16, **config: Any) -> Engine:
    return make_engine(num_blocks, 4, executor=TextExecutor([*pieces, *[b"."] * 50], eos), **config)


def shown(engine: Engine) -> dict[str, list[str]]:
    """Run until idle; the texts of every step, by sequence id."""
    texts: dict[str, list[str]] = {}
    while engine.has_requests:
        out: StepOutput = engine.step()
        engine.check()
        assert all(out.texts.values()), "an empty text was shown"
        for name, text in out.texts.items():
            texts.setdefault(name, []).append(text)
    return texts


def test_the_text_ends_before_the_stop_string_and_the_tokens_with_it() -> None:  # M5
    engine = text_engine(b"x", b"1ab", b"c2", b"never")
    submit(engine, distinct(5, 0), m=9, rid="a", stop=("abc",))
    assert shown(engine) == {"a": ["x", "1"]}
    view = engine.request("a")
    assert (view.text, view.finish_reason) == ("x1", FinishReason.STOP)
    assert view.output == (1000, 1001, 1002)
    assert view.computed_tokens == 5 + 2  # the last token is never stored, as ever
    assert serve(engine, [*distinct(5, 0), 1000, 1001, 9]).cached_tokens == 4


def test_tokens_are_those_the_engine_made_whatever_their_text_would_be_cut_into() -> None:
    """Fifteen tokens of one space each: a tokenizer that read the text again would find fewer."""
    engine = text_engine(*[b" "] * 15)
    submit(engine, distinct(5, 0), m=15, rid="a", stop=("x",))
    assert "".join(shown(engine)["a"]) == " " * 15
    assert request_rows(engine)["a"].output_tokens == 15


def test_what_was_held_back_is_shown_when_the_answer_ends_otherwise() -> None:
    engine = text_engine(b"x", b"ab")
    submit(engine, distinct(5, 0), m=2, rid="a", stop=("abc",))
    assert shown(engine) == {"a": ["x", "ab"]}
    assert engine.request("a").finish_reason is FinishReason.LENGTH


def test_the_first_token_is_timed_by_its_step_and_not_by_the_text_it_shows() -> None:
    """Two steps show nothing yet. So it would be with thoughts: there is one stream of tokens, and no other channel."""
    engine = text_engine(b"ab", b"a", b"x")
    submit(engine, distinct(5, 0), m=3, rid="a", stop=("abac",))
    assert [engine.step().texts for _ in range(3)] == [{}, {}, {"a": "abax"}]
    row = request_rows(engine)["a"]
    assert (row.t_first_token_ns, row.t_last_token_ns, row.output_tokens) == (STEP_NS, 3 * STEP_NS, 3)


def test_an_unfinished_character_is_one_replacement_when_the_answer_ends() -> None:  # M6
    whole = text_engine(b"\xf0\x9f\x98", b"\x80")
    submit(whole, distinct(5, 0), m=2, rid="a", stop=("stop",))
    assert shown(whole) == {"a": ["\U0001f600"]}
    cut = text_engine(b"\xf0\x9f\x98", b"\x80")
    submit(cut, distinct(5, 0), m=1, rid="a", stop=("stop",))
    assert shown(cut) == {"a": ["\ufffd"]}


def test_a_stop_string_counts_before_the_length_and_a_stop_token_is_no_text() -> None:  # M3
    engine = text_engine(b"x", b"yz", eos=(1001,))
    assert serve(engine, distinct(5, 0), m=2, stop=("z",)).finish_reason is FinishReason.STOP
    view = serve(engine, distinct(5, 1), m=9, stop=("never",), ignore_eos=False)
    assert (view.text, view.finish_reason, view.output) == ("x", FinishReason.STOP, (1000, 1001))


def test_the_end_token_as_the_last_one_asked_for_is_a_stop_and_below_min_tokens_it_is_none() -> None:  # M3
    engine = text_engine(eos=(1002,))
    assert serve(engine, distinct(5, 0), m=3, ignore_eos=False).finish_reason is FinishReason.STOP
    assert serve(engine, distinct(5, 1), m=2, ignore_eos=False).finish_reason is FinishReason.LENGTH
    view = serve(engine, distinct(5, 2), m=6, min_tokens=4, ignore_eos=False)
    assert (len(view.output), view.finish_reason) == (6, FinishReason.LENGTH)


def test_below_min_tokens_a_stop_string_is_plain_text() -> None:
    engine = text_engine(b"stop", b"1", b"stop", b"2")
    view = serve(engine, distinct(5, 0), m=9, min_tokens=2, stop=("stop",))
    assert (view.text, len(view.output)) == ("stop1", 3)


def test_stop_ids_beyond_the_vocabulary_stop_nothing() -> None:  # M4
    engine = text_engine()
    view = serve(engine, distinct(5, 0), m=3, stop_token_ids=(10**12, -7))
    assert (len(view.output), view.finish_reason) == (3, FinishReason.LENGTH)


def test_every_branch_has_a_text_of_its_own() -> None:
    engine = text_engine(b"a", b"b", b"c", b"d")
    submit(engine, distinct(5, 0), m=9, rid="a", n=2, stop=("cd",))
    assert shown(engine) == {"a": ["a", "b"], "a#1": ["b"]}
    assert (engine.request("a").text, engine.request("a#1").text) == ("ab", "b")
    assert {engine.request(name).finish_reason for name in ("a", "a#1")} == {FinishReason.STOP}


def test_a_fork_goes_on_with_the_text_so_far() -> None:
    engine = text_engine(b"x", b"a", b"b", b"c")
    submit(engine, distinct(5, 0), m=9, rid="a", stop=("abc",))
    engine.step()
    engine.step()
    (child,) = engine.fork("a", 2)  # it emits letters one above from now on: after "a" comes "c", then "d"
    texts = shown(engine)
    assert engine.request("a").text == "x"
    assert engine.request(child).text == "x" + "".join(texts[child])
    assert texts[child][0] == "ac"


def test_a_preempted_answer_is_shown_once() -> None:
    pieces = [bytes([65 + i]) for i in range(20)]
    roomy, tight = (text_engine(*pieces, num_blocks=n) for n in (16, 4))
    for engine in (roomy, tight):
        for name in ("a", "b"):
            submit(engine, distinct(4, ord(name)), m=8, rid=name, stop=("GX", "H"))
    assert shown(roomy) == shown(tight)
    assert tight.counters().preemptions
    assert tight.request("b").text == "ABCDEFG"


def test_nothing_is_shown_after_an_abort_and_the_view_has_all_of_the_output() -> None:
    engine = text_engine(b"x", b"ab")
    submit(engine, distinct(5, 0), m=9, rid="a", stop=("abc",))
    engine.step()
    engine.step()
    engine.abort("a")
    assert engine.step().texts == {}
    assert engine.request("a").text == "xab"


def test_others_get_no_text() -> None:
    engine = text_engine(b"x")
    submit(engine, distinct(5, 0), m=2, rid="a")
    assert shown(engine) == {}
    assert engine.request("a").text is None


@pytest.mark.parametrize("stop", ["abc", ("a", ""), (1,)])
def test_what_is_no_tuple_of_texts_is_refused(stop: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"stop is .* expected a tuple of texts, none of them empty"):
        SamplingParams(stop=stop)


def test_without_a_tokenizer_stop_strings_are_refused() -> None:
    engine = make_engine(8, 4)
    with pytest.raises(InvalidRequest, match="'a': stop strings need a tokenizer; use stop_token_ids"):
        submit(engine, distinct(5, 0), rid="a", stop=("x",))
    with pytest.raises(InvalidRequest, match="stop strings end no beam"):
        SamplingParams(num_beams=2, stop=("x",))
