"""What a scrape says: its series sorted by engine, and put under the names of ``kvtop.attach.metric_names``.

SGLang's gateway writes ``sglang_`` for ``sglang:``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from kvtop.attach.exposition import Series
from kvtop.attach.metric_names import (
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    INFO_GAUGES,
    INFO_LABELS,
    INFOS,
    LABELS,
    OURS,
    STARTED,
    Table,
)
from kvtop.engine.events import EngineSample, Histogram

Key = tuple[str, str]  # engine, model
TOO_LARGE = "more than a number can hold"

_SHARES = frozenset((*GAUGES["usage"], *GAUGES["hit_rate"]))  # never added up
_KEYS_OF_ENGINE = ("engine", "dp_rank", "engine_index")
_WORKER = "worker_addr"  # of a gateway's series: the server they are from
_PARTS_OF_ENGINE = ("pp_rank", "tp_rank")  # each reports the whole engine: only the lowest one counts
_PRIORITY = "priority"  # SGLang's gauges come once for each priority and, with "", once for all of them
_ALL_GAUGES = frozenset(name for names in GAUGES.values() for name in names)

_NAMES = (
    *_ALL_GAUGES,
    *(name for names in COUNTERS.values() for name in names),
    *(f"{name}{end}" for names in HISTOGRAMS.values() for name in names for end in ("_bucket", "_sum", "_count")),
    *(*INFOS, *INFO_GAUGES),
)
_ALIASES = {name.replace(":", "_", 1): name for name in _NAMES if name.startswith("sglang:")}
_OWN = frozenset(name for name in _NAMES if name.startswith("kvtop_"))
WANTED = frozenset((*_NAMES, *_ALIASES, STARTED, OURS))


@dataclass(slots=True)
class Meaning:
    """What a scrape says. ``kind``: kvtop, vllm or sglang; "": none of them. ``status``: how a server of kvtop's calls
    its run (``starting``: it has no engine yet); "": it does not say."""

    kind: str
    engines: list[EngineSample]
    started: float | None
    status: str = ""


@dataclass(slots=True)
class _Engine:
    model: str
    values: dict[str, float]  # by metric name, series of one engine added up; by name/label of those in LABELS, too
    buckets: dict[str, dict[float, float]]
    info: dict[str, str]
    broken: dict[str, str]  # by metric name
    whole: set[str] = field(default_factory=set)  # metric names that are of all engines of the server


def understand(series: Iterable[Series]) -> Meaning:
    """``series`` sorted by engine and put under kvtop's names."""
    engines: dict[Key, _Engine] = {}
    kind, started, ours, status = "", None, False, ""
    sorted_out: list[tuple[Key, str, Series]] = []
    # Told twice, which no server should, a series counts once: what was told last.
    once = {(found.name, *sorted(found.labels.items())): found for found in series}
    for found in once.values():
        if found.name == STARTED:
            started = found.value if math.isfinite(found.value) else None
        elif found.name == OURS:
            ours, status = True, found.labels.get("status", "")
        else:
            name = _ALIASES.get(found.name, found.name)
            kind = kind or ("kvtop" if name in _OWN else name.partition(":")[0])
            sorted_out.append((_key_of(found.labels), name, found))
    for key, name, found in _counted_once(sorted_out):
        engine = engines.get(key)
        if engine is None:
            engine = engines[key] = _Engine(key[1], {}, {}, {}, {})
        _add(engine, name, found)
    for engine in engines.values() if ours else ():
        engine.info["null_blocks"] = "0"  # vLLM keeps one block for itself, kvtop none
    return Meaning(
        "kvtop" if ours else kind,
        [_sample(name, engine) for (name, _), engine in sorted(_joined(engines).items())],
        started,
        status,
    )


def _key_of(labels: dict[str, str]) -> Key:
    name = next((labels[key] for key in _KEYS_OF_ENGINE if labels.get(key)), "")
    return f"{labels.get(_WORKER, '')} {name}".strip(), labels.get("model_name", "")


def _counted_once(found: list[tuple[Key, str, Series]]) -> list[tuple[Key, str, Series]]:
    """``found`` without what says the same again: the further parts of an engine, and what a sum holds already.

    An engine's lowest part may be any: with SGLang's data-parallel attention, rank 3's is ``tp_rank`` 3.
    """
    lowest: dict[Key, tuple[int, ...]] = {}
    sums: set[tuple[Key, str]] = set()
    for key, name, one in found:
        if (part := _part_of(one.labels)) is not None:
            lowest[key] = min(part, lowest.get(key, part))
        if one.labels.get(_PRIORITY) == "" and name in _ALL_GAUGES:
            sums.add((key, name))
    return [
        (key, name, one)
        for key, name, one in found
        if _part_of(one.labels) in (None, lowest.get(key)) and not (one.labels.get(_PRIORITY) and (key, name) in sums)
    ]


def _part_of(labels: dict[str, str]) -> tuple[int, ...] | None:
    """Which part of an engine; None: it says nothing of one."""
    found = [labels.get(part, "") for part in _PARTS_OF_ENGINE]
    if not any(found):
        return None
    return tuple(int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0 for text in found)


def _add(engine: _Engine, name: str, found: Series) -> None:
    value = found.value
    if found.labels.get("simulated") == "true":  # of a run of kvtop's with a virtual clock
        engine.info["simulated"] = "True"
    if name in INFO_GAUGES:
        if math.isfinite(value) and value > 0:
            engine.info[INFO_GAUGES[name]] = f"{value:.0f}"
        return
    if name in INFOS:
        engine.info.update(
            {
                INFO_LABELS[label]: text
                for label, text in found.labels.items()
                if label in INFO_LABELS and text != "None"
            }
        )
        return
    if (label := LABELS.get(name)) is not None:
        _count(engine, f"{name}/{found.labels.get(label, '')}", found)
    if name.endswith("_bucket") and math.isfinite(value):
        bound = _bound(found.labels.get("le", ""))
        buckets = engine.buckets.setdefault(name[: -len("_bucket")], {})
        if bound is None:
            engine.broken.setdefault(name[: -len("_bucket")], f"le={found.labels.get('le', '')[:20]!r}")
        elif math.isfinite(total := buckets.get(bound, 0.0) + value):
            buckets[bound] = total
        else:
            engine.broken.setdefault(name, TOO_LARGE)
    else:
        _count(engine, name, found)


def _count(engine: _Engine, name: str, found: Series) -> None:
    if not math.isfinite(found.value):
        engine.broken.setdefault(name, found.text[:20])
    elif name in _SHARES:
        engine.values[name] = max(engine.values.get(name, 0.0), found.value)
    elif math.isfinite(total := engine.values.get(name, 0.0) + found.value):
        engine.values[name] = total
    else:
        engine.broken.setdefault(name, TOO_LARGE)


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return None if math.isnan(bound) else bound


def _joined(engines: dict[Key, _Engine]) -> dict[Key, _Engine]:
    """Series without a label for the engine are the whole server's: they are kept with its first engine, once."""
    for key in [key for key in engines if not key[0] or not key[1]]:
        fitting = sorted(other for other in engines if other != key and _within(key, other))
        if fitting:
            other, own = engines[fitting[0]], engines.pop(key)
            other.whole |= own.whole | {name for name in (*own.values, *own.buckets) if not _has(other, name)}
            for name, value in own.values.items():
                other.values.setdefault(name, value)
            other.buckets.update({name: found for name, found in own.buckets.items() if name not in other.buckets})
            other.info.update(own.info)
            other.broken.update(own.broken)
    return engines


def _has(engine: _Engine, name: str) -> bool:
    return name in engine.values or name in engine.buckets


def _within(key: Key, other: Key) -> bool:
    return key[0] in ("", other[0]) and key[1] in ("", other[1])


def _sample(name: str, engine: _Engine) -> EngineSample:
    broken: dict[str, str] = {}
    histograms: dict[str, Histogram] = {}
    for ours, names in HISTOGRAMS.items():
        for theirs in names:
            if theirs in engine.broken or f"{theirs}_bucket" in engine.broken:
                broken[ours] = engine.broken.get(theirs) or engine.broken[f"{theirs}_bucket"]
                break
            if theirs in engine.buckets and (made := _histogram(theirs, engine)) is not None:
                histograms[ours] = made
                break
    gauges, counters = _chosen(GAUGES, engine), _chosen(COUNTERS, engine)
    told = [*gauges.items(), *counters.items()]
    broken |= {ours: engine.broken[key] for ours, key in told if key in engine.broken}
    whole = [ours for ours, key in told if key in engine.whole and ours not in broken]
    whole += [ours for ours in histograms if next(n for n in HISTOGRAMS[ours] if _has(engine, n)) in engine.whole]
    return EngineSample(
        name, engine.model, _told(gauges, engine), _told(counters, engine), histograms, engine.info, broken, whole
    )


def _chosen(table: Table, engine: _Engine) -> dict[str, str]:
    """Our name -> the key of ``values`` or ``broken`` that says it: of each row, the engine's first metric."""
    keys = engine.values | engine.broken
    chosen: dict[str, str] = {}
    for ours, names in table.items():
        for theirs in names:
            if ours.endswith("/"):
                start = len(theirs) + 1
                found = {f"{ours}{key[start:]}": key for key in keys if key.startswith(f"{theirs}/")}
            else:
                found = {ours: theirs} if theirs in keys else {}
            if found:
                chosen |= found
                break
    return chosen


def _told(chosen: dict[str, str], engine: _Engine) -> dict[str, float]:
    return {ours: engine.values[key] for ours, key in chosen.items() if key not in engine.broken}


def _histogram(name: str, engine: _Engine) -> Histogram | None:
    """None where the buckets are no cumulative counts."""
    pairs = sorted(engine.buckets[name].items())
    bounds, counts = [bound for bound, _ in pairs], [count for _, count in pairs]
    if any(after < before for before, after in pairwise(counts)):
        return None
    if bounds[-1] != math.inf:
        count = engine.values.get(f"{name}_count")
        if count is None or count < counts[-1]:
            return None
        bounds, counts = [*bounds, math.inf], [*counts, count]
    return Histogram(bounds, counts, engine.values.get(f"{name}_sum"))
