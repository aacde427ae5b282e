"""Beam search over scores alone: which beams go on, which answers are finished, and when that is enough.

Nothing here knows blocks or sequences. The rules are those of ``generate(num_beams=k, do_sample=False)`` in
transformers 5: a beam's score is the sum of the log-probabilities of its output tokens; a finished answer's score is
that sum over ``length ** length_penalty``; only the best ``k`` candidates of a step may finish, and ``k`` that have not
finished go on. (Graves, "Sequence Transduction with Recurrent Neural Networks", 2012, §2.5; the length normalisation is
that of Wu et al., 2016, §7, in the simplified form transformers uses.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from kvtop.engine.types import SamplingParams

Candidates = Sequence[tuple[int, float]]
"""(token, log-probability) of the best next tokens of one beam, best first."""


@dataclass(frozen=True, slots=True)
class Pick:
    """One beam that goes on: the ``parent``-th best one and one more token. ``score``: sum of log-probabilities."""

    parent: int
    token: int
    score: float


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished answer. ``score`` is normalised by length; ``stopped``: by a stop token, not by its length."""

    output: tuple[int, ...]
    score: float
    stopped: bool


@dataclass(slots=True)
class BeamState:
    """The search of one request. ``max_output`` is the most tokens an answer can have."""

    params: SamplingParams
    stops: frozenset[int]
    max_output: int
    scores: list[float] = field(default_factory=lambda: [0.0])  # of the live beams, best first
    finished: list[Hypothesis] = field(default_factory=list)  # best first, at most num_beams

    @property
    def num_beams(self) -> int:
        return self.params.num_beams

    @property
    def num_top(self) -> int:
        """Candidates that count in a step: enough for ``num_beams`` to go on if all that can stop do."""
        return max(2, 1 + len(self.stops)) * self.num_beams

    def choose(self, candidates: Sequence[Candidates], outputs: Sequence[Sequence[int]]) -> list[Pick]:
        """Give every beam one more token; the beams that go on, best first. Empty: the search is over.

        ``candidates`` and ``outputs`` (the output tokens so far, equally many) are those of the live beams, best first.
        At equal scores the beam that was better goes first, then its better candidate.
        """
        num_output = len(outputs[0]) + 1
        scored = [
            (score + logprob, parent, token)
            for parent, (score, tokens) in enumerate(zip(self.scores, candidates, strict=True))
            for token, logprob in tokens
        ]
        # The sort is stable, reversed too: that is the rule at equal scores. It merges what each beam brings in order,
        # in a fraction of the time of heapq.nlargest.
        best = sorted(scored, key=itemgetter(0), reverse=True)[: self.num_top]
        going_on: list[Pick] = []
        for rank, (score, parent, token) in enumerate(best):
            stopped = num_output >= self.params.min_tokens and token in self.stops
            if not stopped and num_output < self.max_output:
                going_on.append(Pick(parent, token, score))
                if len(going_on) == self.num_beams:
                    break  # whoever comes after is too far down to finish
            elif rank < self.num_beams:
                self._finish((*outputs[parent], token), score, stopped=stopped)
        if not going_on or self._is_over(going_on[0].score, num_output):
            return []
        self.scores = [pick.score for pick in going_on]
        return going_on

    def cut_off(self, outputs: Sequence[Sequence[int]]) -> None:
        """The search cannot go on: the live beams count as answers, as far as they have come."""
        for output, score in zip(outputs, self.scores, strict=True):
            if output:
                self._finish(tuple(output), score, stopped=False)

    def _finish(self, output: tuple[int, ...], score: float, *, stopped: bool) -> None:
        score /= len(output) ** self.params.length_penalty
        self.finished.append(Hypothesis(output, score, stopped))
        self.finished.sort(key=lambda hypothesis: -hypothesis.score)  # stable: the older one stays ahead
        del self.finished[self.num_beams :]

    def _is_over(self, best_score: float, num_output: int) -> bool:
        """No answer that a live beam could still become would be kept, as far as ``early_stopping`` asks to know."""
        if len(self.finished) < self.num_beams:
            return False
        early, penalty = self.params.early_stopping, self.params.length_penalty
        if early is True:
            return True
        # Longer answers gain by a positive penalty, so only the greatest length bounds them. False takes the length
        # of now instead: a heuristic, and what transformers does by default.
        length = self.max_output if early == "never" and penalty > 0 else num_output
        return best_score / length**penalty <= self.finished[-1].score
