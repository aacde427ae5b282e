"""Cuts and stretches rows: limit, gaps, lengths, and what to do with requests that the model cannot hold.

Lengths. A factor is taken as the decimal that was written (0.1 is 1/10), and rounding is up, so nothing becomes 0.
Rows with hash ids: a hash block of H tokens becomes ``B = max(1, round(H * factor))`` tokens; F full blocks become
F * B tokens, and a partial one of r tokens becomes ``ceil(r * B / H)``. So every id keeps its block, equal ids still
mean equal tokens, and where H * factor is whole the prompt is exactly ``ceil(prompt * factor)``.
"""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import msgspec

from kvtop.engine.errors import UnknownName, WorkloadError
from kvtop.workloads.rows import MAX_LENGTH_TOKENS, Row, own_tokens
from kvtop.workloads.words import counted

TOO_LONG = ("reject", "clip", "truncate")
MAX_NS = 2**63 - 1
replace = msgspec.structs.replace


def check_factor(value: float, name: str, *, zero: bool = False) -> Fraction:
    """The factor as an exact fraction of its shortest decimal.

    Raises:
        WorkloadError: not a finite number above 0 (or, with ``zero``, below 0).
    """
    ok = isinstance(value, int | float) and math.isfinite(value) and (value > 0 or (zero and value == 0))
    if not ok:
        raise WorkloadError(f"{name} is {value!r}, expected a finite number {'>=' if zero else '>'} 0")
    return Fraction(repr(value))


def cut(rows: list[Row], limit: int | None) -> tuple[list[Row], list[str]]:
    """Keep the first ``limit`` rows in order of arrival.

    Raises:
        WorkloadError: a limit below 1.
    """
    if limit is None:
        return rows, []
    if limit < 1:
        raise WorkloadError(f"limit is {limit}, expected at least 1 request")
    if limit > len(rows):
        return rows, [f"limit {limit:,} is more than there is: {counted(len(rows), 'request')} served"]
    return rows[:limit], []


def only_sharing(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Keep the rows that hold a hash id which another row holds too; ids that every row holds do not count.

    In a trace of conversations these are the turns that continue one, and those that are continued.
    """
    holders = Counter(hash_id for row in rows for hash_id in set(row.hash_ids))
    shared = {hash_id for hash_id, num_rows in holders.items() if 1 < num_rows < len(rows)}
    kept = [row for row in rows if not shared.isdisjoint(row.hash_ids)]
    if not kept:
        raise WorkloadError("no two rows share a prefix that not all rows have: nothing is left by sharing_only")
    start_ns = kept[0].arrival_ns
    return [replace(row, arrival_ns=row.arrival_ns - start_ns) for row in kept], [
        f"{len(kept):,} of {counted(len(rows), 'request')} are served: those that share a prefix with another"
    ]


def scale_time(rows: list[Row], factor: Fraction) -> list[Row]:
    """Multiply the gaps between arrivals, and the think times.

    Every time is rounded once from the exact product, so nothing drifts.
    """
    longest = max((row.arrival_ns + (row.think_ns or 0) for row in rows), default=0)
    if round(longest * factor) > MAX_NS:
        raise WorkloadError(f"the last arrival is beyond 292 years at time_scale {float(factor):g}, expected sooner")
    if factor == 1:
        return rows
    return [
        replace(
            row,
            arrival_ns=round(row.arrival_ns * factor),
            think_ns=None if row.think_ns is None else round(row.think_ns * factor),
        )
        for row in rows
    ]


def scale_lengths(rows: list[Row], factor: Fraction) -> tuple[list[Row], list[str]]:
    """Multiply prompt and output lengths; see the module's text for the rule and its rounding."""
    if factor == 1:
        return rows, []
    scaled = [_scale_row(row, factor) for row in rows]
    _scale_conversations(rows, scaled, factor)
    longest = max(max(row.prompt_tokens, row.output_tokens) for row in scaled)
    if longest > MAX_LENGTH_TOKENS:
        raise WorkloadError(
            f"length_scale {float(factor):g} makes a request of {float(longest):.4g} tokens, "
            f"expected at most {MAX_LENGTH_TOKENS:,}"
        )
    inexact = sorted({row.hash_block_tokens for row in rows if (row.hash_block_tokens * factor).denominator != 1})
    return scaled, [
        f"length_scale {float(factor):g} makes a hash block of {counted(block, 'token')} "
        f"{counted(_block(block, factor), 'token')}: prompts are scaled by {_block(block, factor) / block:.4g}"
        for block in inexact
    ]


def fit(rows: list[Row], policy: str, max_model_len: int | None) -> tuple[list[Row], list[str]]:
    """Apply the policy to rows whose prompt + output exceed ``max_model_len``, and count them.

    reject: nothing is changed; the engine rejects a prompt that leaves no room for a token, and ends any other with
    ``length``. clip: the output is cut. truncate: the prompt is cut to its head (shared prefixes are at the head),
    and the output only where it alone would not fit.

    Raises:
        UnknownName: no such policy.
    """
    if policy not in TOO_LONG:
        raise UnknownName("too-long policy", policy, TOO_LONG)
    if max_model_len is None:
        return rows, []
    changed = {"reject": _reject, "clip": _clip, "truncate": _truncate}[policy]
    too_long = [i for i, row in enumerate(rows) if row.prompt_tokens + row.output_tokens > max_model_len]
    return changed(rows, too_long, max_model_len) if too_long else (rows, [])


def _ceil(value: int, factor: Fraction) -> int:
    return -(-value * factor.numerator // factor.denominator)


def _block(block: int, factor: Fraction) -> int:
    return max(1, round(block * factor)) if block else 0


def _scale_row(row: Row, factor: Fraction) -> Row:
    block = row.hash_block_tokens
    new_block = _block(block, factor)
    own = own_tokens(row)
    in_blocks = row.prompt_tokens - row.shared_tokens - own
    shared = _ceil(row.shared_tokens, factor)
    new_in_blocks = 0
    if in_blocks:
        full, rest = divmod(in_blocks, block)
        new_in_blocks = full * new_block + -(-rest * new_block // block)
    return replace(
        row,
        prompt_tokens=shared + new_in_blocks + _ceil(own, factor),
        output_tokens=_ceil(row.output_tokens, factor),
        hash_block_tokens=new_block,
        shared_tokens=shared,
    )


def _scale_conversations(rows: list[Row], scaled: list[Row], factor: Fraction) -> None:
    """Set the prompts of conversations in ``scaled``: what each turn adds is scaled, so that a turn's prompt still
    holds the one before and its answer whole."""
    ends: dict[int, tuple[int, int]] = {}  # where the last turn's answer ended, before and after scaling
    for index, row in enumerate(rows):
        if row.conversation is None:
            continue
        own = own_tokens(row)
        end, new_end = ends.get(row.conversation, (0, 0))
        new_own = max(min(own, 1), new_end + _ceil(own - end, factor))
        new = scaled[index]
        scaled[index] = replace(new, prompt_tokens=new.prompt_tokens - own_tokens(new) + new_own)
        ends[row.conversation] = (own + row.output_tokens, new_own + new.output_tokens)


def _reject(rows: list[Row], too_long: list[int], limit: int) -> tuple[list[Row], list[str]]:
    num_rejected = sum(rows[i].prompt_tokens >= limit for i in too_long)
    num_short = len(too_long) - num_rejected
    notices = _rejected(num_rejected, limit)
    if num_short:
        notices.append(f"exceed {limit:,} tokens with their output, will end early (length): {_requests(num_short)}")
    return rows, notices


def _clip(rows: list[Row], too_long: list[int], limit: int) -> tuple[list[Row], list[str]]:
    out = list(rows)
    num_clipped = 0
    for i in too_long:
        room = limit - rows[i].prompt_tokens
        if room >= 1:
            out[i] = replace(rows[i], output_tokens=room)
            num_clipped += 1
    notices = [f"output clipped to fit {limit:,} tokens: {_requests(num_clipped)}"] if num_clipped else []
    return out, notices + _rejected(len(too_long) - num_clipped, limit)


def _truncate(rows: list[Row], too_long: list[int], limit: int) -> tuple[list[Row], list[str]]:
    if limit < 2:
        raise WorkloadError(f"too_long truncate needs a model length of at least 2 tokens, found {limit}")
    out = list(rows)
    num_outputs = 0
    for i in too_long:
        prompt = max(1, min(rows[i].prompt_tokens, limit - rows[i].output_tokens))
        output = min(rows[i].output_tokens, limit - prompt)
        num_outputs += output < rows[i].output_tokens
        out[i] = _cut_prompt(rows[i], prompt, output)
    notices = [f"prompt truncated to fit {limit:,} tokens: {_requests(len(too_long))}"]
    if num_outputs:
        notices.append(f"output clipped too, it alone did not fit {limit:,} tokens: {_requests(num_outputs)}")
    return out, notices


def _rejected(count: int, limit: int) -> list[str]:
    return [f"prompt of {limit:,} tokens or more, will be rejected: {_requests(count)}"] if count else []


def _requests(count: int) -> str:
    return counted(count, "request")


def _cut_prompt(row: Row, prompt_tokens: int, output_tokens: int) -> Row:
    shared = min(row.shared_tokens, prompt_tokens)
    num_ids = -(-(prompt_tokens - shared) // row.hash_block_tokens) if row.hash_block_tokens else 0
    return replace(
        row,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        shared_tokens=shared,
        hash_ids=row.hash_ids[:num_ids],
    )
