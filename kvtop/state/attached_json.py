"""Attached servers as JSON: numbers with their truth, servers with their engines, ranks of KV events.

What only kvtop's own servers tell is there as they tell it, since their start: ``told`` of each engine.
"""

from __future__ import annotations

from kvtop.engine.events import EngineSample
from kvtop.state.attached import Attached, capacity
from kvtop.state.attached_numbers import figure, read_number
from kvtop.state.model import RunState
from kvtop.state.session_status import tells_simulated


def to_json(state: RunState, names: list[str]) -> dict[str, dict[str, object]]:
    """Each number with its truth; ``lo`` and ``hi`` of a range (``hi`` null: above ``lo``), what is missing.

    ``by``: what it is the sum of, where servers tell; ``formula`` where it is not that of an engine of our own.
    """
    found: dict[str, dict[str, object]] = {}
    for name in names:
        reading = read_number(state, name)
        found[name] = {"value": reading.value, "truth": reading.truth}
        if reading.lo is not None:
            found[name] |= {"value": None, "lo": reading.lo, "hi": reading.hi}
        if reading.missing:
            found[name]["missing"] = reading.missing
        if reading.by:
            found[name]["by"] = dict(reading.by)
        if reading.value is not None and (formula := figure(name).formula):
            found[name]["formula"] = formula
    return found


def servers_json(state: RunState) -> list[dict[str, object]]:
    """Each server and its engines: which answer, how old it is, what each reports of its own pool and queue."""
    attached = state.attached
    assert attached is not None, "the run is not attached"
    return [
        {
            "server": server.name,
            "kind": server.kind or None,
            "problem": server.problem or None,
            "age_ns": None if server.t_ok_ns is None else max(0, state.t_ns - server.t_ok_ns),
            "engines": [
                {
                    "engine": engine.last.engine or None,
                    "model": engine.last.model or None,
                    "used_share": engine.last.gauges.get("usage"),
                    "num_blocks": capacity(engine),
                    "running": engine.last.gauges.get("running"),
                    "waiting": engine.last.gauges.get("waiting"),
                    "restarts": engine.num_restarts,
                    "stands_still": engine.stands_still,
                    "simulated": tells_simulated(engine.last),
                    "told": _told(engine.last),
                }
                for engine in server.engines.values()
            ],
        }
        for server in attached.servers.values()
    ]


def _told(sample: EngineSample) -> dict[str, dict[str, float]]:
    """Figures that come one for each value of a label, as they stand there: ``{"blocks": {"used": 3}}``."""
    found: dict[str, dict[str, float]] = {}
    for name, value in (sample.gauges | sample.counters).items():
        family, slash, label = name.partition("/")
        if slash:
            found.setdefault(family, {})[label] = value
    return found


def streams_json(attached: Attached) -> list[dict[str, object]]:
    """Each rank whose KV events are followed: how far, what is missing."""
    return [
        {
            "endpoint": stream.source,
            "rank": stream.rank,
            "sequence": stream.last_seq if stream.last_seq >= 0 else None,
            "messages": stream.num_messages,
            "lost": stream.num_lost,
            "replayed": stream.num_replayed,
            "cached_blocks": stream.num_cached,
            "tiers": stream.tiers,
            "coverage": None if not stream.num_cached else 1 - stream.num_orphans / stream.num_cached,
            "partial": stream.partial or None,
            "lag_ns": stream.lag_ns,
        }
        for stream in attached.streams.values()
    ]
