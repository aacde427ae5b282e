"""What begins when a session arrives: one entry in ``STRUCTURES`` for each shape of a session.

A structure makes the requests of one session after the other. Turns of a conversation are made of tokens that are
known beforehand, the answers too (``Row.conversation``), so that the next turn's prompt is the same under every policy
and finds the blocks of generated tokens in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.generators.base import REQUIRED, Place, filled
from kvtop.workloads.generators.distributions import distribution, trace_lengths
from kvtop.workloads.generators.draws import Draws, Weighted, zipf_weights
from kvtop.workloads.generators.options import NS_PER_S, integer, number, shown
from kvtop.workloads.rows import MAX_LENGTH_TOKENS, Row

MAX_TOKENS = MAX_LENGTH_TOKENS // 2
MAX_SAMPLES = 1024
MAX_TURNS = 10_000
MAX_DOCUMENTS = 1_000_000
ORDERS = ("relevance", "fixed")


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """What a structure may use of its stream."""

    draws: Callable[[str], Draws]  # random numbers for one purpose
    new_ids: Callable[[str, int], int]  # (kind, count) -> the first of as many numbers that nobody else has
    system_prompt: Callable[[], tuple[int, int]]  # (shared_id, tokens) of the next session's
    within: str


Sessions = Iterator[list[Row]]
"""Endless. A row's ``arrival_ns`` is 0; ``think_ns`` is set where it waits for the row before it."""


class Structure(msgspec.Struct, frozen=True, kw_only=True):
    """One shape of a session. ``counted`` is the option that says how many sessions there are."""

    name: str
    summary: str
    options: dict[str, Any]
    sessions: Callable[[dict[str, Any], Scene], Sessions]
    counted: str = "num_sessions"


SAMPLING: dict[str, Any] = {"n": 1, "num_beams": 1, "temperature": 0.0}


def _sampling(options: dict[str, Any], within: str) -> dict[str, Any]:
    num_samples = integer(options, "n", 1, MAX_SAMPLES, within)
    num_beams = integer(options, "num_beams", 1, MAX_SAMPLES, within)
    temperature = number(options, "temperature", 0.0, 100.0, within)
    if num_beams > 1 and temperature > 0:
        raise WorkloadError(f"{within}num_beams is {num_beams} at temperature {temperature:g}, expected temperature 0")
    if num_beams > 1 and num_samples > num_beams:
        raise WorkloadError(f"{within}n is {num_samples}, expected at most num_beams ({num_beams})")
    return {"n": num_samples, "num_beams": num_beams, "temperature": temperature}


def _tokens(options: dict[str, Any], key: str, scene: Scene, purpose: str, column: str = "prompt") -> Callable[[], int]:
    """Draws a length of at least 1."""
    draw = distribution(options, key, Place(scene.within, column, True, 1, MAX_TOKENS))
    draws = scene.draws(purpose)
    return lambda: int(draw(draws))


def _think_ns(options: dict[str, Any], key: str, scene: Scene) -> Callable[[], int]:
    draw = distribution(options, key, Place(scene.within, "prompt", False, 0, 1e7))
    draws = scene.draws("think")
    return lambda: round(draw(draws) * NS_PER_S)


def _lengths(options: dict[str, Any], scene: Scene) -> Callable[[], tuple[int, int]]:
    """Draws (user prompt, output): each by itself, or the two of one recorded request."""
    if options["lengths"] is None:
        prompt = _tokens(options, "user_prompt_tokens", scene, "prompts")
        output = _tokens(options, "output_tokens", scene, "outputs", "output")
        return lambda: (prompt(), output())
    place, table = f"{scene.within}lengths", options["lengths"]
    if not isinstance(table, dict):
        raise WorkloadError(f"{place} is {shown(table)}, expected a table with the path of a trace")
    own = filled(table, {"path": REQUIRED, "format": None}, "key of", f"{place}.")
    pairs, draws = trace_lengths(own, f"{place}."), scene.draws("prompts")
    return lambda: pairs[draws.integer(0, len(pairs) - 1)]


def _single(options: dict[str, Any], scene: Scene) -> Sessions:
    lengths, sampling = _lengths(options, scene), _sampling(options, scene.within)
    while True:
        shared_id, system = scene.system_prompt()
        user, output = lengths()
        yield [Row(0, system + user, output, shared_tokens=system, shared_id=shared_id, **sampling)]


def _rag(options: dict[str, Any], scene: Scene) -> Sessions:
    """Chunks stand between the system prompt and the question."""
    lengths, sampling = _lengths(options, scene), _sampling(options, scene.within)
    num_documents = integer(options, "documents", 1, MAX_DOCUMENTS, scene.within)
    num_chunks = integer(options, "chunks", 1, min(num_documents, 1000), scene.within)
    size = integer(options, "chunk_tokens", 1, MAX_TOKENS // num_chunks, scene.within)
    popularity = Weighted(zipf_weights(num_documents, number(options, "skew", 0.0, 10.0, scene.within)))
    if (order := options["order"]) not in ORDERS:
        raise WorkloadError(f"{scene.within}order is {shown(order)}, expected {' or '.join(ORDERS)}")
    first, draws = scene.new_ids("hash", num_documents), scene.draws("documents")
    while True:
        shared_id, system = scene.system_prompt()
        user, output = lengths()
        found = _distinct(popularity, draws, num_chunks, num_documents)
        ids = tuple(first + document for document in (sorted(found) if order == "fixed" else found))
        prompt = system + num_chunks * size + user
        own = {"hash_ids": ids, "hash_block_tokens": size, "shared_tokens": system, "shared_id": shared_id}
        yield [Row(0, prompt, output, **own, **sampling)]


def _distinct(popularity: Weighted, draws: Draws, count: int, total: int) -> list[int]:
    """``count`` different documents, in the order drawn; the most popular ones that are left, where luck gives none."""
    found: dict[int, None] = {}
    for _ in range(50 * count):
        found[popularity.draw(draws)] = None
        if len(found) == count:
            return list(found)
    left = (document for document in range(total) if document not in found)
    return [*found, *(next(left) for _ in range(count - len(found)))]


def _turns(
    scene: Scene,
    count: Callable[[], int],
    added: Callable[[int], int],
    answered: Callable[[int, int], int],
    think_ns: Callable[[], int],
) -> Sessions:
    """Conversations: turn t adds ``added(t)`` tokens to what was said, and is answered by ``answered(t, turns)``."""
    while True:
        (shared_id, system), conversation, turns = scene.system_prompt(), scene.new_ids("conversation", 1), count()
        rows, said = [], 0
        for turn in range(turns):
            said += added(turn)
            output = answered(turn, turns)
            rows.append(
                Row(
                    0,
                    system + said,
                    output,
                    shared_tokens=system,
                    shared_id=shared_id,
                    conversation=conversation,
                    turn=turn,
                    think_ns=think_ns() if turn else None,
                )
            )
            said += output
        if rows[-1].prompt_tokens > MAX_LENGTH_TOKENS:
            raise WorkloadError(f"{scene.within}a session has {rows[-1].prompt_tokens:,} tokens after {turns} turns")
        yield rows


def _count(options: dict[str, Any], key: str, scene: Scene) -> Callable[[], int]:
    draw = distribution(options, key, Place(scene.within, "prompt", True, 1, MAX_TURNS))
    draws = scene.draws("turns")
    return lambda: int(draw(draws))


def _chat(options: dict[str, Any], scene: Scene) -> Sessions:
    user = _tokens(options, "user_prompt_tokens", scene, "prompts")
    output = _tokens(options, "output_tokens", scene, "outputs", "output")
    count, think_ns = _count(options, "turns", scene), _think_ns(options, "think_s", scene)
    return _turns(scene, count, lambda turn: user(), lambda turn, turns: output(), think_ns)


def _agent(options: dict[str, Any], scene: Scene) -> Sessions:
    task = _tokens(options, "task_tokens", scene, "tasks")
    result = _tokens(options, "tool_result_tokens", scene, "prompts")
    call = _tokens(options, "call_tokens", scene, "outputs", "output")
    answer = _tokens(options, "answer_tokens", scene, "answers", "output")
    calls, tool_ns = _count(options, "tool_calls", scene), _think_ns(options, "tool_s", scene)
    return _turns(
        scene,
        lambda: calls() + 1,
        lambda turn: result() if turn else task(),
        lambda turn, turns: call() if turn < turns - 1 else answer(),
        tool_ns,
    )


SHAPES = (
    Structure(
        name="single",
        summary="one request: system prompt, then a user prompt of its own",
        options={"user_prompt_tokens": [32, 256], "output_tokens": [16, 64], "lengths": None, **SAMPLING},
        sessions=_single,
        counted="num_requests",
    ),
    Structure(
        name="rag",
        summary="one request: system prompt, retrieved chunks that other requests retrieve too, then a question",
        options={
            "documents": 1000, "chunks": 5, "chunk_tokens": 256, "skew": 1.0, "order": "relevance",
            "user_prompt_tokens": [16, 64], "output_tokens": [32, 128], "lengths": None, **SAMPLING,
        },
        sessions=_rag,
        counted="num_requests",
    ),
    Structure(
        name="chat",
        summary="a conversation: each turn's prompt is all that was said before, and new user text",
        options={
            "turns": {"kind": "geometric", "mean": 4.0, "high": 50}, "user_prompt_tokens": [16, 128],
            "output_tokens": [32, 256], "think_s": {"kind": "exponential", "mean": 10.0},
        },
        sessions=_chat,
    ),
    Structure(
        name="agent",
        summary="a tool loop: short calls, tool results that make the context grow, a longer answer at the end",
        options={
            "tool_calls": {"kind": "geometric", "mean": 8.0, "high": 100}, "task_tokens": [100, 500],
            "tool_result_tokens": [100, 2000], "call_tokens": [30, 120], "answer_tokens": [200, 600],
            "tool_s": {"kind": "exponential", "mean": 2.0},
        },
        sessions=_agent,
    ),
)  # fmt: skip

STRUCTURES: dict[str, Structure] = {shape.name: shape for shape in SHAPES}
