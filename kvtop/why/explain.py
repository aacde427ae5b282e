"""``explain``: a request's life in plain words, from its facts alone."""

from __future__ import annotations

from kvtop.why.facts import Facts, Row, owner_of
from kvtop.why.life import Life
from kvtop.why.lines import Line
from kvtop.why.log import Log
from kvtop.why.waits import Refusal


def explain(facts: Facts) -> list[Line]:
    """The lines of a request and its branches, or of one branch, in order of time.

    Pure: the same facts give the same lines, whether they come from tables or from a running engine.
    Complexity: O(decisions + steps waited).
    """
    log = Log(facts, {step.step: step for step in facts.steps}, _missed(facts))
    lives: dict[str, Life] = {}
    parents: dict[str, Life] = {}
    for row in facts.decisions:
        seq_id = str(row.get("request_id"))
        _note(log, row, seq_id)
        if (life := _life_of(log, lives, parents, row, seq_id)) is not None:
            life.take(row)
        if row["kind"] == "preempted" and row["other"] in lives and row["other"] != seq_id:
            lives[str(row["other"])].victims.append(row)
    for life in lives.values():
        life.close()
    lines = log.lines if facts.name == facts.request_id else [x for x in log.lines if x.seq_id == facts.name]
    return sorted(lines, key=lambda line: line.t_ns if line.t_ns is not None else -1)


def _missed(facts: Facts) -> dict[str, list[tuple[str, int]]]:
    """Lookups that missed an evicted block, by the one it was evicted for."""
    missed: dict[str, list[tuple[str, int]]] = {}
    for row in facts.decisions:
        if row["kind"] == "lookup" and row["reason"] == "evicted":
            missed.setdefault(str(row["other"]), []).append((str(row["request_id"]), row["step"]))
    return missed


def _note(log: Log, row: Row, seq_id: str) -> None:
    """Keep what others did and this request's lines need: refusals, table lengths, who published what."""
    kind = row["kind"]
    if kind in ("alloc", "share"):
        log.held[seq_id] += 1
    elif kind == "free":
        log.held[seq_id] -= 1
    elif kind == "publish":
        log.publisher[row["block"]] = seq_id
    elif kind == "skipped":
        other = row.get("other")
        held = row["held_blocks"] if "held_blocks" in row else log.held[str(other)]
        held = held if held and held > 0 else None
        refusal = Refusal(row["step"], row["reason"], other, row.get("need_blocks"), row.get("have_blocks"), held)
        log.refusals.setdefault(seq_id, []).append(refusal)


def _life_of(log: Log, lives: dict[str, Life], parents: dict[str, Life], row: Row, seq_id: str) -> Life | None:
    """The life a decision belongs to; begins it where it begins."""
    request_id, kind = log.facts.request_id, row["kind"]
    if owner_of(seq_id, (request_id,)) is None:
        return None
    if kind in ("arrived", "rejected") and seq_id == request_id:
        lives[seq_id] = Life(log, seq_id)
    elif kind == "forked" and (parent := lives.get(str(row["other"]))) is not None:
        lives[seq_id], parents[seq_id] = Life(log, seq_id), parent
        parent.bear(lives[seq_id], row["step"])
    elif kind == "restarted" and seq_id in lives and (parent := lives.get(str(row["other"]))) is not None:
        parents[seq_id] = parent
        parent.take_in(lives[seq_id], row["step"])
    elif kind in ("alloc", "share") and seq_id in parents:
        parents[seq_id].adopt(lives[seq_id], row)
    elif seq_id not in lives:
        lives[seq_id] = life = Life(log, seq_id, late=True)
        life.begin_late(row)
    return lives.get(seq_id)
