"""Stop strings and text over a real tokenizer: what is shown is the text of the tokens, cut before the stop string."""

from __future__ import annotations

import pytest

from kvtop.engine.api import Engine, EngineConfig, FinishReason, SamplingParams
from kvtop.engine.executors.torch_executor import TorchExecutor
from kvtop.engine.text import Detokenizer, TextStream

TEXT = "Naïve café – 漢字, 😀👩‍🚀 and\n\n  indented\ttext; 3.14 <|im_end|> ÿ\u0301."
"""Letters of one to four bytes, of which many need several tokens, and what looks like a special token."""


def ids_of(executor: TorchExecutor, text: str) -> list[int]:
    return list(executor.tokenizer(text)["input_ids"])


def test_characters_come_whole_and_add_up_to_the_text(smollm2: TorchExecutor) -> None:
    ids = ids_of(smollm2, TEXT)
    assert any("\ufffd" in smollm2.decode([token]) for token in ids), "no character needs two tokens"
    characters = Detokenizer(smollm2.decode)
    parts = [characters.push(token) for token in ids]
    assert "" in parts
    assert all("\ufffd" not in part for part in parts)
    assert "".join(parts) + characters.flush() == smollm2.decode(ids)


def test_an_emoji_in_parts_is_nothing_and_then_an_emoji_or_one_replacement_at_the_end(smollm2: TorchExecutor) -> None:
    ids = ids_of(smollm2, "😀")  # M6
    assert len(ids) > 1
    whole, cut = Detokenizer(smollm2.decode), Detokenizer(smollm2.decode)
    assert [whole.push(token) for token in ids] == [""] * (len(ids) - 1) + ["😀"]
    assert (cut.push(ids[0]), cut.flush()) == ("", "\ufffd")


def test_a_stop_string_anywhere_in_the_text_cuts_it_there(smollm2: TorchExecutor) -> None:
    ids = ids_of(smollm2, TEXT)
    text = smollm2.decode(ids)
    for begin in range(len(text)):
        for size in (1, 2, 5):
            stop, shown = text[begin : begin + size], ""
            stream = TextStream(smollm2.decode, (stop,))
            for token in ids:
                shown += stream.push(token)
                assert stop not in shown
                if stream.stopped:
                    break
            assert stream.stopped
            assert shown == stream.text == text[: text.index(stop)]


def test_the_model_stops_at_the_string_with_the_tokens_it_would_have_said(smollm2: TorchExecutor) -> None:
    prompt = smollm2.encode_chat("What is the capital of France?")
    smollm2.allocate(16, 16)
    engine = Engine(EngineConfig(num_blocks=16), smollm2)

    def answer(**params):
        rid, shown = engine.submit(prompt, SamplingParams(max_tokens=12, **params)), ""
        while engine.has_requests:
            shown += engine.step().texts.get(rid, "")
        return engine.request(rid), shown

    whole, nothing = answer()
    text = smollm2.decode(list(whole.output))
    assert (whole.text, nothing) == (None, "")
    word = "Paris"
    assert word in text
    stop = text[text.index(word) - 3 : text.index(word) + 2]  # from inside one word into the next
    cut, shown = answer(stop=("never said", stop))
    assert (cut.text, shown) == (text[: text.index(stop)],) * 2
    assert cut.finish_reason is FinishReason.STOP
    assert cut.output == whole.output[: len(cut.output)]
    assert len(cut.output) < len(whole.output)
    full, shown = answer(stop=("never said",))
    assert (full.text, shown, full.output) == (text, text, whole.output)


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_a_recorded_answer_is_shown_as_its_text(smollm2: TorchExecutor, max_tokens: int) -> None:
    ids = ids_of(smollm2, "a😀b")
    smollm2.allocate(4, 16)
    engine = Engine(EngineConfig(num_blocks=4), smollm2)
    params = SamplingParams(max_tokens=max_tokens, forced_output=tuple(ids), stop=("zz",))
    rid = engine.submit([5, 6, 7], params)
    engine.run()
    text = smollm2.decode(ids[:max_tokens])
    assert engine.request(rid).text == text
    assert text.count("\ufffd") <= 1
