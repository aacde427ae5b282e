"""How a figure of attached servers is told: with how true it is, or what is missing.

    exact      a gauge or counter of the server's, as it stood at the last look
    bucket     between two bounds of a histogram: a range, never a point
    lookups    the same as exact, but a share of lookups where an engine of our own tells one of tokens
    events     from the blocks that were stored and removed
    estimate   worked out from the above
    n/a        not reported, and what would report it

A server that has not answered lately makes all figures ``stale``; lost events make theirs ``partial``. A sum that some
engines or servers are not in is ``partial: 2 of 3 engines``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from kvtop.state.attached import Attached
from kvtop.state.attached_sums import Sum
from kvtop.state.model import RunState

NO_KV = "give kvtop --kv-events (the server: --kv-events-config)"
NO_KV_OF_KVTOP = "kvtop's own server publishes no KV events (it shows every block itself: serve-api --tui)"
NO_EVENT = "no KV event yet (has the server --kv-events-config?)"
NO_REFS = "servers do not report it: neither metrics nor events name owners or references"
NO_FREE = "servers do not report it: what is cached cannot be told from what is free"
TWO_LOOKS = "two looks are needed"
TWO_USAGES = "usage and pool size are needed, twice"
NO_GROWTH = "used blocks do not grow"
NO_CAUSE = "servers do not report why a match ended"
NOT_REPORTED = "servers do not report it"
NO_NUMBER = "what servers report makes no finite number"
NO_STEP = "kvtop's server tells it from its first step on"


class Reading(NamedTuple):
    """``value`` None: not reported, and ``missing`` says why. ``lo``, ``hi``: ends of a bucket (``hi`` None: above).

    ``by``: what ``value`` is the sum of, where the server tells, by name: ``(("no_blocks", 3.0),)``.
    """

    value: float | str | None
    truth: str
    lo: float | None = None
    hi: float | None = None
    missing: str = ""
    is_estimate: bool = False
    by: tuple[tuple[str, float], ...] = ()


Read = Callable[[Attached, RunState], Reading]


class Figure(NamedTuple):
    """How a number is read of attached servers, and where from.

    ``sources``: what it is from, by the names of ``attach.metric_names``; of several rows, the first that a server
    tells whole. ``formula``: what is told, where that is not what ``state.numbers`` says.
    """

    read: Read
    sources: tuple[tuple[str, ...], ...] = ()
    formula: str = ""


def missing(why: str) -> Reading:
    """A figure that is not reported, and why."""
    return Reading(None, "n/a", missing=why)


def doubtful(found: Reading, truth: str, why: str) -> Reading:
    """``found`` of answers that are no longer true; what is worked out from them is nothing."""
    if found.is_estimate:
        return missing(why)
    return found._replace(truth=f"{truth}, {found.truth}" if found.truth.startswith("partial") else truth)


def range_text(low: float, high: float | None) -> str:
    """``<=300 ms``, ``1-2.5 s``, ``>60 s``: ends of a bucket, in ns, as the server has chosen them."""
    scale, unit = (1e9, "s") if (high if high is not None else low) >= 1e9 else (1e6, "ms")
    if high is None:
        return f">{low / scale:g} {unit}"
    return f"{low / scale:g}-{high / scale:g} {unit}" if low else f"<={high / scale:g} {unit}"


def no_events(state: RunState) -> str:
    """Why nothing is known from KV events ("": some have come)."""
    if state.attached is None or state.attached.kv_since_ns is not None:
        return ""
    if troubles := state.attached.troubles:
        return "; ".join(f"{endpoint}: {problem}" for endpoint, problem in troubles.items())
    if state.manifest.get("kv_events"):
        return NO_EVENT
    kinds = {server.kind for server in state.attached.servers.values()}
    return NO_KV_OF_KVTOP if kinds == {"kvtop"} else NO_KV


def problem(attached: Attached, name: str) -> str:
    """Why nothing says ``name``."""
    for server in attached.servers.values() if not attached.engines else ():
        if server.t_ok_ns is None:
            return server.problem or "no answer yet"
    if not attached.servers:
        return "give kvtop the server's URL, too"
    broken = next((engine.last.broken[name] for engine in attached.engines if name in engine.last.broken), None)
    return f"the server says {broken}" if broken is not None else "the server does not report it"


def never(why: str) -> Figure:
    """Of a figure that no server reports."""
    return Figure(lambda attached, state: missing(why))


def unless_own(attached: Attached, name: str, why: str) -> str:
    """Why nothing says ``name``, which only kvtop's own servers do: ``why``, of others.

    Of a server that has not answered yet nobody knows whether it reports it.
    """
    if attached.servers and not attached.engines and why in (NO_FREE, NO_REFS, NO_CAUSE, NOT_REPORTED):
        return problem(attached, name)
    kinds = {server.kind for server in attached.servers.values()}
    is_broken = any(name in engine.last.broken for engine in attached.engines)
    return problem(attached, name) if is_broken else NO_STEP if kinds == {"kvtop"} else why


def exact(found: Sum, attached: Attached, name: str) -> Reading:
    """A sum of what engines report as ``name``."""
    if found.value is None:
        return missing(found.problem or problem(attached, name))
    return truly(found.value, "exact", found.part)


def truly(value: float, truth: str, part: str) -> Reading:
    """``value`` with its truth: ``partial: 2 of 3 engines`` where some are not in it."""
    if not math.isfinite(value):
        return missing(NO_NUMBER)
    return Reading(value, f"partial: {part}" if part else truth, is_estimate=truth == "estimate")
