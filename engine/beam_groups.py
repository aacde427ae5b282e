"""Beam requests inside the engine: collect the candidates of all beams, let the group choose, fork and drop.

A request's beams are sequences ``a``, ``a#1``, ... that share blocks like any branches. One whose row is computed waits
for the others: it keeps its seat and blocks unless somebody needs them, and its candidates in any case, so that beams
that do not fit together are computed one after the other. When all have theirs, the group chooses at once. The first
child of a beam stays in its place, so n children of one parent make n - 1 forks; a beam without children gives its
blocks back and starts over as a branch of another. The ids therefore stay the same ``num_beams`` to the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtop.engine.beam import BeamState, Pick
from kvtop.engine.config import EngineConfig
from kvtop.engine.errors import InvalidRequest, InvariantError
from kvtop.engine.sequence import Request, Sequence
from kvtop.engine.types import FinishReason, RequestState, Sample, SamplingParams, StepOutput

if TYPE_CHECKING:
    from kvtop.engine.accounting import Accountant


def check_beams(
    request_id: str, params: SamplingParams, stops: frozenset[int], config: EngineConfig, vocab_size: int | None
) -> None:
    """Raises InvalidRequest: in some step ``num_beams`` would not find a seat, or as many tokens that do not stop."""
    if params.num_beams > config.seats:
        raise InvalidRequest(
            f"request {request_id!r}: num_beams is {params.num_beams}, only {config.seats} sequences can run at once "
            f"(max_num_seqs {config.max_num_seqs}, max_batched_tokens {config.max_batched_tokens})"
        )
    need = BeamState(params, stops, 1).num_top + len(stops)
    if vocab_size is not None and need > vocab_size:
        raise InvalidRequest(
            f"request {request_id!r}: num_beams {params.num_beams} with {len(stops)} stop tokens needs {need} tokens "
            f"to choose from, the vocabulary has {vocab_size}"
        )


class BeamGroups:
    """What the accountant does with rows of logits that beams asked for."""

    def __init__(self, accountant: Accountant) -> None:
        self._accountant = accountant
        self._scheduler, self._allocator = accountant.scheduler, accountant.allocator
        self.noted: list[Request] = []  # requests a beam of which has got candidates in this step

    def note(self, seq: Sequence, sample: Sample) -> None:
        """The row of ``seq`` is computed."""
        if len(sample.top) != seq.request.num_top:
            raise InvariantError(f"{seq.seq_id} asked for {seq.request.num_top} candidates, got {len(sample.top)}")
        seq.candidates = sample.top
        if seq.request not in self.noted:
            self.noted.append(seq.request)

    def choose(self, out: StepOutput, now_ns: int) -> None:
        """Let every group choose that was waiting for nothing but what this step computed."""
        noted, self.noted = self.noted, []
        for request in noted:
            if all(seq.candidates for seq in request.sequences):
                self._choose(request, out, now_ns)

    def _choose(self, request: Request, out: StepOutput, now_ns: int) -> None:
        beams, state = request.ranking or request.sequences, _state(request)
        picks = state.choose([seq.candidates for seq in beams], [seq.output for seq in beams])
        if not picks:
            self._end(request, None, out, now_ns)
            return
        if len(picks) != state.num_beams:
            raise InvariantError(f"{request.request_id}: {len(picks)} of {state.num_beams} beams could go on")
        parents = [beams[pick.parent] for pick in picks]
        places = [seq for seq in request.sequences if seq not in parents]
        for seq in places:
            self._drop(seq)
        ranking = []
        for rank, parent in enumerate(parents):
            if parent not in parents[:rank]:  # its first child
                ranking.append(parent)
            else:
                ranking.append(self._accountant.fork(parent, now_ns, places.pop(0) if places else None))
        for seq, pick in zip(ranking, picks, strict=True):
            self._go_on(seq, pick)
        request.ranking = ranking

    def _drop(self, seq: Sequence) -> None:
        """No candidate of ``seq`` was chosen: its blocks are free, and it is in no queue."""
        if seq.state is RequestState.RUNNING:
            self._scheduler.running.remove(seq)
        else:
            self._scheduler.waiting.remove(seq)
        self._allocator.end(seq)
        seq.candidates = ()

    def _go_on(self, seq: Sequence, pick: Pick) -> None:
        aside = seq.state is not RequestState.RUNNING and bool(seq.candidates)
        if aside:
            self._scheduler.waiting.remove(seq)
        seq.candidates = ()
        seq.tokens.append(pick.token)
        self._accountant.recorder.decide(("chosen", seq.seq_id, len(seq.tokens)))
        if aside:  # it has something to compute again
            seq.wait_reason = None
            self._scheduler.waiting.push(seq)

    def cut_off(self, request: Request, reason: FinishReason, out: StepOutput, now_ns: int) -> None:
        """A beam that nobody can make room for: the answers so far are the answers."""
        _state(request).cut_off([seq.output for seq in request.ranking or request.sequences])
        self._end(request, reason, out, now_ns)

    def _end(self, request: Request, reason: FinishReason | None, out: StepOutput, now_ns: int) -> None:
        """Hand out the answers, best first. ``reason``: of those that were cut off by something else than length."""
        accountant, state = self._accountant, _state(request)
        answers = state.finished[: request.params.n]
        while len(request.sequences) < len(answers):  # it ended before the beams were born
            accountant.fork(request.sequences[0], now_ns)
        for index, seq in enumerate(request.sequences):
            seq.candidates = ()
            del seq.tokens[seq.num_prompt :]
            if index >= len(answers):
                unanswered = index < request.params.n and reason
                accountant.finish(seq, unanswered or FinishReason.DROPPED, out, now_ns)
                continue
            answer = answers[index]
            accountant.deliver(seq, answer.output, out, now_ns)
            why = FinishReason.STOP if answer.stopped else accountant.endings.length_reason(seq) or reason
            assert why is not None, f"{seq.seq_id} ends for no reason"
            accountant.finish(seq, why, out, now_ns)


def _state(request: Request) -> BeamState:
    assert request.beams is not None, f"{request.request_id} is no beam request"
    return request.beams
