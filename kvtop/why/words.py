"""Reasons as a reader says them. Every function takes numbers and gives a phrase without a full stop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvtop.cli.text import format_ns
from kvtop.workloads.words import counted, was


def were(count: int) -> str:
    return f"{count:,} {was(count)}"


def lasting(duration_ns: int | None, num_steps: int) -> str:
    """``120 ms (12 steps)``; the steps alone where times are not known."""
    steps = counted(num_steps, "step")
    return steps if duration_ns is None else f"{format_ns(duration_ns)} ({steps})"


def span(first: int, last: int) -> str:
    return f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"


def listed(names: list[str], most: int = 3) -> str:
    """``a, b and c``; beyond ``most`` names ``a, b, c and 4 more``."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most:,} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def refusal(
    reason: str, need: int | None, have: int | None, other: str | None, held: int | None, run: Mapping[str, Any]
) -> str:
    """Why somebody at the head of the queue was not admitted."""
    need, have = need or 0, have or 0
    if reason == "no_blocks":
        return f"no room: {counted(need, 'block')} needed, {were(have)} available{_held_most(other, held)}"
    if reason == "no_hole":
        return f"no hole: {counted(need, 'block')} needed in one piece, {were(have)} free{_held_most(other, held)}"
    if reason == "pinned":
        return f"pinned blocks: {counted(need, 'block')} needed, {were(have)} available without those that are pinned"
    if reason == "seats":
        return f"no seat: all {have:,} were taken (max_num_seqs)"
    if reason == "budget":
        return _budget(need, have, run)
    return {
        "preempting": "the step preempted somebody, and such a step admits nobody",
        "fault": "an injected fault of the allocator",
        "beams": "other beams of its request had no candidates yet, so nothing could be chosen",
        "": "the log does not say why",
    }.get(reason, reason)


def _held_most(other: str | None, held: int | None) -> str:
    if not other:
        return ""
    return f"; {other} held most ({counted(held, 'block')})" if held else f"; {other} held most"


def _budget(need: int, have: int, run: Mapping[str, Any]) -> str:
    limit = run.get("max_batched_tokens")
    if have == 0:
        return "the step's token budget" + (f" of {limit:,}" if limit else "") + " was spent"
    if have == limit:
        return f"the token budget of a step, {limit:,}, has no token for one more running sequence"
    return f"its {need:,} tokens must be computed in one step, {were(have)} left of the budget"


def match_end(
    reason: str, cached: int, prompt: int, other: str | None, age_steps: int | None, block_size: int | None,
    from_host: int = 0,
) -> str:  # fmt: skip
    """Where the prefix match of an admission ended, and why. ``from_host``: of ``cached``, what the host tier had."""
    found = f"prefix: {cached:,} of {counted(prompt, 'prompt token')} found in the cache"
    if from_host:
        found += f", {'all' if from_host == cached else f'{from_host:,}'} of them in host memory"
    if reason == "cache_off":
        return "prefix: nothing looked up, prefix caching is off"
    if reason == "prompt_logprobs":
        return "prefix: nothing looked up, all of a prompt is computed whose logprobs are asked for"
    if reason == "last_token":
        if not cached and block_size and prompt <= block_size:
            return f"prefix: nothing to find, the prompt has no full block of {block_size:,} before its last token"
        return f"{found}, which is all that may be: whole blocks, and the last token is always computed"
    return f"{found}: {_why_missed(reason, 'next' if cached else 'first', other, age_steps)}"


def _why_missed(reason: str, which: str, other: str | None, age_steps: int | None) -> str:
    """``which`` block the match ended at."""
    if reason == "evicted":
        ago = "before" if age_steps is None else f"{counted(age_steps, 'step')} before"
        if other == "reset":
            return f"a reset of the cache had dropped the {which} block {ago}"
        if other == "limit":
            return f"the {which} block had been evicted {ago}, when the pool was made smaller"
        if other == "forced":
            return f"the {which} block had been evicted by hand {ago}"
        return f"the {which} block had been evicted {ago}" + (f", for {other}" if other else "")
    if reason == "not_yet_computed":
        return f"{other or 'another request'} was computing the {which} block at that time"
    return {
        "never_seen": f"the {which} block had never been seen before",
        "other_salt": f"the tokens of the {which} block are cached under another extra key (salt, adapter)",
    }.get(reason, reason)


def ending(reason: str, output: int, request: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """Why a sequence ended after ``output`` tokens."""
    tokens = counted(output, "token")
    if reason == "length":
        if output == request.get("requested_output_tokens"):
            return f"ended with {'all' if output > 1 else 'the'} {tokens} it asked for"
        limit = run.get("max_model_len")
        return f"ended after {tokens}: prompt and output reached the longest length" + (f", {limit:,}" if limit else "")
    return {
        "stop": f"ended after {tokens}: a stop token",
        "capacity": f"ended after {tokens} for want of capacity: alone in the pool, and still no block to grow into",
        "aborted": f"aborted from outside after {tokens}",
        "failed": f"failed after {tokens}",
        "dropped": "ended with its request: a beam that is none of the answers",
    }.get(reason, f"ended after {tokens}: {reason}")


def rejection(reason: str | None, prompt: int, error: str, run: Mapping[str, Any]) -> str:
    """Why a request never entered the queue. ``error`` is the engine's own line, where it was kept."""
    if reason == "RequestTooLong":
        limit = run.get("max_model_len")
        most = f"at most {limit - 1:,} are served" if limit else "more than can be served"
        return f"rejected at submission: {counted(prompt, 'prompt token')}, {most}"
    if error:
        return f"rejected at submission: {error}"
    return "rejected at submission: " + {"QueueFull": "the queue was full"}.get(str(reason), "the request is not valid")
