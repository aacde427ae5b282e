"""transformers' own beam search, one prompt at a time: what every served answer is compared with."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from kvtop.engine.api import SamplingParams

TIE = 1e-4  # of two sums of log-probabilities in fp32 that were computed in different orders


class Beams:
    """Beam searches of one model, remembered. ``compared`` answers were compared, ``excused`` of them were ties."""

    def __init__(self, model: Any) -> None:
        self._model, self._known = model, {}
        self.compared = self.excused = self.stopped = 0

    def generate(self, prompt: Sequence[int], params: SamplingParams) -> tuple[list[list[int]], list[float]]:
        """The ``n`` best answers, each to its end token, and their scores; ``stop_token_ids`` are the end tokens."""
        key = (tuple(prompt), params)
        if key not in self._known:
            self._known[key] = self._generate(prompt, params)
        return self._known[key]

    def _generate(self, prompt: Sequence[int], params: SamplingParams) -> tuple[list[list[int]], list[float]]:
        ids = torch.tensor([list(prompt)])
        stops = list(params.stop_token_ids)
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                num_beams=params.num_beams,
                num_return_sequences=params.n,
                length_penalty=params.length_penalty,
                early_stopping=params.early_stopping,
                min_new_tokens=params.min_tokens or None,
                max_new_tokens=params.max_tokens,
                eos_token_id=stops or None,
                pad_token_id=0,
                return_dict_in_generate=True,
                output_scores=True,
            )
        answers = [row[len(prompt) :].tolist() for row in out.sequences]
        scores = out.sequences_scores.tolist() if params.num_beams > 1 else [0.0]
        return [_to_the_end(answer, stops) for answer in answers], scores

    def assert_equal(self, prompt: Sequence[int], params: SamplingParams, answers: Sequence[Sequence[int]]) -> None:
        """Token for token; two answers that change places because their scores tie are excused and counted."""
        want, scores = self.generate(prompt, params)
        assert len(answers) == len(want) == params.n
        for i, (answer, expected) in enumerate(zip(answers, want, strict=True)):
            self.compared += 1
            self.stopped += expected[-1] in params.stop_token_ids
            if list(answer) != expected:
                twins = [j for j, score in enumerate(scores) if j != i and abs(score - scores[i]) < TIE]
                assert list(answer) in [want[j] for j in twins], (
                    f"prompt of {len(prompt)}, {params}: answer {i} is {list(answer)}, expected {expected}"
                )
                self.excused += 1


def _to_the_end(answer: list[int], stops: list[int]) -> list[int]:
    """Without the padding behind the end token."""
    ends = [i for i, token in enumerate(answer) if token in stops]
    return answer[: ends[0] + 1] if ends else answer
