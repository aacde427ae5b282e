"""What ``kvtop doctor`` looks at: each thing kvtop can show, whether a server reports it, and what would make it."""

from __future__ import annotations

import socket
import time
from typing import NamedTuple

from kvtop.attach.address import Address
from kvtop.attach.metric_names import spelled
from kvtop.attach.scrape import Scraper
from kvtop.engine.events import EngineSample
from kvtop.state.session_status import NOT_LOADED, tells_simulated
from kvtop.workloads.words import counted

ON, MISSING, UNKNOWN, FAILED = "on", "missing", "unknown", "failed"
NOTE = "note"  # nothing is missing that the server could give

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
    "blocks in use": "usage",
    "requests running": "running",
    "requests waiting": "waiting",
    "tokens looked up in the prefix cache": "query_tokens",
    "tokens found in it": "hit_tokens",
    "preemptions": "preemptions",
    "requests done": "finished",
    "tokens generated": "generation_tokens",
    "time to first token": "ttft",
    "inter-token latency": "itl",
    "queue time": "queue",
}
_NEEDED_OF_KVTOP = _NEEDED | {
    "blocks by state": "blocks/",
    "filled and empty slots": "slots/",
    "shared blocks": "shared_blocks",
    "why requests wait": "waiting/",
    "why prefix matches end": "lookup_ends/",
    "evictions": "evictions/",
    "tokens wanted again after it": "regretted_tokens",
    "tokens computed again": "recomputed_tokens",
}
"""What kvtop shows of a server, and our name of what it is read from."""
_SINCE_FIRST_STEP = ("blocks/", "slots/", "shared_blocks")
_NEWER = "no flag gives it: a newer release of the server may"
_OTHER_ADDRESS = "give the server's own address and port, e.g. http://127.0.0.1:8000 (SGLang: --enable-metrics)"
_REMEDIES = (
    ("slow", "kvtop: --timeout {longer:g}; where that is no better, a firewall drops what is sent there, or the server "
             "is too busy to answer"),
    ("bad response: more than", "one server tells no such amount: give its own address, not that of a Prometheus "
                                "or a gateway; if it is its own, its labels grow without end: restart it"),
    ("bad response: cut off", "look again; a proxy in between may cut answers off: give the server's own address"),
    ("bad response: its encoding", "a proxy in between packs answers: give the server's own address"),
    ("unreachable", "is it running, and does it listen on that address? " + _OTHER_ADDRESS),
    ("TLS: no secure", "give http:// in place of https://"),
    ("TLS: its certificate", "name the authority that signed it: SSL_CERT_FILE=ca.pem kvtop doctor URL"),
    ("HTTP 401", "kvtop: --api-key KEY, or KVTOP_API_KEY"),
    ("HTTP 403", "kvtop: --api-key KEY, or KVTOP_API_KEY"),
    ("HTTP 429", "it is asked too often, or by too many: try again, attach with a longer --interval"),
    ("HTTP 503", "it is starting, or has too many connections: try again"),
    (NOT_LOADED, "look again once it is loaded"),
    ("it has no figures", "it is a server of kvtop's: its own screen and output say what went wrong"),
    ("none of vLLM, SGLang or kvtop", "while it loads its model it tells nothing: look again. Else " + _OTHER_ADDRESS),
    ("", _OTHER_ADDRESS),
)  # fmt: skip
"""What a problem of ``scrape`` begins with (``none of``: has in it), and what helps. The first that fits."""


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
        state = UNKNOWN if sample.problem == NOT_LOADED else FAILED
        return [Check(name, "metrics", state, sample.problem, remedy_of(sample.problem, timeout_s), sample.kind)]
    models = ", ".join(sorted({engine.model for engine in sample.engines if engine.model})) or "no model named"
    engines = counted(len(sample.engines), "engine")
    took = f"{sample.took_ns / 1e6:.0f} ms"
    if any(tells_simulated(engine) for engine in sample.engines):
        engines += ", simulated"
    head = Check(name, "metrics", ON, f"{sample.kind}, {models}, {engines}, {took}", kind=sample.kind)
    needed = _NEEDED_OF_KVTOP if sample.kind == "kvtop" else _NEEDED
    return [
        head,
        *(_needed(name, what, ours, sample.kind, sample.engines) for what, ours in needed.items()),
        _pool(name, sample.engines),
        _caching(name, sample.engines, sample.kind),
    ]


def remedy_of(problem: str, timeout_s: float) -> str:
    """What helps against a problem of a look at a server."""
    text = next(
        text
        for words, text in _REMEDIES
        if problem.startswith(words) or (words.startswith("none of") and words in problem)
    )
    return text.format(longer=4 * timeout_s)


def _needed(source: str, what: str, ours: str, kind: str, engines: list[EngineSample]) -> Check:
    if any(_tells(engine, ours) for engine in engines):
        return Check(source, what, ON, "reported")
    broken = {name: said for engine in engines for name, said in engine.broken.items()}
    if said := next((said for name, said in broken.items() if _is_of(name, ours)), None):
        return Check(source, what, MISSING, f"the server says {said}", "a fault of the server's")
    if ours in _SINCE_FIRST_STEP and not any(engine.counters.get("steps") for engine in engines):
        return Check(source, what, NOTE, "told from the first step on")
    return Check(source, what, MISSING, f"not reported ({spelled(ours, kind) or spelled(ours, '')})", _NEWER)


def _tells(engine: EngineSample, ours: str) -> bool:
    return any(_is_of(name, ours) for name in (*engine.gauges, *engine.counters, *engine.histograms))


def _is_of(name: str, ours: str) -> bool:
    """``ours`` itself, or where it ends in ``/`` one of its figures."""
    return name.startswith(ours) if ours.endswith("/") else name == ours


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
        flag = "--prefix-caching, with --allocator paged" if kind == "kvtop" else "--enable-prefix-caching"
        return Check(source, "prefix caching", MISSING, "it is off", flag)
    if said is None:
        flag = "SGLang has it unless --disable-radix-cache is given" if kind == "sglang" else ""
        return Check(source, "prefix caching", ON, f"not reported; {flag}" if flag else "not reported")
    return Check(source, "prefix caching", ON, "it is on")


def check_events(endpoints: list[str], replays: list[str], *, wait_s: float, kinds: set[str]) -> list[Check]:
    """Whether somebody listens, and whether an event comes within ``wait_s``."""
    flag = KV_CONFIG_SGLANG if kinds == {"sglang"} else KV_CONFIG
    if not endpoints and kinds == {"kvtop"}:
        remedy = "its own screen shows every block and prefix: kvtop serve-api --tui, kvtop live"
        return [Check("KV events", "events", NOTE, "kvtop's own servers publish none", remedy)]
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
