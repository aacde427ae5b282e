"""transformers' own greedy ``generate``, one prompt at a time: what every served token is compared with."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

EXCUSED_GAP = 1e-3  # a difference counts as a tie where the reference's two best logits lie this close


class Greedy:
    """Greedy continuations of one model, remembered; ``excused`` counts the ties seen by ``assert_equal``."""

    def __init__(self, model: Any) -> None:
        self._model, self._known, self.excused, self.compared = model, {}, 0, 0

    def generate(self, prompt: Sequence[int], max_tokens: int) -> tuple[list[int], list[float]]:
        """Tokens, and the gap between the two best logits at each of them."""
        key = (tuple(prompt), max_tokens)
        if key not in self._known:
            ids = torch.tensor([list(prompt)])
            with torch.inference_mode(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                out = self._model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=False,
                    min_new_tokens=max_tokens,
                    max_new_tokens=max_tokens,
                    eos_token_id=None,
                    pad_token_id=0,
                    return_dict_in_generate=True,
                    output_logits=True,
                )
            best = [logits[0].topk(2).values for logits in out.logits]
            self._known[key] = (out.sequences[0, len(prompt) :].tolist(), [float(b[0] - b[1]) for b in best])
        return self._known[key]

    def assert_equal(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Token for token; a first difference at a tie is excused and counted, and ends the comparison."""
        want, gaps = self.generate(prompt, len(tokens))
        assert len(tokens) == len(want)
        for i, (token, expected) in enumerate(zip(tokens, want, strict=True)):
            self.compared += 1
            if token != expected:
                assert gaps[i] < EXCUSED_GAP, (
                    f"prompt of {len(prompt)}: token {i} is {token}, expected {expected} (gap {gaps[i]:.4f})"
                )
                self.excused += 1
                return
