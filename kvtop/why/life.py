"""A sequence's life as the decision log unfolds it: one method a kind of decision, a line as soon as a part is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvtop.cli.text import format_ns
from kvtop.why import lines
from kvtop.why.facts import Row
from kvtop.why.lines import Chunk, Gaps, Line, Return, Said, minus
from kvtop.why.log import Log
from kvtop.why.waits import Wait, stretches, tell
from kvtop.why.words import ending, match_end, rejection
from kvtop.workloads.words import counted

DROPPED = "dropped"  # status of a run whose events a reader could not follow


class Life:
    """One sequence. Decisions are given to ``take`` in order; ``close`` ends it. Lines go to ``log``.

    ``late``: the log begins after its arrival (a live one keeps the newest decisions only).
    """

    def __init__(self, log: Log, seq_id: str, *, late: bool = False) -> None:
        self.log = log
        self.seq_id = seq_id
        self.late = late
        self.num_known = self._num_prompt = int(log.facts.request["prompt_tokens"])  # prompt + output
        self.num_computed = 0
        self.chunks: list[Chunk] = []  # of the prefill being told
        self.emitted: list[int] = []  # step of each token
        self.num_told = 0  # tokens that have a line
        self.num_first = 0 if late else 1  # tokens told by the line of the first token
        self.gaps_from = 0  # the first token since a preemption: the gap before it is told by the way back
        self.wait: Wait | None = None
        self.back: Return | None = None
        self.lookup: Row | None = None
        self.num_hits = 0  # blocks found in the cache by the admission being told
        self.host_hit_tokens = 0  # found in the host tier by it
        self.children: dict[str, int] = {}  # born in step ``born_step``: blocks each shares
        self.born_step = -1
        self.copies: list[Row] = []
        self.evictions: list[Row] = []
        self.victims: list[Row] = []  # preempted for this one
        self.switched: list[Row] = []  # own blocks given up for equal ones
        self.num_preemptions = self.lost_ns = self.lost_tokens = 0
        self.num_chosen = 0  # steps in which its group chose, a beam's tokens are in no other sense emitted
        self.restarts: list[Row] = []  # it was not chosen, and went on as a branch of another beam
        self.ended = False

    def say(self, kind: str, step: int | None, t_ns: int | None, said: Said) -> None:
        self.log.lines.append(Line(self.seq_id, t_ns, step, kind, *said))

    def take(self, row: Row) -> None:
        """Fold one decision of this sequence; after its end there are only its blocks to free."""
        if (handler := _HANDLERS.get(row["kind"])) and not self.ended:
            handler(self, row)

    # -- in ------------------------------------------------------------------------------------------------------

    def arrived(self, row: Row) -> None:
        t_ns = self.log.facts.request.get("t_submit_ns")
        self.say("arrived", row["step"], t_ns, lines.arrival(self.log.facts.request, row["num_tokens"]))
        self.wait = Wait(self.seq_id, row["step"], None, t_ns, None)

    def begin_late(self, row: Row) -> None:
        """The log begins with ``row``, after the arrival; a row of kind ``known`` says how things stood."""
        step, t_ns = row["step"], self.log.start(row["step"])
        text = "the log begins here: what came before is not in it"
        numbers: dict[str, Any] = {}
        if row["kind"] == "known":
            self.num_known, self.num_computed = row["known_tokens"], row["computed_tokens"]
            numbers = {"state": row["state"], "output_tokens": self.num_known - self._num_prompt}
            text += f"; {row['state']}, after {counted(numbers['output_tokens'], 'token')}"
            if row["state"] != "running":
                self.wait = Wait(self.seq_id, step, None, t_ns, None)
        self.say("log_begins", step, t_ns, (text, numbers))

    def rejected(self, row: Row) -> None:
        request, reason = self.log.facts.request, row.get("reason")
        text = rejection(reason, row["num_tokens"], str(request.get("error") or ""), self.log.facts.run)
        numbers = {"prompt_tokens": row["num_tokens"], "reason": reason}
        self.say("rejected", row["step"], request.get("t_submit_ns"), (text, numbers))
        self.ended = True

    def looked_up(self, row: Row) -> None:
        self.lookup = row

    def hit_in_host(self, row: Row) -> None:
        self.host_hit_tokens = row["num_tokens"]

    def shared(self, row: Row) -> None:
        if row["reason"] == "hit":
            self.num_hits += 1
        elif row["reason"] == "dedup":
            self.switched.append(row)

    def admitted(self, row: Row) -> None:
        step, lookup = row["step"], self.lookup
        self._end_wait(step)
        cached = (lookup["num_tokens"] or 0) if lookup else 0
        self.say("admitted", step, self.log.start(step), lines.admission(row, cached, self.num_hits))
        from_host, self.host_hit_tokens = self.host_hit_tokens, 0
        self.num_computed, self.num_hits = cached, 0
        if lookup is not None:
            reason, other, age = str(lookup["reason"]), lookup.get("other"), lookup.get("age_steps")
            size = self.log.facts.run.get("block_size_tokens")
            text = match_end(reason, cached, row["num_tokens"], other, age, size, from_host)
            numbers = {
                "cached_tokens": cached,
                "host_hit_tokens": from_host,
                "miss_reason": reason,
                "other": other,
                "evicted_steps_ago": age,
            }
            self.say("prefix", step, self.log.start(step), (text, numbers))

    def resumed(self, row: Row) -> None:
        self._end_wait(row["step"])
        if (back := self.back) is not None:
            back.resumed = row["step"]
            size = self.log.facts.run.get("block_size_tokens") or 0
            self.num_computed = back.restored = back.host_tokens or self.num_hits * size + self.host_hit_tokens
            self.gaps_from = len(self.emitted)
        self.num_hits = self.host_hit_tokens = 0

    def _end_wait(self, until_step: int | None, t_until_ns: int | None = None) -> None:
        """Tell the wait that ends at the start of ``until_step`` (None: that lasts to the end of what is known)."""
        wait, self.wait = self.wait, None
        if wait is None:
            return
        if t_until_ns is None and until_step is not None:
            t_until_ns = self.log.start(until_step)
        over = Wait(self.seq_id, wait.first_step, until_step, wait.t_from_ns, t_until_ns, wait.preempted)
        run = self.log.facts.run
        for told in tell(stretches(over, self.log.facts.steps, self.log.refusals), run):
            first = told.stretches[0]
            numbers = {"stretches": [s.as_json() for s in told.stretches]}
            self.say("waited", first.first_step, first.t_from_ns, (told.text, numbers))

    # -- running -------------------------------------------------------------------------------------------------

    def computed(self, row: Row) -> None:
        chunk = Chunk(row["step"], row["age_steps"] or 0, row["num_tokens"])
        if self.late:  # it may have emitted before
            self.num_known = max(self.num_known, chunk.end)
        back = self.back
        if back is not None and back.resumed is not None:
            if not back.num_chunks:
                back.restored = chunk.start
            back.num_chunks += 1
            back.recomputed += max(0, min(chunk.end, back.target) - chunk.start)
            if chunk.end > back.target:
                self._back_again(chunk.step)
                chunk = Chunk(chunk.step, max(chunk.start, back.target), min(chunk.count, chunk.end - back.target))
        if (back is None or self.back is None) and not self.emitted and chunk.start < self._num_prompt:
            self.chunks.append(chunk)
        self.num_computed = chunk.end
        if chunk.end == self.num_known:
            if not self.emitted:
                self._tell_prefill()
            self.emitted.append(chunk.step)
            self.num_known += 1

    def chosen(self, row: Row) -> None:
        """Its group of beams has chosen: one more token, and if it was waiting, from now on for room again."""
        self.num_known = row["num_tokens"]
        self.num_chosen += 1
        if self.wait is not None and self.wait.first_step <= row["step"]:
            step, t_ns = row["step"] + 1, self.log.done(row["step"])
            self._end_wait(step, t_ns)
            self.wait = Wait(self.seq_id, step, None, t_ns, None)

    def first_token(self, row: Row) -> None:
        t_ns, self.num_first = self.log.done(row["step"]), 1
        work = "search" if self.num_chosen else "prefill"
        self.say("first_token", row["step"], t_ns, lines.first_token(self.log.facts.request, t_ns, work))

    def _tell_prefill(self) -> None:
        chunks, self.chunks = self.chunks, []
        if chunks:
            self.say("prefill", chunks[0].step, self.log.start(chunks[0].step), lines.prefill(chunks))

    def _tell_part(self) -> None:
        """Everything since it began to run, or was back after a preemption."""
        self._tell_prefill()
        self._tell_blocks()
        begin, self.num_told = self.num_told, len(self.emitted)
        steps = self.emitted[max(begin, self.num_first) :]
        if self.num_chosen:
            if steps := self.emitted[begin:]:
                self.say("search", steps[0], self.log.done(steps[0]), lines.search(steps))
        elif steps:
            gaps = self._gaps(self.emitted[self.gaps_from :])
            busy = self.log.times.get(gaps.worst) if gaps.worst is not None else None
            said = lines.decode(steps, gaps, busy.prefill_tokens if busy else 0)
            self.say("decode", steps[0], self.log.done(steps[0]), said)

    def _gaps(self, steps: list[int]) -> Gaps:
        """Beams emit an answer at once: between its tokens there are none."""
        if self.num_chosen:
            return Gaps()
        return Gaps.between([(step, self.log.done(step)) for step in steps])

    # -- preempted and back --------------------------------------------------------------------------------------

    def preempted(self, row: Row) -> None:
        step, before = row["step"], self.back
        self._tell_part()
        if before is not None and before.resumed is not None:
            self._back_again(step, again=True)
        self.num_computed = max(self.num_computed, row["num_tokens"] or 0)
        host_tokens = 0 if row["num_tokens"] else self.num_computed
        self.num_preemptions += 1
        self.say("preempted", step, self.log.start(step), lines.preemption(row, self.seq_id, host_tokens))
        target = max(self.num_computed, before.target if before else 0)
        self.back = Return(step, target, str(row["other"]), host_tokens=host_tokens)
        self.num_computed = self.num_hits = self.host_hit_tokens = 0
        self.wait = Wait(self.seq_id, step, None, self.log.start(step), None, preempted=True)

    def _back_again(self, step: int, *, again: bool = False) -> None:
        """The way back is over, or cut short (``again``) in ``step``."""
        back = self.back
        assert back is not None
        assert back.resumed is not None
        away = minus(self.log.start(back.resumed), self.log.start(back.step))
        lost = minus(self.log.done(step), self.log.done(back.step))
        if not back.born:
            self.lost_ns += lost or 0
            self.lost_tokens += back.recomputed
        said = lines.way_back(back, away, lost, step, again=again)
        self.say("resumed", back.resumed, self.log.start(back.resumed), said)
        self.back = None

    # -- branches ------------------------------------------------------------------------------------------------

    def bear(self, child: Life, step: int) -> None:
        """``child`` is a new branch: it begins with this one's tokens, and waits until a block is given to it."""
        self._begins(step)
        self.children[child.seq_id] = 0
        child.emitted, child.num_told = self.emitted[-1:], 1
        # Forked from outside it is born before its step is scheduled.
        self._hand_on(child, step, step + 1 if self.emitted[-1:] == [step] else step)
        if child.seq_id == self.log.facts.name:
            output = self.num_known - self._num_prompt
            text = f"branches off {self.seq_id}, with {counted(output, 'token')} of output so far"
            child.say("born", step, self.log.done(step), (text, {"parent": self.seq_id, "output_tokens": output}))

    def take_in(self, child: Life, step: int) -> None:
        """``child`` is a beam that was not chosen: it goes on as a branch of this one."""
        self._begins(step)
        child.restarts.append({"step": step, "other": self.seq_id})
        if child.wait is not None:
            child._end_wait(step + 1, self.log.done(step))
        if child.back is not None and child.back.resumed is not None:
            child._back_again(step, again=True)
        self._hand_on(child, step, step + 1)

    def _begins(self, step: int) -> None:
        if self.born_step != step:
            self._tell_children()
            self.born_step = step

    def _hand_on(self, child: Life, step: int, first: int) -> None:
        """``child`` knows what this one knows, and waits from step ``first`` on until a block is given to it."""
        child.num_known = self.num_known
        child.back = Return(first, self.num_computed, born=True)
        child.wait = Wait(child.seq_id, first, None, self.log.done(step), None)

    def adopt(self, child: Life, row: Row) -> None:
        """``child`` was given a block in the step it was born in, so it runs."""
        if row["step"] == self.born_step and child.back is not None and child.back.resumed is None:
            if child.seq_id in self.children:
                self.children[child.seq_id] += 1
            child.wait, child.num_computed = None, child.back.target

    def _tell_children(self) -> None:
        if self.children:
            said = lines.branches(self.children)
            self.say("branched", self.born_step, self.log.done(self.born_step), said)
        self.children = {}

    # -- blocks --------------------------------------------------------------------------------------------------

    def copied(self, row: Row) -> None:
        self.copies.append(row)

    def evicted(self, row: Row) -> None:
        owner = row["owner"] if "owner" in row else self.log.publisher.get(row["block"])
        self.evictions.append({**row, "owner": owner})

    def _tell_blocks(self) -> None:
        """Branches, copies, evictions, victims and switched blocks of the part of a life that is over."""
        log = self.log
        self._tell_children()
        for row in self.copies:
            self.say("copied", row["step"], log.start(row["step"]), lines.copy(row))
        if rows := self.restarts:
            said = lines.restarts(rows)
            self.say("restarted", rows[0]["step"], log.done(rows[0]["step"]), said)
        if rows := self.switched:
            text = f"{counted(len(rows), 'block')} computed by somebody else too: switched to the one published first"
            self.say("deduplicated", rows[0]["step"], log.done(rows[0]["step"]), (text, {"blocks": len(rows)}))
        if rows := self.evictions:
            missed = [(who, step) for who, step in log.missed.get(self.seq_id, []) if step >= rows[0]["step"]]
            said = lines.evictions(rows, self.seq_id, missed)
            self.say("evicted", rows[0]["step"], log.start(rows[0]["step"]), said)
        if rows := self.victims:
            self.say("displaced", rows[0]["step"], log.start(rows[0]["step"]), lines.displaced(rows))
        self.copies, self.switched, self.evictions, self.victims, self.restarts = [], [], [], [], []

    # -- out -----------------------------------------------------------------------------------------------------

    def finished(self, row: Row) -> None:
        step, request, waiting = row["step"], self.log.facts.request, self.wait is not None
        self._tell_part()
        aborted = row["kind"] == "aborted"
        before = aborted or (waiting and not self.num_chosen)  # beams end with their group, where they are
        t_ns = self.log.start(step) if before else self.log.done(step)
        if (request.get("n") or 1) == 1 and self.seq_id == request["request_id"] and request.get("t_done_ns"):
            t_ns = request["t_done_ns"]
        self._end_wait(step, t_ns)
        if self.back is not None and self.back.resumed is not None:
            self._back_again(step, again=True)
        reason = "aborted" if aborted else str(row["reason"])
        text = ending(reason, row["num_tokens"] or 0, request, self.log.facts.run)
        e2e = minus(t_ns, request.get("t_sched_ns"))
        text += " while it waited" if waiting else ""
        text += f", E2E {format_ns(e2e)}" if e2e is not None else ""
        if self.num_preemptions:
            tokens = f"; {counted(self.lost_tokens, 'token')} computed again" if self.lost_tokens else ""
            text += f", of which {format_ns(self.lost_ns)} lost to "
            text += counted(self.num_preemptions, "preemption") + tokens
            text += " since the log begins" if self.late else ""
        numbers: dict[str, Any] = {"reason": reason, "output_tokens": row["num_tokens"] or 0, "e2e_ns": e2e}
        numbers |= {"state": "waiting" if waiting else "running", **self._gaps(self.emitted).as_json()}
        numbers |= {"num_preemptions": self.num_preemptions, "lost_ns": self.lost_ns}
        numbers["lost_tokens"] = self.lost_tokens
        self.say("ended", step, t_ns, (text, numbers))
        self.ended = True

    def close(self) -> None:
        """The log ends while the sequence lives: cut off by the end of the run, or the run goes on."""
        if self.ended:
            return
        steps, waiting = self.log.facts.steps, self.wait is not None
        last = steps[-1] if steps else None
        self._tell_part()
        self._end_wait(None, last.t_done_ns if last else None)
        if last is not None and self.back is not None and self.back.resumed is not None:
            self._back_again(last.step, again=True)
        state = "waiting" if waiting else "running"
        status = self.log.facts.run.get("status")
        going_on = status in (None, "running")
        text = f"{state} now" if going_on else f"cut off by the end of the run while {state}"
        text = f"the log breaks off here, events were dropped: {state}" if status == DROPPED else text
        output = self.num_known - self._num_prompt
        said = f"{text}, after {counted(output, 'token')}", {"output_tokens": output, "state": state}
        self.say("now" if going_on else "cut_off", last.step if last else None, last.t_done_ns if last else None, said)


_HANDLERS: dict[str, Callable[[Life, Row], None]] = {
    "arrived": Life.arrived,
    "rejected": Life.rejected,
    "lookup": Life.looked_up,
    "host_hit": Life.hit_in_host,
    "share": Life.shared,
    "admitted": Life.admitted,
    "resumed": Life.resumed,
    "chunk": Life.computed,
    "chosen": Life.chosen,
    "first_token": Life.first_token,
    "preempted": Life.preempted,
    "copy": Life.copied,
    "evict": Life.evicted,
    "finished": Life.finished,
    "aborted": Life.finished,
}
