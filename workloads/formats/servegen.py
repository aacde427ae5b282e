"""ServeGen: what one client of a service sent, as rates and length distributions, sampled into requests.

A client is a pair of files, ``...-trace.csv`` and ``...-dataset.json``; a directory may hold many. The CSV has no
header: a window's start (s), requests per second, CV of the gaps between them, best-fitting family (Gamma or Weibull,
empty when idle), its shape and its scale. The JSON has, by start of a window, the distributions of ``input_tokens``
and ``output_tokens`` as texts like ``{52: 0.2, 53: 0.8}``; an empty one is replaced by the last before it.

Each window gets as many requests as its rate says, with gaps of the fitted family and shape, stretched to fill the
window. The fitted scale is not used: where a client was busy for part of a window only, it contradicts the rate. A
window's requests depend on the seed, the client's file name and the window, not on which part of the trace is asked
for. Source: Xiang et al., "ServeGen", NSDI 2026.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.files import TextFile, combined_sha256, read_text
from kvtop.workloads.formats.base import (
    NS_PER_S,
    SAMPLED,
    Clock,
    ReadOptions,
    Stamped,
    Trace,
    TraceFormat,
    check_length,
    finish,
)
from kvtop.workloads.formats.csv_rows import Cell, csv_lines
from kvtop.workloads.formats.json_rows import json_document
from kvtop.workloads.generators.draws import Draws, Weighted
from kvtop.workloads.generators.portable import power
from kvtop.workloads.rows import Row
from kvtop.workloads.words import shorten

MAX_REQUESTS = 1_000_000
LAST_WINDOW_S = 600
"""Length of the last window, which no other follows; all published windows have it."""
FAMILIES = ("Gamma", "Weibull")
COLUMNS = ("window start", "rate", "CV", "family", "shape", "scale")
_ROW = re.compile(r"\d+,[\d.eE+-]+,[\d.eE+-]+,[A-Za-z]*,[\d.eE+-]+,[\d.eE+-]+")
_TEXT_PMF = re.compile(r'"(?:input|output)_tokens"\s*:\s*"\{')

_decode = msgspec.json.Decoder(dict[str, dict[str, Any]]).decode


class Window(msgspec.Struct, frozen=True):
    """A stretch of one client's time; an idle one has no requests."""

    start_s: int
    length_s: int
    num_requests: int
    family: str
    shape: float


class Lengths(msgspec.Struct, frozen=True):
    """Prompt and output lengths to draw from."""

    values: tuple[list[int], list[int]]
    weights: tuple[Weighted, Weighted]

    def draw(self, draws: Draws) -> tuple[int, int]:
        prompt, output = (values[w.draw(draws)] for values, w in zip(self.values, self.weights, strict=True))
        return prompt, output


class Client(msgspec.Struct, frozen=True):
    """One client: its windows, and its distributions by start of the time they are of."""

    name: str
    path: str
    windows: list[Window]
    dataset: TextFile


def read_paths(paths: list[Path], options: ReadOptions) -> Trace:
    """Sample the requests of every client between ``options.start_s`` and ``options.end_s`` of the trace.

    Raises:
        WorkloadError: a file that is missing or malformed (with the row), nothing in that time, or too much of it.
    """
    pairs = list(dict.fromkeys(pair for path in paths for pair in _pairs(path)))
    files = [(read_text(trace), read_text(dataset, "ServeGen dataset")) for trace, dataset in pairs]
    clients = [
        Client(_client_name(trace), file.path, _windows(file), dataset)
        for (trace, _), (file, dataset) in zip(pairs, files, strict=True)
    ]
    start_s = options.start_s
    end_s = options.end_s if options.end_s is not None else float("inf")
    if not 0 <= start_s < end_s:
        raise WorkloadError(f"start is {start_s:g} s and end {end_s:g} s, expected 0 <= start < end", path=paths[0])
    _check_size(clients, start_s, end_s, paths[0])
    stamped: list[Stamped] = []
    for client in clients:
        for time_ns, (prompt_tokens, output_tokens) in _requests(client, start_s, end_s, options.seed):
            row = Row(0, prompt_tokens, output_tokens, tenant=client.name if len(clients) > 1 else "")
            stamped.append(Stamped(len(stamped) + 1, time_ns, row))
    stamped.sort(key=lambda entry: entry.time_ns or 0)
    sha256 = combined_sha256([(Path(file.path).name, file.sha256) for pair in files for file in pair])
    trace = finish(
        stamped,
        SERVEGEN,
        path=str(paths[0]),
        sha256=sha256,
        notices=[f"sampled from rates and distributions, seed {options.seed}: no request was recorded"],
        counted_by="the publisher (distributions)",
    )
    return msgspec.structs.replace(trace, arrivals=SAMPLED, is_cut=True)


def _requests(client: Client, start_s: float, end_s: float, seed: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """(ns on the trace's clock, lengths) of what a client sends in a time."""
    found = json_document(client.dataset, _decode, "an object of windows")
    known: dict[int, Lengths] = {}
    for window in client.windows:
        if not window.num_requests or window.start_s >= end_s or window.start_s + window.length_s <= start_s:
            continue
        lengths = _lengths_at(window.start_s, found, known, client.dataset.path)
        key = f"{seed}:servegen:{client.name}:{window.start_s}"
        arrivals, sizes = Draws(f"{key}:arrivals"), Draws(f"{key}:lengths")
        for time_s in _times(window, arrivals):
            drawn = lengths.draw(sizes)
            if start_s <= time_s < end_s:
                yield round(time_s * NS_PER_S), drawn


def _times(window: Window, draws: Draws) -> Iterator[float]:
    """As many times as the window has requests: gaps of its family and shape, stretched to fill the window."""
    gaps = [_gap(window, draws) for _ in range(window.num_requests + 1)]
    scale = window.length_s / (sum(gaps) or 1.0)
    for passed in itertools.islice(itertools.accumulate(gaps), window.num_requests):
        yield window.start_s + passed * scale


def _gap(window: Window, draws: Draws) -> float:
    if window.family == "Gamma":
        return draws.gamma(window.shape)
    return power(draws.exponential(), 1.0 / window.shape)


def _lengths_at(start_s: int, found: dict[str, dict[str, Any]], known: dict[int, Lengths], path: str) -> Lengths:
    """The distributions of the last time before the window that has any, or of the first after it."""
    try:
        times = sorted(int(time) for time in found)
    except ValueError:
        raise WorkloadError("keys are no times, expected starts of windows in s", path=path) from None
    before = [time for time in times if time <= start_s]
    for time in [*reversed(before), *(time for time in times if time > start_s)]:
        if time in known:
            return known[time]
        texts = [found[str(time)].get(key, "{}") for key in ("input_tokens", "output_tokens")]
        pmfs = [_pmf(text, f"{path}: {time}") for text in texts]
        if all(pmfs):
            values = tuple(list(pmf) for pmf in pmfs)
            weights = tuple(Weighted(list(pmf.values())) for pmf in pmfs)
            known[time] = Lengths(values, weights)  # type: ignore[arg-type]
            return known[time]
    raise WorkloadError("no window has distributions of input_tokens and output_tokens", path=path)


def _pmf(text: object, place: str) -> dict[int, float]:
    """Probability by length, without lengths of 0 and of probability 0."""
    try:
        found = ast.literal_eval(text) if isinstance(text, str) else None
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        found = None
    if not isinstance(found, dict):
        raise WorkloadError(f"distribution is {shorten(text)}, expected a text like '{{52: 0.2, 53: 0.8}}'", path=place)
    for length, weight in found.items():
        if type(length) is not int or type(weight) not in (int, float) or not 0 <= weight <= 1:
            raise WorkloadError(
                f"distribution holds {shorten({length: weight})}, expected a length in tokens and a probability",
                path=place,
            )
        check_length(length, "a length", path=place, line=None, low=0)
    return {length: float(weight) for length, weight in sorted(found.items()) if length and weight}


def _check_size(clients: list[Client], start_s: float, end_s: float, path: Path) -> None:
    """Refuse what would not fit in memory, and nothing at all, with what would do."""
    inside = [w for c in clients for w in c.windows if w.start_s < end_s and w.start_s + w.length_s > start_s]
    busiest = max((w for c in clients for w in c.windows), key=lambda window: window.num_requests)
    num_requests = sum(window.num_requests for window in inside)
    hint = f"the busiest window is from {busiest.start_s} s to {busiest.start_s + busiest.length_s} s"
    if num_requests > MAX_REQUESTS:
        raise WorkloadError(
            f"stands for {num_requests:,} requests, expected at most {MAX_REQUESTS:,}: choose a part with start and "
            f"end ({hint}, {busiest.num_requests:,} requests)",
            path=path,
        )
    if not num_requests:
        raise WorkloadError(f"nobody sends anything from {start_s:g} s to {end_s:g} s ({hint})", path=path)


def _windows(file: TextFile) -> list[Window]:
    """Every window, idle ones too.

    Raises:
        WorkloadError: a row that is none, or windows that are not in order.
    """
    parsed: list[tuple[int, float, str, float]] = []
    for line, cells in csv_lines(file):
        if len(cells) != len(COLUMNS):
            raise WorkloadError(
                f"found {len(cells)} columns, expected {len(COLUMNS)}: {', '.join(COLUMNS)}", path=file.path, row=line
            )
        by_name = {key: Cell(text, key, file.path, line) for key, text in zip(COLUMNS, cells, strict=True)}
        start_s = _whole(by_name["window start"])
        if parsed and start_s <= parsed[-1][0]:
            raise by_name["window start"].fail(f"more than {parsed[-1][0]}, of the row before")
        family = by_name["family"].text.strip()
        rate, shape = by_name["rate"].number(), by_name["shape"].number()
        if rate and family not in FAMILIES:
            raise by_name["family"].fail(" or ".join(FAMILIES))
        if rate and not 0.01 <= shape <= 1e6:
            raise by_name["shape"].fail("0.01 to 1,000,000")
        parsed.append((start_s, rate, family, shape))
    starts = [start for start, *_ in parsed]
    lengths = [b - a for a, b in itertools.pairwise(starts)] + [LAST_WINDOW_S]
    return [
        Window(start, length, round(rate * length), family, shape)
        for (start, rate, family, shape), length in zip(parsed, lengths, strict=True)
    ]


def _whole(cell: Cell) -> int:
    value = cell.number()
    if value != int(value):
        raise cell.fail("whole seconds")
    return int(value)


def _client_name(trace: Path) -> str:
    return trace.name.removesuffix(".gz").removesuffix(".csv").removesuffix("trace").rstrip("-_.") or trace.parent.name


def _pairs(path: Path) -> list[tuple[Path, Path]]:
    """(trace, dataset) for one of the two files, or for each trace in a directory.

    Raises:
        WorkloadError: the other file is missing.
    """
    if path.is_dir():
        traces = sorted(file for pattern in ("*trace.csv", "*trace.csv.gz") for file in path.glob(pattern))
        return [pair for trace in traces for pair in _pairs(trace)]
    is_trace = "trace.csv" in path.name
    old, new = ("trace.csv", "dataset.json") if is_trace else ("dataset.json", "trace.csv")
    plain = path.name.removesuffix(".gz").replace(old, new)
    for name in (f"{plain}.gz", plain) if path.name.endswith(".gz") else (plain, f"{plain}.gz"):
        other = path.with_name(name)
        if plain != path.name.removesuffix(".gz") and other.is_file():
            return [(path, other) if is_trace else (other, path)]
    raise WorkloadError(
        "needs its other half beside it: a client is NAME-trace.csv and NAME-dataset.json, plain or gzip", path=path
    )


def _is_directory_of_clients(path: Path) -> bool:
    return any(True for pattern in ("*trace.csv", "*trace.csv.gz") for _ in path.glob(pattern))


def _shown_by(head: str) -> bool:
    first = head.lstrip().split("\n", 1)[0].strip()
    return bool(_ROW.fullmatch(first) or (head.lstrip().startswith("{") and _TEXT_PMF.search(head)))


SERVEGEN = TraceFormat(
    name="servegen",
    summary="a client's NAME-trace.csv (windows with rates) beside its NAME-dataset.json (distributions of lengths)",
    keys=(),
    shown_by=_shown_by,
    read_paths=read_paths,
    claims=_is_directory_of_clients,
    clock=Clock(key="window start", unit="seconds"),
)
