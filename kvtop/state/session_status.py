"""How a session stands, in a word: of attached servers also whether anybody answers."""

from __future__ import annotations

from kvtop.engine.events import EngineSample
from kvtop.state.attached import Attached
from kvtop.state.attached_reading import no_events
from kvtop.state.model import RunState

CONNECTING, NO_ANSWER, STALE = "connecting", "no_answer", "stale"
NOT_LOADED = "starting: its model is not loaded yet"  # the problem of a server of kvtop's that has no figures so far


def has_answered(attached: Attached) -> bool:
    """Some server has answered as it should, or some KV event has come."""
    return bool(attached.streams) or any(server.t_ok_ns is not None for server in attached.servers.values())


def status_of(state: RunState) -> str:
    """``state.status``. While servers are looked at also ``connecting`` (nothing is known of any yet, or only that
    kvtop's load their models), ``no_answer`` (none ever has) or ``stale`` (one that did does so no longer)."""
    attached = state.attached
    if attached is None or state.status != "running":
        return state.status
    servers = attached.servers.values()
    if any(server.t_ok_ns is not None for server in servers) or (attached.streams and not servers):
        return STALE if attached.is_stale(state.t_ns) else state.status
    problems = {server.problem for server in servers} if servers else set(attached.troubles)
    return NO_ANSWER if problems - {"", NOT_LOADED} else CONNECTING


def tells_simulated(engine: EngineSample) -> bool:
    """Whether a server of kvtop's says that its times come from no real model."""
    return engine.info.get("simulated") == "True"


def is_simulated(state: RunState) -> bool:
    """Whether times come from no real model: executors ``sim`` and ``null``, a manifest that says so, or a server."""
    if state.attached is not None:
        return any(tells_simulated(engine.last) for engine in state.attached.engines)
    return bool(state.manifest.get("simulated")) or state.manifest.get("executor") in ("sim", "null")


def told_elsewhere(state: RunState) -> dict[str, str]:
    """Why figures are missing, where a server or an endpoint says so itself -> what each of the figures says."""
    attached = state.attached
    if attached is None:
        return {}
    problems = [server.problem for server in attached.servers.values() if server.t_ok_ns is None]
    found = {problem: "it is starting" if problem == NOT_LOADED else "no answer" for problem in problems}
    if attached.troubles and (why := no_events(state)):
        found[why] = "no KV events"
    found.pop("", None)
    return found
