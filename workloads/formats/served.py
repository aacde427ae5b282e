"""Requests as a server or a client logged them: LLMServingSim's JSONL, and the result file of vLLM's ``bench serve``.

``llmservingsim``: one object a line with ``input_toks``, ``output_toks`` and ``arrival_time`` (s, unix) or
``arrival_time_ns`` (from the start). The timings measured on the server (``queued_ts`` to ``last_token_ts``) are of
another clock and are not part of a workload. ``vllm-bench``: one object with the lists ``input_lens`` and
``output_lens``, in newer versions ``start_times`` (s of the client's clock), and ``errors`` ("" for a request that
succeeded). Older files record no arrivals. Source of the first: Cho et al., "LLMServingSim", ISPASS 2026.
"""

from __future__ import annotations

import msgspec

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.files import TextFile
from kvtop.workloads.formats.base import NS_PER_S, Clock, ReadOptions, Stamped, Trace, TraceFormat, check_length, finish
from kvtop.workloads.formats.json_rows import TOKENS, Field, json_document, json_lines, unit_ns
from kvtop.workloads.rows import Row

FIELDS = {
    "input_toks": TOKENS,
    "output_toks": TOKENS,
    "arrival_time": Field((int, float), "a number (seconds)", optional=True),
    "arrival_time_ns": Field((int,), "an integer (ns)", optional=True),
}


class _Line(msgspec.Struct, gc=False):
    input_toks: int
    output_toks: int
    arrival_time: float | None = None
    arrival_time_ns: int | None = None


class _Result(msgspec.Struct):
    input_lens: list[int]
    output_lens: list[int]
    start_times: list[float] | None = None
    errors: list[str | None] | None = None


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_result = msgspec.json.Decoder(_Result).decode


def read_lines(file: TextFile, options: ReadOptions) -> Trace:
    """Read every row; a malformed one raises WorkloadError with its number and reason."""
    stamped: list[Stamped] = []
    num_dropped = 0
    for line, found in json_lines(file, _decode_line, FIELDS):
        check_length(found.input_toks, "input_toks", path=file.path, line=line)
        check_length(found.output_toks, "output_toks", path=file.path, line=line, low=0)
        if found.output_toks == 0:
            num_dropped += 1
            continue
        time_ns = None
        if found.arrival_time_ns is not None:
            time_ns = unit_ns(found.arrival_time_ns, 1, "arrival_time_ns", "ns", file.path, line)
        elif found.arrival_time is not None:
            time_ns = unit_ns(found.arrival_time, NS_PER_S, "arrival_time", "seconds", file.path, line)
        stamped.append(Stamped(line, time_ns, Row(0, found.input_toks, found.output_toks)))
    return finish(stamped, LLMSERVINGSIM, path=file.path, sha256=file.sha256, num_dropped=num_dropped)


def read_result(file: TextFile, options: ReadOptions) -> Trace:
    """Read the requests of one run that succeeded.

    Raises:
        WorkloadError: not such a result, or lists that are not of one length.
    """
    found = json_document(file, _decode_result, "a result with the lists input_lens and output_lens")
    num = len(found.input_lens)
    lists = {"output_lens": found.output_lens, "start_times": found.start_times, "errors": found.errors}
    for key, values in lists.items():
        if values is not None and len(values) != num and (values or key == "output_lens"):
            raise WorkloadError(f"{key} has {len(values):,} values, but input_lens {num:,}", path=file.path)
    stamped: list[Stamped] = []
    num_dropped = 0
    for i, (prompt_tokens, output_tokens) in enumerate(zip(found.input_lens, found.output_lens, strict=True)):
        if output_tokens == 0 or (found.errors and found.errors[i]):
            num_dropped += 1
            continue
        place = f"{file.path}: request {i}"
        check_length(prompt_tokens, "input_lens", path=place, line=None)
        check_length(output_tokens, "output_lens", path=place, line=None)
        time_ns = None
        if found.start_times:
            time_ns = unit_ns(found.start_times[i], NS_PER_S, "start_times", "seconds", place, None)
        stamped.append(Stamped(i + 1, time_ns, Row(0, prompt_tokens, output_tokens)))
    return finish(stamped, VLLM_BENCH, path=file.path, sha256=file.sha256, num_dropped=num_dropped)


LLMSERVINGSIM = TraceFormat(
    name="llmservingsim",
    summary='JSON lines like {"request_id": "a", "input_toks": 20, "output_toks": 9, "arrival_time": 1777142838.3}',
    keys=("input_toks", "output_toks", "arrival_time"),
    read=read_lines,
    clock=Clock(key="arrival_time", unit="seconds", absolute=True),
    is_json=True,
)

VLLM_BENCH = TraceFormat(
    name="vllm-bench",
    summary="the JSON result of vllm bench serve --save-detailed: input_lens, output_lens, start_times",
    keys=("input_lens", "output_lens"),
    read=read_result,
    clock=Clock(key="start_times", unit="seconds", absolute=True),
    is_json=True,
)
