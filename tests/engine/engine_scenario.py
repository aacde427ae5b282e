"""One random life of an engine: random sizes and policies, random requests, and everything that can happen to them.

All choices come from one seed, so that a failure is repeated by its number. Outputs are held to an oracle that knows no
engine; the rest to what must be true after every step, whatever the configuration.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from engine_helpers import KVExecutor, expected_answers, score_after, token_after

from kvtop.engine.allocators.caching import CachingAllocator
from kvtop.engine.api import (
    Engine,
    EngineConfig,
    FinishReason,
    InvalidRequest,
    Plan,
    QueueFull,
    Recorder,
    RequestSpec,
    RequestState,
    RequestTooLong,
    SamplingParams,
    StepOutput,
    WaitReason,
)
from kvtop.engine.events import RequestEvent, StepEvent
from kvtop.engine.policies.registry import BATCH, QUEUE, VICTIM
from kvtop.engine.published import KeyFn

STEMS = [[7] * 40, [8] * 40, [7, 8] * 20]
VOCAB_STOP = 100  # every token below it stops some requests: about one in ten


PIECES = [b"a", b"b", b"ab", b"", b"\xc3", b"\xa9"]  # what token t reads as: two of them make one letter

# Keys that tell little or nothing apart: whatever is found must have been compared token by token.
COLLIDING: list[KeyFn] = [lambda parent, tokens, extra: (parent + sum(tokens)) % 3, lambda parent, tokens, extra: 7]


def read_as(tokens: list[int]) -> str:
    return b"".join(PIECES[token % len(PIECES)] for token in tokens).decode("utf-8", "replace")


def cut(output: list[int], params: SamplingParams) -> tuple[str, bool]:
    """Text of a whole output before the stop string that is complete first, and whether there is one.

    One that is complete with a token below ``min_tokens`` is none.
    """
    whole = read_as(output)
    text = whole.rstrip("\ufffd")  # what may still become a letter
    begin = len(read_as(output[: max(0, params.min_tokens - 1)]).rstrip("\ufffd"))
    ends = [(e, e - len(s)) for s in params.stop for e in range(begin + 1, len(text) + 1) if text[:e].endswith(s)]
    return (text[: min(ends)[1]], True) if ends else (text + "\ufffd" * (len(text) < len(whole)), False)


class ExecutorFailed(Exception):
    """Raised by the executor on purpose."""


@dataclass
class Branch:
    """What is known of one sequence without looking into the engine."""

    prompt: list[int]
    known: list[int]  # tokens it was born with
    params: SamplingParams
    order: tuple[int, int, int, int]
    by_fork: bool = False  # by Engine.fork: the last of ``known`` was not computed yet
    streamed: list[int] = field(default_factory=list)
    shown: str = ""


def random_config(rng: Random) -> EngineConfig:
    allocator = rng.choice(["paged"] * 5 + ["contiguous-max", "contiguous-pow2", "contiguous-oracle"])
    num_blocks, block_size = rng.randint(2, 20), rng.randint(1, 8)
    values: dict[str, Any] = {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "max_num_seqs": rng.randint(1, 8),
        "max_batched_tokens": rng.choice([rng.randint(1, 8), rng.randint(8, 64)]),
        "max_model_len": rng.choice([None, None, rng.randint(2, 60)]),
        "policy": rng.choice(sorted(QUEUE.meanings())),
        "victim": rng.choice(["last-arrived", *VICTIM.meanings()]),
        "batch_policy": rng.choice(["decode-first", *BATCH.meanings()]),
        "allocator": allocator,
        "deferred_free_steps": rng.choice([0, 0, 1, 2]),
        "deferred_copy_steps": rng.choice([0, 0, 0, 1, 2]),
        "reserve_blocks": rng.choice([0, 0, 1, 2]),
        "max_queue": rng.choice([None, None, None, 3]),
    }
    if "aging_steps" in QUEUE.get(values["policy"])[0].defaults:
        values["policy_params"] = {"aging_steps": rng.choice([2, 5, 256])}
    if rng.random() < 0.25:
        values |= {"chunked_prefill": False, "max_batched_tokens": num_blocks * block_size + rng.randint(0, 20)}
    if allocator == "paged":
        values["prefix_caching"] = rng.random() < 0.8
        values["eviction"] = rng.choice(["lru", "lru", "lfu", "fifo", "2q"])
        if rng.random() < 0.3:
            values |= {"preemption": "swap", "host_blocks": rng.randint(1, 12)}
        if values["prefix_caching"] and rng.random() < 0.5:
            values["host_cache_blocks"] = rng.choice([1, 2, rng.randint(3, 8), 30])
    return EngineConfig(**values)


class Scenario:
    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.config = random_config(rng)
        self.executor = KVExecutor(self.config.num_blocks, self.config.block_size, self.in_flight, self.written)
        self.executor.late = self.config.deferred_copy_steps
        self.executor.tokenizer, self.executor.decode = "pieces", read_as  # type: ignore[attr-defined]
        self.recorder = Recorder()
        keys = rng.choice([None] * 8 + COLLIDING) if self.config.allocator == "paged" else None
        self.engine = Engine(self.config, self.executor, recorder=self.recorder, key_fn=keys)
        self.branches: dict[str, Branch] = {}
        self.requests: list[str] = []
        self.aborted: set[str] = set()
        self.pinned: list[int] = []
        self.ever_pinned = False
        self.step_failed = False
        self.to_submit = rng.randint(1, 14)
        self.beam_share = rng.choice([0.0, 0.0, 0.3, 0.9])
        self.troubled = rng.random() < 0.7  # half of the lives go undisturbed
        self.steps: list[StepEvent] = []
        self.rows: list[RequestEvent] = []
        self.published: dict[int, tuple[int, int]] = {}  # block -> (group, key), by the decision log alone
        self.starved: set[str] = set()  # they were alone and could not grow
        self.fault = 0  # the k-th block of every allocation of this step is refused; 0: none is
        self.num_preempted = 0
        self.last_counters: dict[str, int] = {}

    # -- the life --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        steps = 0
        while self.to_submit or self.engine.has_requests:
            steps += 1
            assert steps < 4000, "requests are left that never end"
            self.between_steps()
            self.step()
        self.unpin_all()
        for _ in range(self.config.deferred_free_steps + self.config.deferred_copy_steps + 2):
            self.engine.step()
        self.read_events()
        self.at_the_end()

    def step(self) -> None:
        self.disturb_the_step()
        try:
            out = self.engine.step()
        except ExecutorFailed:
            self.step_failed = True
            self.engine.check()
            return
        finally:
            self.engine.inject_fault(None)
        if out.plan:
            self.step_failed = False
        self.engine.check()
        self.after_step(out)

    def disturb_the_step(self) -> None:
        rng, self.fault = self.rng, 0
        if self.troubled and rng.random() < 0.03:
            self.engine.clock.skip(rng.randint(0, 10**13))  # time jumps forward
        if self.troubled and rng.random() < 0.05:
            self.fault = fault = rng.randint(1, 4)
            self.engine.inject_fault(lambda k: k == fault)

    def between_steps(self) -> None:
        rng = self.rng
        while self.to_submit and (not self.engine.has_requests or rng.random() < 0.3):
            self.to_submit -= 1
            self.submit()
        if not self.troubled:
            return
        running = [s.seq_id for s in self.engine.scheduler.running]
        if rng.random() < 0.03 and self.live():
            self.abort(rng.choice(self.live()))
        if rng.random() < 0.1 and running:
            self.fork(rng.choice(running))
        if self.config.allocator == "paged":
            self.disturb_the_cache()
        self.engine.check()

    def disturb_the_cache(self) -> None:
        rng, engine = self.rng, self.engine
        if rng.random() < 0.03:
            engine.reset_prefix_cache()
        if rng.random() < 0.05:
            block = rng.randrange(self.config.num_blocks)
            if block not in engine.allocator.pool.fresh:
                engine.pin(block)
                self.pinned.append(block)
                self.ever_pinned = True
        if rng.random() < 0.05 and self.pinned:
            engine.unpin(self.pinned.pop(rng.randrange(len(self.pinned))))
        if rng.random() < 0.1:
            before = engine.counters()
            try:
                engine.evict(rng.randrange(self.config.num_blocks))
            except InvalidRequest:
                assert engine.counters() == before

    def in_flight(self, plan: Plan) -> None:
        if self.troubled and self.rng.random() < 0.03:
            self.abort(self.rng.choice(self.live()))
        if self.troubled and self.rng.random() < 0.03:
            raise ExecutorFailed

    def written(self, plan: Plan) -> None:
        if self.troubled and self.rng.random() < 0.02:
            raise ExecutorFailed

    # -- what is done ------------------------------------------------------------------------------------------------

    def submit(self) -> None:
        rng, number = self.rng, len(self.requests)
        rid = f"q{number}"
        self.requests.append(rid)
        tail = [rng.randint(0, 9) for _ in range(rng.randint(0, 6))]
        prompt = rng.choice(STEMS)[: rng.randint(0, min(30, self.config.effective_len - 1))] + tail
        m = rng.randint(1, 12)
        values: dict[str, Any] = {"max_tokens": m, "min_tokens": rng.choice([0, 0, min(m, 3)])}
        if rng.random() < self.beam_share:
            values |= self.random_beams()
        else:
            values["n"] = rng.choice([1, 1, 1, 2, 4])
            values["stop_token_ids"] = tuple(range(VOCAB_STOP)) if rng.random() < 0.2 else ()
            values["stop"] = rng.choice([(), (), (), ("aa", "abab"), ("\u00e9",)])
        values["prompt_logprobs"] = rng.random() < 0.08
        params = SamplingParams(**values)
        spec = RequestSpec(
            prompt,
            params,
            rid,
            arrival_ns=rng.choice([None, 0, rng.randint(0, 10**9)]),
            priority=rng.choice([0, 0, 0, 1, 2]),
            extra_key=rng.choice([None, None, {"salt": "x"}]),
            tenant=rng.choice(["a", "b"]),
        )
        before = self.engine.counters()
        sched = self.engine.clock.now_ns() if spec.arrival_ns is None else spec.arrival_ns
        refusal: InvalidRequest | None = None
        try:
            self.engine.submit_spec(spec)
        except InvalidRequest as error:
            refusal = error
        if refusal is not None:
            assert self.engine.counters() == before
            too_long = len(prompt) >= self.config.effective_len
            assert isinstance(refusal, RequestTooLong) == too_long
            no_seats = params.num_beams > self.config.seats
            assert too_long or not prompt or no_seats or isinstance(refusal, QueueFull)
            return
        assert 0 < len(prompt) < self.config.effective_len
        assert params.num_beams <= self.config.seats
        for branch in range(max(params.n, params.num_beams)):
            name = f"{rid}#{branch}" if branch else rid
            self.branches[name] = Branch(prompt, prompt, params, (spec.priority, sched, number, branch))

    def random_beams(self) -> dict[str, Any]:
        rng = self.rng
        num_beams = rng.randint(2, 4)
        return {
            "num_beams": num_beams,
            "n": rng.randint(1, num_beams),
            "length_penalty": rng.choice([0.0, 1.0, 2.0, -1.0]),
            "early_stopping": rng.choice([True, False, "never"]),
            "stop_token_ids": rng.choice([(), tuple(range(0, 997, 9)[:2]), tuple(range(0, 997, 40))]),
        }

    def fork(self, seq_id: str) -> None:
        engine, parent = self.engine, self.branches[seq_id]
        view = engine.request(seq_id)
        rid = seq_id.partition("#")[0]
        total = self.rng.randint(2, 3)
        try:
            children = engine.fork(seq_id, total)
        except InvalidRequest:
            unready = not view.output or len(view.prompt) + len(view.output) - view.num_computed > 1
            assert self.step_failed or parent.params.num_beams > 1 or unready
            return
        assert not self.step_failed
        assert parent.params.num_beams == 1
        assert len(children) == total - 1
        for child in children:
            number = int(child.rpartition("#")[2])
            assert child == f"{rid}#{number}"
            assert child not in self.branches or self.branches[child].order[3] >= parent.params.n
            known = [*view.prompt, *view.output]
            self.branches[child] = Branch(
                parent.prompt, known, parent.params, (*parent.order[:3], number), True, list(view.output)
            )

    def live(self) -> list[str]:
        return sorted(s.seq_id for s in [*self.engine.scheduler.running, *self.engine.scheduler.waiting])

    def abort(self, seq_id: str) -> None:
        """One branch; the first branch's id is the request's and ends them all, and so does that of any beam."""
        assert self.engine.abort(seq_id)
        if self.branches[seq_id].params.num_beams > 1:
            seq_id = seq_id.partition("#")[0]
        gone = [b for b in self.branches if b == seq_id or ("#" not in seq_id and b.startswith(f"{seq_id}#"))]
        self.aborted.update(gone)

    def unpin_all(self) -> None:
        while self.pinned:
            self.engine.unpin(self.pinned.pop())

    # -- what must be true -------------------------------------------------------------------------------------------

    def after_step(self, out: StepOutput) -> None:
        engine, counters = self.engine, self.engine.counters()
        assert counters.used + counters.idle + counters.fresh + counters.in_transfer == self.config.num_blocks
        self.counters_never_fall()
        assert out.plan.num_tokens <= self.config.max_batched_tokens
        assert len({c.request_id for c in out.plan}) == len(out.plan) <= self.config.seats
        # Under prefill-first, admissions come before the decodes that may then lack the blocks that pins hold.
        first = self.config.batch_policy == "prefill-first" and self.pinned
        assert first or not (out.preempted and out.admitted), "somebody was admitted in a step that preempted"
        for seq_id, tokens in out.tokens.items():
            branch = self.branches[seq_id]
            assert len(tokens) == 1 or (branch.params.num_beams > 1 and not branch.streamed)
            branch.streamed += tokens
        for seq_id, text in out.texts.items():
            assert text
            self.branches[seq_id].shown += text
        self.starved.update(seq.seq_id for seq in engine.scheduler.starved)
        advanced = out.plan or out.finished or counters.in_transfer or not engine.has_requests
        advanced = advanced or self.room_was_made(out)
        advanced = advanced or (self.fault and out.preempted)  # room was made, and then refused
        assert advanced or out.stalled, "nobody advanced and nobody was named"
        if out.stalled is not None and self.fault:
            assert out.stalled.reason in (WaitReason.FAULT, WaitReason.PINNED, WaitReason.NO_BLOCKS)
        elif out.stalled is not None:
            assert self.pinned, f"a stall without a cause: {out.stalled}"
            assert out.stalled.reason in (WaitReason.PINNED, WaitReason.NO_BLOCKS)
            assert out.stalled.request_id in self.live()
            self.unpin_all()
        for seq in engine.scheduler.waiting:
            if out.plan and not out.admitted and seq is engine.scheduler.head_of_line:
                assert seq.wait_reason is not None, f"{seq.seq_id} waits and nobody knows why"
        self.read_events()
        self.the_log_rebuilds_the_cache()

    def the_log_rebuilds_the_cache(self) -> None:
        if isinstance(self.engine.allocator, CachingAllocator):
            keys = self.engine.allocator.cache.key
            assert {b: k for b, (_, k) in self.published.items()} == {b: k for b, k in enumerate(keys) if k is not None}

    def room_was_made(self, out: StepOutput) -> bool:
        """Whoever runs is a beam that waits for its group: somebody gave blocks back, and others go on with them."""
        running = self.engine.scheduler.running
        beams = [name for name in out.preempted if self.branches[name].params.num_beams > 1]
        return all(seq.candidates for seq in running) and bool(beams or (running and out.preempted))

    def counters_never_fall(self) -> None:
        view = self.engine.counters()
        totals = {
            name: getattr(view, name)
            for name in (
                "query_tokens",
                "hit_tokens",
                "host_hit_tokens",
                "restored_tokens",
                "recomputed_tokens",
                "computed_tokens",
                "preemptions",
                "evictions",
                "copies",
            )
        }
        assert all(value >= self.last_counters.get(name, 0) for name, value in totals.items())
        assert view.hit_tokens + view.host_hit_tokens <= view.query_tokens
        assert view.host_cached <= self.config.host_cache_blocks
        self.last_counters = totals

    def read_events(self) -> None:
        for event in self.recorder.drain():
            if isinstance(event, RequestEvent):
                self.rows += [event] if event.phase == "finished" else []
            elif isinstance(event, StepEvent):
                self.steps.append(event)
                blocks = event.used_blocks + event.idle_blocks + event.fresh_blocks + event.in_transfer_blocks
                assert blocks == self.config.num_blocks
                for kind, *fields in event.decisions:
                    if kind == "publish":
                        _, group, block, key, _ = fields  # told again where a branch meets its sibling's block
                        assert self.published.setdefault(block, (group, key)) == (group, key)
                    elif kind in ("evict", "unpublish"):
                        group, block, key = fields[1:4] if kind == "evict" else fields[:3]
                        assert self.published.pop(block) == (group, key)
                    elif kind == "preempted":
                        self.num_preempted += 1
                        victim, needy = self.branches[fields[0]], self.branches[fields[2]]
                        # A beam that waits for its group makes room for the others of it.
                        mates = victim.params.num_beams > 1 and victim.order[:3] == needy.order[:3]
                        assert mates or victim.order >= needy.order, f"{fields[0]} ranks ahead of {fields[2]}"

    def at_the_end(self) -> None:
        engine, counters = self.engine, self.engine.counters()
        assert (counters.used, counters.in_transfer, counters.host_used) == (0, 0, 0)
        assert sorted(row.request_id for row in self.rows) == sorted(self.requests), "not one end a request"
        numbers = [event.step for event in self.steps]
        assert numbers == sorted(numbers), "steps out of order"
        computed = [event.step for event in self.steps if event.prefill_tokens or event.decode_tokens]
        assert computed == sorted(set(computed)), "two events of one step"
        assert counters.preemptions == self.num_preempted
        views = {name: engine.request(name) for name in self.branches if name not in self.unborn()}
        assert sum(view.preemptions for view in views.values()) == counters.preemptions
        assert sum(event.preemptions for event in self.steps) <= counters.preemptions
        for name, view in views.items():
            self.one_at_the_end(name, self.branches[name], view)
        if self.ever_pinned and self.config.batch_policy == "prefill-first":
            return  # somebody may have been admitted and preempted in one step
        cached = sum(view.cached_tokens for view in views.values())
        assert cached == counters.hit_tokens + counters.host_hit_tokens
        assert sum(view.host_hit_tokens for view in views.values()) == counters.host_hit_tokens
        assert sum(event.host_hit_tokens for event in self.steps) == counters.host_hit_tokens
        assert sum(view.computed_tokens for view in views.values()) == counters.computed_tokens
        assert sum(view.recomputed_tokens for view in views.values()) == counters.recomputed_tokens
        assert sum(view.restored_tokens for view in views.values()) == counters.restored_tokens

    def unborn(self) -> set[str]:
        """Branches of requests that ended before their first token; beams of those that ended before their second."""
        names = [name for name, branch in self.branches.items() if "#" in name and not branch.by_fork]
        return {name for name in names if not self.was_born(name)}

    def was_born(self, name: str) -> bool:
        if self.branches[name].params.num_beams > 1 or "#" not in name:
            return name in self.engine._finished
        return bool(self.branches[name.partition("#")[0]].streamed)

    def one_at_the_end(self, name: str, branch: Branch, view: Any) -> None:
        assert view.state is RequestState.FINISHED
        self.its_scores(branch, view)
        assert list(view.output) == branch.streamed, f"{name}: what was streamed is not what it has"
        assert 0 <= view.cached_tokens <= max(0, len(branch.prompt) - 1)
        if branch.params.num_beams > 1:
            self.beam_at_the_end(name, branch, view)
            return
        self.its_text(branch, view)
        output, reason = self.expected(name, branch)
        if name in self.aborted and view.finish_reason is FinishReason.ABORTED:
            assert list(view.output) == output[: len(view.output)]
            return
        if self.ever_pinned and view.finish_reason is FinishReason.CAPACITY:
            assert list(view.output) == output[: len(view.output)]
        else:
            assert (list(view.output), view.finish_reason) == (output, reason), f"{name} is not what it is alone"
        stored = len(branch.prompt) + len(view.output) - 1
        own = stored - (len(branch.known) - 1 if branch.by_fork else len(branch.prompt) if "#" in name else 0)
        if view.output:
            # What others published while it was preempted may be restored to it without it ever having computed it.
            found = own - view.cached_tokens - view.computed_tokens
            assert 0 <= found <= (view.restored_tokens if view.preemptions else 0), f"{name}: {view}, own {own}"
        else:  # ended before its prompt was computed
            assert view.cached_tokens + view.computed_tokens <= len(branch.prompt)

    def its_scores(self, branch: Branch, view: Any) -> None:
        if not branch.params.prompt_logprobs:
            assert view.prompt_logprobs is None
            return
        assert not view.cached_tokens
        scores = [score_after(branch.prompt[:i], branch.prompt[i]) for i in range(1, len(branch.prompt))]
        assert list(view.prompt_logprobs) == (scores if view.output else scores[: len(view.prompt_logprobs)])

    def its_text(self, branch: Branch, view: Any) -> None:
        """The whole output as it reads, cut before a stop string; whatever was shown is the beginning of it."""
        if not branch.params.stop:
            assert view.text is None
            return
        output = list(view.output)
        if output and output[-1] in branch.params.stop_token_ids and len(output) >= branch.params.min_tokens:
            output.pop()  # what ends an answer is no part of its text
        assert view.text == cut(output, branch.params)[0]
        if view.finish_reason is FinishReason.ABORTED or branch.by_fork:
            return  # the rest was not shown, or what came before the fork
        assert view.text == branch.shown

    def beam_at_the_end(self, name: str, branch: Branch, view: Any) -> None:
        """Answer number i under the id of branch i, whatever happened on the way; nothing of one that was aborted."""
        number, reason = branch.order[3], view.finish_reason
        if name in self.aborted and reason is FinishReason.ABORTED:
            assert not view.output
            return
        limit = self.config.effective_len
        group = [b for b in self.branches if b.partition("#")[0] == name.partition("#")[0] and self.was_born(b)]
        if self.ever_pinned and FinishReason.CAPACITY in {self.engine.request(b).finish_reason for b in group}:
            return  # cut off wherever it stood
        if self.ever_pinned and self.starved & set(group):
            return  # the same, with answers that had ended by themselves already
        answers = expected_answers(branch.prompt, branch.params, limit)
        if number >= branch.params.n:
            assert (list(view.output), reason) == ([], FinishReason.DROPPED)
            return
        output, stopped = answers[number]
        assert list(view.output) == output, f"{name} is not what it is alone"
        by_model = self.config.max_model_len == limit or len(output) == branch.params.max_tokens
        length = FinishReason.LENGTH if by_model else FinishReason.CAPACITY
        assert reason is (FinishReason.STOP if stopped else length)

    def expected(self, name: str, branch: Branch) -> tuple[list[int], FinishReason]:
        """Output and reason of one branch that nobody aborts, from its tokens at birth on."""
        params, tokens = branch.params, list(branch.known)
        number, prompt = branch.order[3], len(branch.prompt)
        while True:
            tokens.append(token_after(tokens, number))
            length = len(tokens) - prompt
            if length >= params.min_tokens and tokens[-1] in params.stop_token_ids:
                return tokens[prompt:], FinishReason.STOP
            if params.stop and cut(tokens[prompt:], params)[1]:
                return tokens[prompt:], FinishReason.STOP
            if length >= params.max_tokens:
                return tokens[prompt:], FinishReason.LENGTH
            if len(tokens) >= self.config.effective_len:
                by_model = self.config.max_model_len == self.config.effective_len
                return tokens[prompt:], FinishReason.LENGTH if by_model else FinishReason.CAPACITY
