"""Request traces of the Splitwise simulator: CSV of arrival in seconds, prompt size and number of tokens generated.

Header ``request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size``; only the arrival
and the two sizes are used. Source: Patel et al., "Splitwise", ISCA 2024.
"""

from __future__ import annotations

from kvtop.workloads.files import TextFile
from kvtop.workloads.formats.base import Clock, ReadOptions, Stamped, Trace, TraceFormat, finish
from kvtop.workloads.formats.csv_rows import read_table
from kvtop.workloads.rows import Row


def read(file: TextFile, options: ReadOptions) -> Trace:
    """Read every row; a malformed one raises WorkloadError with its number and reason."""
    stamped: list[Stamped] = []
    num_dropped = 0
    for line, cells in read_table(file, SPLITWISE.keys):
        prompt_tokens = cells["prompt_size"].count()
        output_tokens = cells["token_size"].count(low=0)
        if output_tokens == 0:
            num_dropped += 1
            continue
        stamped.append(Stamped(line, cells["arrival_timestamp"].seconds_ns(), Row(0, prompt_tokens, output_tokens)))
    return finish(stamped, SPLITWISE, path=file.path, sha256=file.sha256, num_dropped=num_dropped)


SPLITWISE = TraceFormat(
    name="splitwise",
    summary="CSV with the columns arrival_timestamp,prompt_size,token_size",
    keys=("arrival_timestamp", "prompt_size", "token_size"),
    read=read,
    clock=Clock(key="arrival_timestamp", unit="seconds"),
)
