"""What the engine's tests share: short ways to build an engine, and an executor that really holds KV memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from kvtop.engine.api import (
    Chunk,
    Engine,
    EngineConfig,
    ExecuteResult,
    NullExecutor,
    Plan,
    Recorder,
    Sample,
    SamplingParams,
    StepOutput,
)
from kvtop.engine.beam import BeamState
from kvtop.engine.events import DECISION_FIELDS, RequestEvent, StepEvent

STEP_NS = 10_000_000


def make_engine(num_blocks: int = 8, block_size: int = 4, *, executor: Any = None, key_fn: Any = None, **config: Any):
    """An engine with a recorder; budget and seats are no limit unless given."""
    values: dict[str, Any] = {"max_num_seqs": 64, "max_batched_tokens": 4096, **config}
    return Engine(
        EngineConfig(num_blocks=num_blocks, block_size=block_size, **values),
        executor or NullExecutor(STEP_NS),
        recorder=Recorder(),
        key_fn=key_fn,
    )


SAMPLING = (
    "n", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "prompt_logprobs", "forced_output", "num_beams",
    "length_penalty", "early_stopping",
)  # fmt: skip


def submit(engine: Engine, prompt: list[int], m: int = 1, rid: str | None = None, **kw: Any) -> str:
    """Submit ``prompt`` for ``m`` output tokens; sampling parameters and request fields mixed in ``kw``."""
    sampling = {name: kw.pop(name) for name in SAMPLING if name in kw}
    return engine.submit(prompt, SamplingParams(max_tokens=m, **sampling), request_id=rid, **kw)


def distinct(length: int, salt: int) -> list[int]:
    """A prompt that shares no block with one of another ``salt``."""
    return [10_000 * (salt + 1) + i for i in range(length)]


def serve(engine: Engine, prompt: list[int], m: int = 1, rid: str | None = None, **kw: Any):
    """Submit, run until idle, and return the view of the finished request."""
    rid = submit(engine, prompt, m, rid, **kw)
    engine.run()
    engine.check()
    return engine.request(rid)


def steps_until_idle(engine: Engine, limit: int = 1000) -> list[StepOutput]:
    """Step until idle, checking every invariant after each step."""
    outs = []
    while engine.has_requests:
        assert len(outs) < limit, f"still not idle after {limit} steps"
        outs.append(engine.step())
        engine.check()
        counters = engine.counters()
        assert counters.used + counters.idle + counters.fresh + counters.in_transfer == engine.config.num_blocks
    return outs


def emitting_steps(outs: list[StepOutput], rid: str) -> list[int]:
    return [out.step for out in outs if rid in out.tokens]


def decisions(engine: Engine, *kinds: str) -> list[dict[str, Any]]:
    """Drain the recorder: decisions of these kinds (all, if none) as dictionaries with their step."""
    rows = []
    for event in engine.recorder.drain():
        if isinstance(event, StepEvent):
            rows += [
                {"kind": kind, "step": event.step, **dict(zip(DECISION_FIELDS[kind], fields, strict=True))}
                for kind, *fields in event.decisions
                if not kinds or kind in kinds
            ]
    return rows


def request_rows(engine: Engine) -> dict[str, RequestEvent]:
    """Drain the recorder: the row of every request that ended."""
    events = engine.recorder.drain()
    return {e.request_id: e for e in events if isinstance(e, RequestEvent) and e.phase == "finished"}


def pool_state(engine: Engine) -> tuple[Any, ...]:
    """Everything of the pool that a failed operation must leave alone, order included."""
    pool = engine.allocator.pool
    return (
        list(pool.refcount),
        list(pool.pins),
        list(pool.filled),
        list(pool.fresh),
        list(pool.evictor),  # pyright: ignore[reportArgumentType]
        [engine.block(b).published_key for b in range(pool.num_blocks)],
    )


def token_after(tokens: list[int], branch: int, vocab: int = 997) -> int:
    """What the KV executor answers to a whole known sequence: a hash, so one wrong token changes all that follow."""
    return zlib.crc32(repr((tokens, branch)).encode()) % vocab


def expected_output(prompt: list[int], m: int, branch: int = 0, stop: tuple[int, ...] = ()) -> list[int]:
    """The oracle: the output of one branch, without any engine."""
    tokens = list(prompt)
    for _ in range(m):
        tokens.append(token_after(tokens, branch))
        if tokens[-1] in stop:
            break
    return tokens[len(prompt) :]


def candidates_after(tokens: list[int], count: int, vocab: int = 997) -> list[tuple[int, float]]:
    """What the KV executor offers the beams of a whole known sequence: distinct tokens, best first, by checksums."""
    code = zlib.crc32(repr(tokens).encode())
    first, apart = code % vocab, 1 + code // vocab % (vocab - 1)
    chosen = [(first + apart * i) % vocab for i in range(count)]
    logprobs = sorted((-0.01 * (zlib.crc32(repr((tokens, i)).encode()) % 500 + 1) for i in range(count)), reverse=True)
    return list(zip(chosen, logprobs, strict=True))


def expected_answers(prompt: list[int], params: SamplingParams, limit: int) -> list[tuple[list[int], bool]]:
    """The oracle of a beam request: (answer, ended by a stop token), best first, from plain lists alone.

    ``limit``: the longest prompt + output. The choice itself is held to transformers by ``tests/executors``.
    """
    stops = frozenset(params.stop_token_ids)
    state = BeamState(params, stops, min(params.max_tokens, limit - len(prompt)))
    beams: list[list[int]] = [[]]
    while True:
        forbidden = stops if len(beams[0]) < params.min_tokens else ()
        offered = [candidates_after([*prompt, *beam], state.num_top + len(forbidden)) for beam in beams]
        picks = state.choose([[c for c in o if c[0] not in forbidden][: state.num_top] for o in offered], beams)
        if not picks:
            return [(list(h.output), h.stopped) for h in state.finished[: params.n]]
        beams = [[*beams[pick.parent], pick.token] for pick in picks]


def score_after(tokens: list[int], token: int) -> float:
    """The KV executor's log-probability of ``token`` after ``tokens``: a checksum of all of them."""
    return -zlib.crc32(repr((tokens, token)).encode()) / (1 << 32)


class KVExecutor(NullExecutor):
    """Holds one token a slot, as a KV memory would, and reads every sequence back through its block table.

    A slot that is shared, overwritten or never written by mistake shows up as a wrong token at once. Tokens are
    sampled from what was *read*, so a fault also changes the output. ``on_execute`` runs while a step is in flight,
    ``on_written`` when its blocks are moved and written. With ``late`` a copy is made when something is about to use
    its destination, at the latest that many steps after it was planned.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        on_execute: Callable[[Plan], object] | None = None,
        on_written: Callable[[Plan], object] | None = None,
    ) -> None:
        super().__init__(STEP_NS)
        self.block_size = block_size
        self.slots: list[int | None] = [None] * (num_blocks * block_size)
        self.host: dict[int, list[int | None]] = {}
        self.num_calls = self.late = 0
        self._copies: list[tuple[int, int, int]] = []  # (source, destination, step it was planned in), not made yet
        self.on_execute, self.on_written = on_execute, on_written

    def execute(self, plan: Plan) -> ExecuteResult:
        assert plan, "an empty plan must not reach the executor"
        self.num_calls += 1
        if self.on_execute is not None:
            self.on_execute(plan)
        self._move(plan)
        for chunk in plan.chunks:
            self._arrive({block for table in chunk.sequence.block_tables for block in table})
            self._write(chunk)
        if self.on_written is not None:
            self.on_written(plan)
        samples, scores = {}, {}
        for chunk in plan.chunks:
            read = self._read(chunk)
            seq = chunk.sequence
            if chunk.scored:
                scores[chunk.request_id] = [score_after(read[: p + 1], seq.tokens[p + 1]) for p in chunk.scored]
            if chunk.num_samples and chunk.num_top:
                forbidden = seq.request.stops if seq.num_output < seq.params.min_tokens else ()
                offered = candidates_after(read, chunk.num_top + len(forbidden))
                top = [pair for pair in offered if pair[0] not in forbidden]
                samples[chunk.request_id] = Sample((), tuple(top[: chunk.num_top]))
            elif chunk.num_samples:
                branches = [seq.branch] if chunk.num_samples == 1 else range(chunk.num_samples)
                samples[chunk.request_id] = Sample(tuple(token_after(read, b) for b in branches))
        return ExecuteResult(samples, self.step_time_ns, scores)

    def _move(self, plan: Plan) -> None:
        self._arrive({dest for _, dest, step in self._copies if step + self.late <= plan.step})
        for block, host in plan.swap_out:
            self._arrive({block})
            self.host[host] = self.slots[self._of(block)]
        self._copies += [(source, dest, plan.step) for source, dest in plan.copies]
        if not self.late:
            self._arrive({dest for _, dest in plan.copies})
        for host, block in plan.swap_in:
            self._arrive({block})
            self.slots[self._of(block)] = self.host[host]
        plan.moved = True

    def _arrive(self, blocks: set[int]) -> None:
        """Make the copies into ``blocks`` that are still to be made, and those into their sources before them."""
        if not self._copies:
            return
        wanted, needed = set(blocks), []
        for copy in reversed(self._copies):
            if copy[1] in wanted:
                wanted.add(copy[0])
                needed.append(copy)
        self._copies = [copy for copy in self._copies if copy not in needed]
        for source, dest, _ in reversed(needed):
            self.slots[self._of(dest)] = self.slots[self._of(source)]

    def _of(self, block: int) -> slice:
        return slice(block * self.block_size, (block + 1) * self.block_size)

    def _slot(self, chunk: Chunk, position: int) -> int:
        return chunk.sequence.block_table[position // self.block_size] * self.block_size + position % self.block_size

    def _write(self, chunk: Chunk) -> None:
        assert chunk.count >= 1
        for position, token in zip(range(chunk.start, chunk.start + chunk.count), chunk.tokens, strict=True):
            self.slots[self._slot(chunk, position)] = token

    def _read(self, chunk: Chunk) -> list[int]:
        end = chunk.start + chunk.count
        read = [self.slots[self._slot(chunk, p)] for p in range(end)]
        known = chunk.sequence.tokens[:end]
        assert read == known, f"{chunk.request_id} reads {read} through its table, its tokens are {known}"
        return known


def kv_engine(num_blocks: int = 8, block_size: int = 4, **config: Any) -> Engine:
    """An engine over a ``KVExecutor`` under virtual time."""
    return make_engine(num_blocks, block_size, executor=KVExecutor(num_blocks, block_size), **config)
