"""What kvtop's own servers tell of themselves at /metrics and no other does: blocks by state, slots, causes of misses.

Of vLLM and SGLang the same numbers are not reported, or known from KV events, or worked out from a share.
"""

from __future__ import annotations

from collections.abc import Callable

from kvtop.engine.types import MissReason
from kvtop.state.attached import Attached
from kvtop.state.attached_reading import (
    NO_CAUSE,
    NO_FREE,
    NO_REFS,
    NOT_REPORTED,
    TWO_LOOKS,
    Figure,
    Reading,
    exact,
    missing,
    no_events,
    truly,
    unless_own,
)
from kvtop.state.attached_sums import Sum, added_counter, added_gauge, added_growth, labels_of
from kvtop.state.model import RunState

ENDS = "lookup_ends/"
BY_LOOKUPS = "prefix lookups whose match ended for this reason / all lookups"
STEPS_NS = 5_000_000_000
BY_STEPS = "time in steps / steps, of the last 5 s: a mean"


def told(found: Sum, attached: Attached, name: str, why: str) -> Reading:
    """A whole number that only kvtop's own servers tell."""
    reading = exact(found, attached, name)
    if found.value is None:
        return missing(found.problem or unless_own(attached, name, why))
    return reading._replace(value=round(found.value))


def parts(attached: Attached, family: str) -> tuple[tuple[str, float], ...]:
    """The figures of ``family`` by their label, largest first: those that are not 0."""
    found = [(name, added_gauge(attached, name).value or added_counter(attached, name).value or 0.0)
             for name in labels_of(attached, family)]  # fmt: skip
    named = [(name.removeprefix(family), round(value)) for name, value in found if value]
    return tuple(sorted(named, key=lambda part: (-part[1], part[0])))


def _gauge(name: str, why: str) -> Figure:
    return Figure(lambda attached, state: told(added_gauge(attached, name), attached, name, why), ((name,),))


def _counter(name: str) -> Figure:
    return Figure(lambda attached, state: told(added_counter(attached, name), attached, name, NOT_REPORTED), ((name,),))


def _fill(attached: Attached, state: RunState) -> Reading:
    found = added_gauge(attached, "slots/filled", "slots/empty")
    if found.values is None:
        gone = next((n for n in ("slots/filled", "slots/empty") if added_gauge(attached, n).value is None), "")
        return missing(unless_own(attached, gone, NOT_REPORTED))
    filled, empty = found.values
    return truly(filled / (filled + empty), "exact", found.part) if filled + empty else missing("no block is used")


def _of_events(name: str, fallback: Callable[[Attached, RunState], float | str]) -> Figure:
    """By the server's own counter ``name``; else what ``fallback`` counts in KV events (a text: why it does not)."""

    def read(attached: Attached, state: RunState) -> Reading:
        found = added_counter(attached, name)
        if found.value is not None:
            return told(found, attached, name, "")._replace(by=parts(attached, f"{name}/"))
        if why := no_events(state):
            return missing(unless_own(attached, name, why))
        value = fallback(attached, state)
        return missing(value) if isinstance(value, str) else Reading(value, "partial" if attached.partial else "events")

    return Figure(read, ((name,),))


def _removed(attached: Attached, state: RunState) -> float:
    return attached.num_removed


def _wanted_again(attached: Attached, state: RunState) -> float | str:
    """Tokens of blocks that the rank which had evicted them stored again."""
    return "what was wanted again until then is not kept any more" if state.cache.is_cut else state.cache.regret_tokens


def _dropped(attached: Attached, state: RunState) -> Reading:
    """Events that the server's own counters lack; of others, messages of KV events that were lost."""
    found = added_counter(attached, "events_dropped")
    if found.value is not None:
        return told(found, attached, "events_dropped", "")
    if why := no_events(state):
        return missing(unless_own(attached, "events_dropped", why))
    return Reading(sum(stream.num_lost for stream in attached.streams.values()), "events")


def _step(attached: Attached, state: RunState) -> Reading:
    names = ("step_seconds", "steps")
    gone = next((name for name in names if added_counter(attached, name).value is None), "")
    if gone:
        return missing(unless_own(attached, gone, NOT_REPORTED))
    found = added_growth(attached, names, state.t_ns, STEPS_NS)
    if found.values is None:
        return missing(found.problem or TWO_LOOKS)
    seconds, steps = found.values
    return truly(seconds / steps * 1e9, "estimate", found.part) if steps > 0 else missing("no step in the window")


def _missed(reason: str) -> Figure:
    """Of the lookups of the last minute, those that ended for ``reason``."""

    def read(attached: Attached, state: RunState) -> Reading:
        name, ends = f"{ENDS}{reason}", labels_of(attached, ENDS)
        if name not in ends:
            return missing(unless_own(attached, name, NO_CAUSE))
        found = added_growth(attached, tuple(ends), state.t_ns)
        if found.values is None:
            return missing(TWO_LOOKS)
        lookups = sum(found.values)
        if lookups <= 0:
            return missing("no lookups in the window")
        return truly(found.values[ends.index(name)] / lookups, "lookups", found.part)

    return Figure(read, ((ENDS,),), BY_LOOKUPS)


OWN: dict[str, Figure] = {
    "pool.shared_blocks": _gauge("shared_blocks", NO_REFS),
    "pool.idle_blocks": _gauge("blocks/idle", NO_FREE),
    "pool.fresh_blocks": _gauge("blocks/fresh", NO_FREE),
    "pool.in_transfer_blocks": _gauge("blocks/in_transfer", NOT_REPORTED),
    "pool.withheld_blocks": _gauge("blocks/withheld", NO_REFS),
    "pool.token_fill": Figure(_fill, (("slots/filled", "slots/empty"),)),
    "pool.tail_waste_slots": _gauge("slots/empty", NOT_REPORTED),
    **{f"cache.missed_{reason}": _missed(reason) for reason in MissReason},
    "cache.evictions": _of_events("evictions", _removed),
    "cache.regretted_tokens": _of_events("regretted_tokens", _wanted_again),
    "throughput.step_ns": Figure(_step, (("step_seconds", "steps"),), BY_STEPS),
    "run.recomputed_tokens": _counter("recomputed_tokens"),
    "run.copies": _counter("copies"),
    "run.events_dropped": Figure(_dropped, (("events_dropped",),)),
}
"""By name of the number."""
