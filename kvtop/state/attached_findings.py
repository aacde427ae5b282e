"""Findings about attached servers: what cannot be trusted, and what their own counters say is wrong."""

from __future__ import annotations

from kvtop.state.attached import WINDOW_NS, growth
from kvtop.state.attached_sums import added_gauge, together, used_share
from kvtop.state.model import RunState
from kvtop.workloads.words import counted

Found = tuple[str, float, str]
"""Rule, weight 0..1, text."""


def server_silent(state: RunState) -> Found | None:
    """A server does not answer as it should: what is shown of it is old."""
    for server in state.attached.servers.values() if state.attached is not None else ():
        if server.problem:
            ok_ns = server.t_ok_ns
            last = "no good answer so far" if ok_ns is None else f"last good {(state.t_ns - ok_ns) / 1e9:.0f} s ago"
            return "server-silent", 1.0, f"{server.name}: {server.problem} ({last})"
    return None


def events_missing(state: RunState) -> Found | None:
    """Nothing that can be read comes from an endpoint of KV events that was asked for."""
    troubles = state.attached.troubles if state.attached is not None else {}
    for endpoint, problem in troubles.items():
        return "kv-endpoint", 0.95, f"{endpoint}: {problem}"
    return None


def gauges_stand_still(state: RunState) -> Found | None:
    """Requests are said to run, but for several looks no counter and no gauge has changed."""
    for server in state.attached.servers.values() if state.attached is not None else ():
        for engine in server.engines.values():
            if engine.stands_still:
                running = engine.last.gauges.get("running", 0)
                text = f"{server.name}: {running:.0f} requests run, but nothing has changed in {engine.num_still} looks"
                return "gauges-stand-still", 0.9, f"{text}: its gauges may be left over"
    return None


def events_partial(state: RunState) -> Found | None:
    """KV events were lost, or kvtop listened too late: the tree is not all there is."""
    partial = state.attached.partial if state.attached is not None else ""
    return ("kv-events-partial", 0.7, f"the prefix tree is partial: {partial}") if partial else None


def server_preempts(state: RunState) -> Found | None:
    """The server's preemption counter has grown within the last minute."""
    attached = state.attached
    if attached is None:
        return None
    found = together(
        attached, ("preemptions",), lambda engine, name: (growth(engine, name, state.t_ns, WINDOW_NS) or (None,))[0]
    )
    if not found.value:
        return None
    count = f"{counted(round(found.value), 'preemption')} in the last minute{_of(found.part)}"
    return "preemptions", 0.5, f"{count}: the pool is too small for what runs"


def pool_nearly_full(state: RunState) -> Found | None:
    """Nearly all blocks are in use while requests wait."""
    attached = state.attached
    if attached is None:
        return None
    share, waiting = used_share(attached), added_gauge(attached, "waiting")
    if share.value is None or not waiting.value or share.value < 0.95:
        return None
    full = f"{100 * share.value:.0f} % of the blocks are in use{_of(share.part)}"
    return "pool-full", 0.6, f"{full} and {waiting.value:.0f} requests wait{_of(waiting.part)}"


def _of(part: str) -> str:
    return f" (partial: {part})" if part else ""


RULES = (server_silent, events_missing, gauges_stand_still, events_partial, server_preempts, pool_nearly_full)
