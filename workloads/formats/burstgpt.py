"""BurstGPT CSV: arrival in seconds, model, token counts, kind of log; some versions with sessions and elapsed times.

Columns are ``Timestamp`` (s), ``Model``, ``Request tokens``, ``Response tokens``, ``Total tokens``, ``Log Type``, and
in some versions ``Session ID`` and ``Elapsed time`` (s from the request to the end of its answer). Rows with 0
response tokens are failures: they are dropped and counted. Turns of a session wait for each other; no prefix is
known, so they share none. Source: Wang et al., "BurstGPT: A Real-World Workload Dataset to Optimize LLM Serving
Systems", KDD 2025.
"""

from __future__ import annotations

import msgspec

from kvtop.workloads.files import TextFile
from kvtop.workloads.formats.base import Clock, ReadOptions, Stamped, Trace, TraceFormat, finish
from kvtop.workloads.formats.csv_rows import read_table
from kvtop.workloads.rows import Row
from kvtop.workloads.words import counted

SESSION, ELAPSED, LOG = "Session ID", "Elapsed time", "Log Type"


def read(file: TextFile, options: ReadOptions) -> Trace:
    """Read every row; a malformed one raises WorkloadError with its number and reason."""
    stamped: list[Stamped] = []
    elapsed_ns: list[int | None] = []  # by row, which carries its position as turn until it is linked
    num_dropped = num_empty = 0
    for line, cells in read_table(file, BURSTGPT.keys, wanted=(SESSION, ELAPSED, LOG)):
        prompt_tokens = cells["Request tokens"].count(low=0)
        output_tokens = cells["Response tokens"].count(low=0)
        if output_tokens == 0 or prompt_tokens == 0:
            num_dropped += output_tokens == 0
            num_empty += output_tokens > 0
            continue
        row = Row(0, prompt_tokens, output_tokens, klass=cells[LOG].text.strip() if LOG in cells else "")
        if SESSION in cells and (session := cells[SESSION].text.strip()):
            row = msgspec.structs.replace(row, session_id=session, turn=len(elapsed_ns))
            elapsed_ns.append(cells[ELAPSED].seconds_ns() if ELAPSED in cells else None)
        stamped.append(Stamped(line, cells["Timestamp"].seconds_ns(), row))
    notices = [f"{counted(num_empty, 'row')} with 0 request tokens dropped"] if num_empty else []
    trace = finish(stamped, BURSTGPT, path=file.path, sha256=file.sha256, num_dropped=num_dropped, notices=notices)
    rows, more = _linked(trace.rows, elapsed_ns)
    return msgspec.structs.replace(
        trace, rows=rows, notices=[*trace.notices, *more], num_dropped=num_dropped + num_empty
    )


def _linked(rows: list[Row], elapsed_ns: list[int | None]) -> tuple[list[Row], list[str]]:
    """Turns numbered in order of arrival; a think time is what is left between an answer's end and the next turn."""
    last: dict[str, tuple[int, int]] = {}  # by session: number of its last turn, ns at which the answer ended
    num_unknown = num_overlaps = 0
    linked = []
    for row in rows:
        if row.session_id:
            took_ns = elapsed_ns[row.turn]
            turn, end_ns = last.get(row.session_id, (0, 0))
            think_ns = None
            if turn:
                think_ns = max(0, row.arrival_ns - end_ns)
                num_overlaps += row.arrival_ns < end_ns
            num_unknown += took_ns is None
            row = msgspec.structs.replace(row, turn=turn + 1, think_ns=think_ns)
            last[row.session_id] = turn + 1, row.arrival_ns + (took_ns or 0)
        linked.append(row)
    notices = []
    if num_unknown:
        notices.append(
            f"{counted(num_unknown, 'row')} without {ELAPSED}: think times count from the arrival of the turn before"
        )
    if num_overlaps:
        notices.append(
            f"{counted(num_overlaps, 'turn')} arrived before the answer of the turn before had ended: think time 0"
        )
    return linked, notices


BURSTGPT = TraceFormat(
    name="burstgpt",
    summary="CSV with the columns Timestamp,Model,Request tokens,Response tokens",
    keys=("Timestamp", "Model", "Request tokens", "Response tokens"),
    read=read,
    clock=Clock(key="Timestamp", unit="seconds", max_days=366),
)
