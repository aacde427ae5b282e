"""What ends an answer: stop tokens and strings, then its lengths, then the pool."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from kvtop.engine.beam import BeamState
from kvtop.engine.config import EngineConfig
from kvtop.engine.sequence import Sequence
from kvtop.engine.text import TextStream, decoder_of
from kvtop.engine.types import Executor, FinishReason, SamplingParams, StepOutput


class Endings:
    """Works out at submission what may end an answer, and after a token whether it did."""

    def __init__(self, config: EngineConfig, executor: Executor) -> None:
        self.decode = decoder_of(executor)  # None: it has no tokenizer
        self._limit = config.effective_len
        self._model_limit = config.max_model_len
        vocab_size: int | None = getattr(executor, "vocab_size", None)
        self._vocabulary = range(sys.maxsize if vocab_size is None else vocab_size)
        self._eos = self._known(config.eos_token_ids or executor.eos_token_ids)

    def prepare(self, seq: Sequence) -> None:
        """Work out once what ends ``seq``: the tokens that stop it, and the length at which it ends at the latest."""
        request = seq.request
        params = request.spec.params
        request.stops = self.stops(params)
        request.may_stop = bool(request.stops or params.stop)
        if params.stop and self.decode is not None:
            seq.text = TextStream(self.decode, params.stop)
        if params.prompt_logprobs:
            request.prompt_logprobs = []
        seq.ends_at = min(seq.num_prompt + params.max_tokens, self._limit)
        if params.num_beams > 1:  # its prompt gives candidates, not n tokens
            request.beams = BeamState(params, request.stops, seq.ends_at - seq.num_prompt)
            request.num_top = request.beams.num_top
        else:
            request.num_samples = params.n

    def stops(self, params: SamplingParams) -> frozenset[int]:
        """Tokens that end an answer. An id outside the vocabulary is none."""
        return self._known(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos)

    def _known(self, ids: Iterable[int]) -> frozenset[int]:
        return frozenset([token for token in ids if token in self._vocabulary])

    def reason(self, seq: Sequence, token: int, out: StepOutput) -> FinishReason | None:
        """Stop before length before capacity; below min_tokens nothing stops, but the lengths still bind.

        A token that ends the answer by its id is no part of its text.
        """
        request = seq.request
        may_stop = len(seq.tokens) - seq.num_prompt >= request.spec.params.min_tokens
        if may_stop and token in request.stops:
            return FinishReason.STOP
        if seq.text is not None:
            show(seq, seq.text.push(token, may_stop=may_stop), out)
            if seq.text.stopped:
                return FinishReason.STOP
        return self.length_reason(seq)

    def length_reason(self, seq: Sequence) -> FinishReason | None:
        """Length before capacity; None: it is not as long as that yet."""
        known = len(seq.tokens)
        if known - seq.num_prompt >= seq.request.spec.params.max_tokens:
            return FinishReason.LENGTH
        if known >= self._limit:
            return FinishReason.LENGTH if self._model_limit == self._limit else FinishReason.CAPACITY
        return None


def show(seq: Sequence, text: str, out: StepOutput) -> None:
    """``text`` of ``seq`` is safe now."""
    if text:
        out.texts[seq.seq_id] = out.texts.get(seq.seq_id, "") + text
