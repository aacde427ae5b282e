"""When tokens came: gaps between them, from a run's recording or its tokens.parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from kvtop.results.recording import read_frames

if TYPE_CHECKING:
    from kvtop.results.load import Run


class _Emitted(msgspec.Struct):
    """Of any event what tells when tokens came; the decisions of a step, most of what it holds, are passed over."""

    t_done_ns: int | None = None
    emitted: list[tuple[str, int]] = []


_decode_emitted = msgspec.msgpack.Decoder(list[_Emitted]).decode

Emission = tuple[Any, str, int, int]
"""(sequence, request id, end of the step in ns, tokens of it)"""


def emissions(run: Run, request_ids: Mapping[int, str]) -> Iterator[Emission] | None:
    """Every step's tokens in order of time; None where nothing says when they came.

    ``request_ids``: by req_index.
    """
    if (frames := run.frames_path) is not None:
        return _recorded(frames, set(request_ids.values()))
    if (tokens := run.tokens) is not None:
        return _tabled(tokens, request_ids)
    return None


def _recorded(frames: Any, request_ids: set[str]) -> Iterator[Emission]:
    for emitted in read_frames(frames, decode=_decode_emitted):
        for event in emitted:
            for sequence, num_tokens in event.emitted:
                # branch k of request "a" is the sequence "a#k"
                request = sequence if sequence in request_ids else sequence.rpartition("#")[0]
                if num_tokens:
                    yield sequence, request, event.t_done_ns or 0, num_tokens


def _tabled(tokens: Any, request_ids: Mapping[int, str]) -> Iterator[Emission]:
    import polars as pl

    steps = tokens.group_by("req_index", "branch", "step").agg(pl.col("t_ns").first(), pl.len().alias("count"))
    ordered = steps.sort("step", "req_index", "branch").select("req_index", "branch", "t_ns", "count").collect()
    for index, branch, t_ns, count in ordered.iter_rows():
        if index in request_ids:
            yield (index, branch), request_ids[index], t_ns, count


def gaps_by_class(found: Iterator[Emission], classes: Mapping[str, str]) -> dict[str, list[float]]:
    """Gaps between tokens (ns) by class. ``classes``: those of the requests whose gaps count, by request id."""
    gaps: dict[str, list[float]] = {}
    last: dict[Any, int] = {}
    for sequence, request, t_ns, num_tokens in found:
        before, last[sequence] = last.get(sequence), t_ns
        if before is None or (klass := classes.get(request)) is None:
            continue
        values = gaps.get(klass)
        if values is None:
            values = gaps[klass] = []
        if num_tokens == 1:
            values.append(float(t_ns - before))
        else:  # k tokens in one step make k gaps of gap / k: their sum stays last - first
            values += [(t_ns - before) / num_tokens] * num_tokens
    return gaps
