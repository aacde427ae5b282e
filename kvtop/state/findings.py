"""Findings: what is wrong with a run, if something is. Each rule says what it saw and where that can be looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvtop.state import attached_findings
from kvtop.state.model import FRESH, IDLE, RunState
from kvtop.state.windows import recent_hits, recent_steps, runway, step_columns, waiting_by_reason
from kvtop.workloads.words import counted, was

WINDOW_NS = 60_000_000_000
MOST = 3
MIN_LOOKUPS = 10
SPIKE = 3  # times the median step


@dataclass(frozen=True, slots=True)
class Finding:
    """``weight`` 0..1 orders findings. ``lead``: kind and id of the evidence, for ``app.select``."""

    rule: str
    weight: float
    text: str
    lead: tuple[str, str | int] | None = None


Rule = Callable[[RunState], Finding | None]


def findings(state: RunState) -> list[Finding]:
    """The most weighty ones, at most ``MOST``."""
    if state.attached is not None:
        found = [Finding(*told) for rule in attached_findings.RULES if (told := rule(state)) is not None]
    else:
        found = [finding for rule in RULES.values() if (finding := rule(state)) is not None]
    return sorted(found, key=lambda finding: (-finding.weight, finding.rule))[:MOST]


def _evicted_then_wanted(state: RunState) -> Finding | None:
    """Tokens missed because their block had been evicted: at least a fifth of all missed tokens."""
    hits = recent_hits(state)
    lost = hits.missed.get("evicted", 0)
    if hits.num_lookups < MIN_LOOKUPS or lost * 5 < hits.missed_tokens or not lost:
        return None
    share = lost / hits.missed_tokens
    last = next(request for _, _, _, reason, request in reversed(state.lookups.points) if reason == "evicted")
    what = f"{100 * share:.0f} % of missed prompt tokens ({lost:,})"
    text = f"{what} had been in the cache and were evicted: a larger pool keeps them"
    return Finding("evicted-then-wanted", share, text, ("request", last))


def _prefill_spikes(state: RunState) -> Finding | None:
    """Steps that decode and take more than SPIKE times the median: mostly those that also compute prompts."""
    history = state.history
    count = recent_steps(history, state.t_ns, WINDOW_NS)
    rows = list(step_columns(history, count))
    times = sorted(row[5] for row in rows if row[1])
    if len(times) < 50:
        return None
    limit = SPIKE * times[len(times) // 2]
    spikes = [i for i, row in enumerate(rows) if row[1] and row[5] > limit]
    blamed = [i for i in spikes if rows[i][0]]
    if len(spikes) < 5 or len(blamed) * 2 < len(spikes):
        return None
    worst = max(blamed, key=lambda i: rows[i][5])
    tokens = rows[worst][0]
    text = (
        f"{len(blamed):,} of {len(spikes):,} ITL spikes (over {SPIKE}x the median step) share a step with prompt "
        f"tokens (up to {tokens:,}): a smaller token budget flattens them"
    )
    return Finding(
        "prefill-interference", len(spikes) / len(times) + 0.2, text, ("step", history.step[worst - len(rows)])
    )


def _preemptions(state: RunState) -> Finding | None:
    """Any preemption within the window, with what it threw away."""
    history = state.history
    count = recent_steps(history, state.t_ns, WINDOW_NS)
    rows = list(step_columns(history, count))
    hit = [i for i, row in enumerate(rows) if row[3]]
    if not hit:
        return None
    number = sum(rows[i][3] for i in hit)
    again, computed = state.totals.get("recomputed_tokens", 0), state.totals.get("computed_tokens", 0)
    share = again / (again + computed) if again else 0.0
    what = f"{counted(number, 'preemption')} in the last minute"
    text = f"{what}; {counted(again, 'token')} computed again ({100 * share:.1f} % of all)" if again else what
    return Finding("preemptions", min(1.0, 0.3 + share * 5), text, ("step", history.step[hit[-1] - len(rows)]))


def _seats(state: RunState) -> Finding | None:
    """The head of the queue waits for a seat while most of the pool could be had."""
    pool = state.pool
    if pool is None:
        return None
    rows = {row.reason: row for row in waiting_by_reason(state)}
    free = pool.counts[FRESH] + pool.counts[IDLE]
    if "seats" not in rows or free * 2 < pool.num_blocks:
        return None
    waiting = sum(row.count for row in rows.values())
    what = f"{waiting:,} wait because all seats are taken, with {100 * free / pool.num_blocks:.0f} % of the pool free"
    text = f"{what}: raise --max-num-seqs"
    return Finding("seats-before-blocks", 0.6, text, ("request", rows["seats"].oldest))


def _tail_waste(state: RunState) -> Finding | None:
    """A seventh of the slots of used blocks hold nothing."""
    step = state.last_step
    if step is None or not step.used_blocks:
        return None
    share = step.reserved_unused_slots / max(1, step.filled_slots + step.reserved_unused_slots)
    if share < 1 / 7 or state.manifest.get("allocator", "paged") not in (None, "paged"):
        return None
    size = state.pool.block_size if state.pool else 0
    return Finding(
        "tail-waste",
        share,
        f"{100 * share:.0f} % of the slots of used blocks are empty: blocks of {counted(size, 'token')} are large here",
    )


def _short_runway(state: RunState) -> Finding | None:
    """Used blocks grow, and the reclaimable ones last less than five seconds."""
    ahead = runway(state)
    if ahead is None or ahead.ns is None or ahead.ns > 5e9 or ahead.victim is None:
        return None
    text = f"next preemption in {ahead.ns / 1e9:.1f} s at this pace: {ahead.victim} would lose its blocks"
    return Finding("short-runway", 0.5, text, ("request", ahead.victim))


def _dropped(state: RunState) -> Finding | None:
    if not state.events_dropped:
        return None
    events = f"{counted(state.events_dropped, 'event')} {was(state.events_dropped)}"
    return Finding("events-dropped", 1.0, f"{events} dropped: this screen was too slow for the engine")


RULES: dict[str, Rule] = {
    "events-dropped": _dropped,
    "evicted-then-wanted": _evicted_then_wanted,
    "prefill-interference": _prefill_spikes,
    "preemptions": _preemptions,
    "seats-before-blocks": _seats,
    "short-runway": _short_runway,
    "tail-waste": _tail_waste,
}


def rules() -> Iterator[tuple[str, str]]:
    """Name and meaning of every rule that has one to tell."""
    for name, rule in RULES.items():
        if rule.__doc__:
            yield name, rule.__doc__
    for rule in attached_findings.RULES:
        yield f"attached: {rule.__name__.replace('_', '-')}", rule.__doc__ or ""
