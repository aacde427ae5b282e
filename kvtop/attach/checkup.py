"""What ``kvtop doctor`` looks at: each thing kvtop can show, whether a server reports it, and what would make it."""

from __future__ import annotations

import socket
import time
from typing import NamedTuple

from kvtop.attach.address import Address
from kvtop.attach.names import COUNTERS, GAUGES, HISTOGRAMS
from kvtop.attach.scrape import Scraper
from kvtop.engine.events import EngineSample

ON, MISSING, UNKNOWN, FAILED = "on", "missing", "unknown", "failed"

KV_CONFIG = (
    """--kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", """
    """"replay_endpoint": "tcp://*:5558"}'"""
)
KV_CONFIG_SGLANG = """--kv-events-config '{"publisher": "zmq", "endpoint": "tcp://*:5557"}'"""
BIND_HINT = (
    "the server's endpoint must be one to bind, tcp://*:PORT: with a host name or 127.0.0.1 in its place vLLM "
    "connects instead of listening, and so does kvtop: two callers, nobody to answer"
)
_NEEDED = {
    "blocks in use": (GAUGES, "usage"),
    "requests running": (GAUGES, "running"),
    "requests waiting": (GAUGES, "waiting"),
    "tokens looked up in the prefix cache": (COUNTERS, "query_tokens"),
    "tokens found in it": (COUNTERS, "hit_tokens"),
    "preemptions": (COUNTERS, "preemptions"),
    "requests done": (COUNTERS, "finished"),
    "tokens generated": (COUNTERS, "generation_tokens"),
    "time to first token": (HISTOGRAMS, "ttft"),
    "inter-token latency": (HISTOGRAMS, "itl"),
    "queue time": (HISTOGRAMS, "queue"),
}
_NEWER = "no flag gives it: a newer release of the server may"


class Check(NamedTuple):
    """``kind`` of the server, in the check that found it."""

    source: str
    what: str
    state: str
    found: str
    remedy: str = ""
    kind: str = ""


def exit_code(checks: list[Check]) -> int:
    states = {check.state for check in checks}
    return 2 if FAILED in states else 1 if states & {MISSING, UNKNOWN} else 0


def check_server(address: Address, *, api_key: str | None, timeout_s: float) -> list[Check]:
    """One look at its metrics."""
    sample = Scraper(address, api_key=api_key, timeout_s=timeout_s).look(1, 0)
    name = sample.server
    if sample.problem:
        remedy = "give the server's own address and port, e.g. http://127.0.0.1:8000 (SGLang: --enable-metrics)"
        return [Check(name, "metrics", FAILED, sample.problem, remedy)]
    models = ", ".join(sorted({engine.model for engine in sample.engines if engine.model})) or "no model named"
    engines = f"{len(sample.engines)} engine{'s' if len(sample.engines) > 1 else ''}"
    took = f"{sample.took_ns / 1e6:.0f} ms"
    head = Check(name, "metrics", ON, f"{sample.kind}, {models}, {engines}, {took}", kind=sample.kind)
    return [
        head,
        *(_needed(name, what, *place, sample.engines) for what, place in _NEEDED.items()),
        _pool(name, sample.engines),
        _caching(name, sample.engines, sample.kind),
    ]


def _needed(source: str, what: str, table: dict[str, tuple[str, ...]], ours: str, engines: list[EngineSample]) -> Check:
    if any(ours in engine.gauges or ours in engine.counters or ours in engine.histograms for engine in engines):
        return Check(source, what, ON, "reported")
    if broken := next((engine.broken[ours] for engine in engines if ours in engine.broken), None):
        return Check(source, what, MISSING, f"the server says {broken}", "a fault of the server's")
    return Check(source, what, MISSING, f"not reported ({' or '.join(table[ours])})", _NEWER)


def _pool(source: str, engines: list[EngineSample]) -> Check:
    infos = [engine.info for engine in engines]
    size = next((info["block_size"] for info in infos if "block_size" in info), None)
    blocks = next((info[key] for info in infos for key in ("num_blocks", "num_pages") if key in info), None)
    tokens = next((engine.gauges["capacity_tokens"] for engine in engines if "capacity_tokens" in engine.gauges), None)
    if blocks is None and tokens is None:
        return Check(source, "size of the pool", MISSING, "not reported (cache_config_info)", _NEWER)
    found = f"{blocks} blocks of {size or '?'} tokens" if blocks is not None else f"{tokens:,.0f} tokens"
    return Check(source, "size of the pool", ON, found)


def _caching(source: str, engines: list[EngineSample], kind: str) -> Check:
    said = next((engine.info["prefix_caching"] for engine in engines if "prefix_caching" in engine.info), None)
    if said == "False":
        return Check(source, "prefix caching", MISSING, "it is off", "--enable-prefix-caching")
    if said is None:
        flag = "SGLang has it unless --disable-radix-cache is given" if kind == "sglang" else ""
        return Check(source, "prefix caching", ON, f"not reported; {flag}" if flag else "not reported")
    return Check(source, "prefix caching", ON, "it is on")


def check_events(endpoints: list[str], replays: list[str], *, wait_s: float, kinds: set[str]) -> list[Check]:
    """Whether somebody listens, and whether an event comes within ``wait_s``."""
    flag = KV_CONFIG_SGLANG if kinds == {"sglang"} else KV_CONFIG
    if not endpoints and kinds == {"kvtop"}:
        remedy = "its own screen shows every block: kvtop serve-api --tui"
        return [Check("KV events", "events", MISSING, "kvtop's own server publishes none", remedy)]
    if not endpoints:
        found = "not listened to: no prefix tree, no evictions, no block map"
        return [Check("KV events", "events", MISSING, found, f"server: {flag}; kvtop: --kv-events tcp://HOST:5557")]
    checks: list[Check] = []
    for endpoint, replay in zip(endpoints, replays, strict=True):
        problem = _connect(endpoint)
        if problem:
            checks.append(Check(endpoint, "events", FAILED, problem, f"server: {flag}. Note: {BIND_HINT}"))
            continue
        checks.append(_first_event(endpoint, replay, wait_s))
        checks.append(_replay(endpoint, replay))
    return checks


def _replay(endpoint: str, replay: str) -> Check:
    if not replay:
        remedy = 'server: "replay_endpoint": "tcp://*:5558" in its --kv-events-config; kvtop: --kv-replay'
        return Check(endpoint, "replay", MISSING, "not given: events that are lost stay lost", remedy)
    problem = _connect(replay)
    return Check(endpoint, "replay", FAILED if problem else ON, problem or f"{replay} listens")


def _connect(endpoint: str) -> str:
    """Why nobody can be reached at a TCP endpoint ("": somebody can)."""
    scheme, _, rest = endpoint.partition("://")
    if scheme != "tcp":
        return ""
    host, _, port = rest.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2.0).close()
    except OSError as error:
        return f"nobody listens there ({error.strerror or error})"
    return ""


def _first_event(endpoint: str, replay: str, wait_s: float) -> Check:
    from kvtop.attach.kv_listen import KvListener
    from kvtop.attach.kv_tracker import KvTracker

    tracker = KvTracker()
    listener = KvListener([endpoint], [replay], tracker)
    try:
        deadline = time.monotonic() + wait_s
        while not tracker.ranks and endpoint not in listener.problems and (left := deadline - time.monotonic()) > 0:
            listener.receive(min(left, 0.2))
        problem = listener.problems.get(endpoint)
    finally:
        listener.close()
    if problem:
        return Check(endpoint, "events", FAILED, problem, "is it an endpoint of KV events?")
    if not tracker.ranks:
        found = f"somebody listens, but published nothing in {wait_s:g} s"
        return Check(endpoint, "events", UNKNOWN, found, "an idle server publishes nothing: send it a request")
    stream = tracker.streams()[0]
    late = f"; {stream.partial}" if stream.partial else ""
    return Check(endpoint, "events", ON, f"rank {stream.rank}, sequence {stream.last_seq:,}{late}")
