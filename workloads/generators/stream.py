"""One stream of requests: when sessions begin (``arrivals``), what each is (``structures``), how long its parts are.

Every purpose (arrivals, prompts, outputs, ...) draws from random numbers of its own: another length range leaves the
arrivals alone, and so does another stream beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from typing import Any, NamedTuple

import msgspec

from kvtop.engine.errors import UnknownName, WorkloadError
from kvtop.workloads.generators.arrivals import ARRIVALS, CLOSED
from kvtop.workloads.generators.base import Place, pick, placed
from kvtop.workloads.generators.distributions import distribution
from kvtop.workloads.generators.draws import Draws, Weighted, zipf_weights
from kvtop.workloads.generators.options import MAX_REQUESTS, NS_PER_S, integer, number, seconds, shown, text
from kvtop.workloads.generators.structures import MAX_TOKENS, STRUCTURES, Scene, Sessions, Structure
from kvtop.workloads.rows import Row

replace = msgspec.structs.replace
MAX_GROUPS = 100_000

STREAM: dict[str, Any] = {
    "name": "",  # the requests' class: figures of each are told apart by it
    "structure": "single",
    "arrivals": None,  # a table with a kind; or one of the next two
    "rate": None,  # short for arrivals = { kind = "poisson", rate = ... }
    "every_s": None,  # short for arrivals = { kind = "constant", every_s = ... }
    "duration_s": None,  # sessions that begin within this time, instead of a number of them
    "system_prompt_tokens": 0,  # shared by all requests of a group
    "prefix_groups": 1,  # so many different system prompts
    "prefix_skew": 1.0,  # group k is asked for in proportion to 1 / k^skew
    "priority": 0,
    "tenant": "",
}
DEFAULT_COUNT = 100


class Placed(NamedTuple):
    """A row and its place in the workload: rows of one time are in order of ``position`` in their chain."""

    row: Row
    position: int


class Ids:
    """Numbers for system prompts, documents and conversations, none of them given twice."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def new(self, kind: str, count: int) -> int:
        first = self._next.get(kind, 0)
        self._next[kind] = first + count
        return first


def stream_rows(given: dict[str, Any], seed: int, ids: Ids, within: str, extra: dict[str, Any]) -> list[Placed]:
    """The rows of one stream, from its own time 0 on. ``extra`` are options beside those of ``STREAM``, with defaults.

    Raises:
        UnknownName: an option, a structure, an arrival process or a distribution that does not exist.
        WorkloadError: an option of the wrong type or out of its range.
    """
    structure = _structure(given, within)
    options = _filled(given, structure, within, extra)
    name = text(options, "name", within)

    def draws(purpose: str) -> Draws:
        return Draws(f"{seed}:{name}:{purpose}" if name else f"{seed}:{purpose}")

    scene = Scene(
        draws=draws, new_ids=ids.new, system_prompt=_system_prompts(options, ids, draws, within), within=within
    )
    common = {
        "klass": name,
        "priority": integer(options, "priority", -(2**31), 2**31, within),
        "tenant": text(options, "tenant", within),
    }
    sessions = structure.sessions(options, scene)
    chains = _chains(options, structure, sessions, draws, within)
    rows: list[Placed] = []
    for chain in chains:
        rows += [Placed(replace(row, **common), position) for position, row in enumerate(chain)]
        if len(rows) > MAX_REQUESTS:
            raise WorkloadError(f"{within}more than {MAX_REQUESTS:,} requests")
    return rows


def stream_keys(given: dict[str, Any]) -> set[str]:
    """The options of a stream; those of its structure, where it names one."""
    name = given.get("structure", STREAM["structure"])
    shapes = [STRUCTURES[name]] if isinstance(name, str) and name in STRUCTURES else STRUCTURES.values()
    return {*STREAM, *(key for shape in shapes for key in (shape.counted, *shape.options))}


def _structure(given: dict[str, Any], within: str) -> Structure:
    name = given.get("structure", STREAM["structure"])
    if not isinstance(name, str):
        raise WorkloadError(f"{within}structure is {shown(name)}, expected one of {', '.join(STRUCTURES)}")
    if name not in STRUCTURES:
        raise UnknownName(placed("structure", within), name, STRUCTURES)
    return STRUCTURES[name]


def _filled(given: dict[str, Any], structure: Structure, within: str, extra: dict[str, Any]) -> dict[str, Any]:
    valid = {**STREAM, **extra, structure.counted: None, **structure.options}
    for key in given:
        if key not in valid:
            of = "" if structure.name == STREAM["structure"] else f" of structure {structure.name}"
            raise UnknownName(placed(f"key{of}", within), key, valid)
    return {**valid, **given}


def _system_prompts(
    options: dict[str, Any], ids: Ids, draws: Callable[[str], Draws], within: str
) -> Callable[[], tuple[int, int]]:
    """Draws the group of the next session: (shared_id, tokens)."""
    groups = integer(options, "prefix_groups", 1, MAX_GROUPS, within)
    skew = number(options, "prefix_skew", 0.0, 10.0, within)
    length = distribution(options, "system_prompt_tokens", Place(within, "prompt", True, 0, MAX_TOKENS))
    of_lengths, of_groups = draws("system prompts"), draws("groups")
    first = ids.new("shared", groups)
    prompts = [(first + group, int(length(of_lengths))) for group in range(groups)]
    prompts = [prompt if prompt[1] else (0, 0) for prompt in prompts]  # no tokens: no prompt to tell apart
    if groups == 1:
        return lambda: prompts[0]
    popularity = Weighted(zipf_weights(groups, skew))
    return lambda: prompts[popularity.draw(of_groups)]


def _chains(
    options: dict[str, Any], structure: Structure, sessions: Sessions, draws: Callable[[str], Draws], within: str
) -> Iterator[list[Row]]:
    """Rows that come one after the other: a session, or in a closed loop all sessions of one user."""
    count = _count(options, structure, within)
    process, own, place = _process(options, count, within)
    times = process.times(own, draws("arrivals"), place)
    if process.name != CLOSED:
        return _open(_begins(times, count, structure, options, within), sessions, options["name"])
    if options["duration_s"] is not None:
        raise WorkloadError(f"{within}duration_s is given, but a closed loop has {structure.counted}")
    pause = distribution(own, "think_s", Place(place, "prompt", False, 0, 1e7))
    wanted = DEFAULT_COUNT if count is None else count
    return _closed(list(times), sessions, wanted, pause, draws("pauses"), options["name"])


def _count(options: dict[str, Any], structure: Structure, within: str) -> int | None:
    """How many sessions; None: as many as a time has, or the default."""
    key = structure.counted
    if options[key] is None:
        return None
    if options["duration_s"] is not None:
        raise WorkloadError(f"{within}both {key} and duration_s are given, expected one of them")
    return integer(options, key, 1, MAX_REQUESTS, within)


def _process(options: dict[str, Any], count: int | None, within: str) -> tuple[Any, dict[str, Any], str]:
    given = [key for key in ("arrivals", "rate", "every_s") if options[key] is not None]
    if len(given) > 1:
        raise WorkloadError(f"{within}both {given[0]} and {given[1]} are given, expected one of them")
    if not given and count != 1:
        raise WorkloadError(f"{within}none is given, expected arrivals, rate or every_s")
    table, place = options["arrivals"], f"{within}arrivals."
    if table is None:
        place = within
        table = {"kind": "constant", "every_s": 0 if options["every_s"] is None else options["every_s"]}
        if options["rate"] is not None:
            table = {"kind": "poisson", "rate": options["rate"]}
    if not isinstance(table, dict):
        raise WorkloadError(f"{within}arrivals is {shown(table)}, expected a table with a kind")
    process, own = pick(table, ARRIVALS, "arrivals", place)
    return process, own, place


def _begins(
    times: Iterator[int], count: int | None, structure: Structure, options: dict[str, Any], within: str
) -> list[int]:
    """When the sessions of an open loop begin, ns."""
    if options["duration_s"] is not None:
        end_ns = seconds(options, "duration_s", within, above=True) * NS_PER_S
        begins = list(islice(takewhile(lambda t_ns: t_ns < end_ns, times), MAX_REQUESTS + 1))
        if len(begins) > MAX_REQUESTS:
            raise WorkloadError(f"{within}more than {MAX_REQUESTS:,} arrivals in {options['duration_s']:g} s")
        return begins
    wanted = DEFAULT_COUNT if count is None else count
    begins = list(islice(times, wanted))
    if len(begins) < wanted:
        raise WorkloadError(f"{within}{structure.counted} is {wanted:,}, but the trace has {len(begins):,} arrivals")
    return begins


def _open(begins: list[int], sessions: Sessions, name: str) -> Iterator[list[Row]]:
    """Sessions that begin whatever became of the ones before."""
    for index, begin_ns in enumerate(begins):
        rows = next(sessions)
        talks = rows[0].conversation is not None
        yield _timed(rows, begin_ns, _session_id(name, index) if talks else "")


def _closed(
    begins: list[int], sessions: Sessions, count: int, pause: Callable[[Draws], float], draws: Draws, name: str
) -> Iterator[list[Row]]:
    """User u has sessions u, u + users, ...: whose turn it is does not depend on who is served first."""
    chains: list[list[Row]] = [[] for _ in begins]
    for index in range(count):
        chain, session_id = chains[index % len(begins)], _session_id(name, index)
        begin_ns = chain[-1].arrival_ns if chain else begins[index % len(begins)]
        pause_ns = round(pause(draws) * NS_PER_S) if chain else 0
        rows = _timed(next(sessions), begin_ns + pause_ns, session_id)
        if chain:
            last = chain[-1]
            rows[0] = replace(rows[0], think_ns=pause_ns, after=((last.session_id, last.turn),))
        chain += rows
    yield from (chain for chain in chains if chain)


def _session_id(name: str, index: int) -> str:
    return f"{name or 's'}-{index}"


def _timed(rows: list[Row], begin_ns: int, session_id: str) -> list[Row]:
    """Nominal arrivals, as if every answer took no time: they order the rows."""
    timed = []
    for row in rows:
        begin_ns += row.think_ns or 0
        timed.append(replace(row, arrival_ns=begin_ns, session_id=session_id))
    return timed
