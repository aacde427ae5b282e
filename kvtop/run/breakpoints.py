"""Where a run is to stop: what happens (``preempt``), to whom (``request r7``), or a level crossed (``fresh<64``).

Evaluated in the engine's process after every step, so that nothing runs on meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from kvtop.engine.errors import UnknownName, UsageError
from kvtop.engine.events import DECISION_FIELDS, StepEvent

KINDS = {
    "preempt": "preempted", "evict": "evict", "reject": "rejected", "finish": "finished", "admit": "admitted",
    "abort": "aborted", "copy": "copy", "resume": "resumed",
}  # fmt: skip
"""Word -> kind of decision."""
LEVELS: dict[str, Callable[[StepEvent], int]] = {
    "fresh": lambda step: step.fresh_blocks,
    "idle": lambda step: step.idle_blocks,
    "used": lambda step: step.used_blocks,
    "free": lambda step: step.fresh_blocks + step.idle_blocks,
    "waiting": lambda step: step.num_waiting,
    "running": lambda step: step.num_running,
    "prefill": lambda step: step.prefill_tokens,
    "decode": lambda step: step.decode_tokens,
    "step": lambda step: step.step,
}
_LEVEL = re.compile(r"([a-z]+)\s*(<|>|=)\s*(\d[\d_,]*)")
_REQUEST_KINDS = ("arrived", "rejected", "admitted", "resumed", "preempted", "first_token", "finished", "aborted")
FORMS = "preempt, evict, admit, finish, request ID, block N, fresh<N (or idle, used, free, waiting, running, step)"


@dataclass(slots=True)
class Breakpoint:
    """``text`` as it was given; ``hit`` says what made it stop. A level stops the run when it is crossed, not after."""

    text: str
    look: Callable[[StepEvent], str]
    crossing: bool = False
    num_hits: int = 0
    _was: bool = field(default=False, repr=False)

    def hit(self, step: StepEvent) -> str:
        """What happened in ``step`` ("": nothing)."""
        found = self.look(step)
        if self.crossing:
            found, self._was = ("" if self._was else found), bool(found)
        self.num_hits += bool(found)
        return found


def parse_breakpoint(text: str) -> Breakpoint:
    """A breakpoint from its words.

    Raises:
        UsageError: the words mean nothing; UnknownName: a level that does not exist.
    """
    words = text.strip()
    if level := _LEVEL.fullmatch(words):
        name, sign, number = level.groups()
        if name not in LEVELS:
            raise UnknownName("level", name, LEVELS)
        return Breakpoint(words, _level(name, sign, int(re.sub("[_,]", "", number))), crossing=True)
    head, _, rest = words.partition(" ")
    rest = rest.strip()
    if head == "request" and rest:
        return Breakpoint(words, _request(rest))
    if head == "block" and rest.isdigit():
        return Breakpoint(words, _block(int(rest)))
    if words in KINDS:
        return Breakpoint(words, _kind(KINDS[words]))
    raise UsageError(f"breakpoint {text!r} means nothing, expected one of: {FORMS}")


def _level(name: str, sign: str, number: int) -> Callable[[StepEvent], str]:
    read = LEVELS[name]

    def look(step: StepEvent) -> str:
        value = read(step)
        true = value < number if sign == "<" else value > number if sign == ">" else value == number
        return f"{name} is {value:,}" if true else ""

    return look


def _kind(kind: str) -> Callable[[StepEvent], str]:
    def look(step: StepEvent) -> str:
        found = next((decision for decision in step.decisions if decision[0] == kind), None)
        return "" if found is None else f"{kind}: {found[1]}"

    return look


def _request(name: str) -> Callable[[StepEvent], str]:
    """A turn in the life of the request, or of one of its branches."""

    def look(step: StepEvent) -> str:
        for decision in step.decisions:
            if decision[0] in _REQUEST_KINDS and (decision[1] == name or decision[1].startswith(f"{name}#")):
                return f"{decision[1]}: {decision[0]}"
        return ""

    return look


def _block(block: int) -> Callable[[StepEvent], str]:
    places = {kind: fields.index("block") + 1 for kind, fields in DECISION_FIELDS.items() if "block" in fields}

    def look(step: StepEvent) -> str:
        for decision in step.decisions:
            place = places.get(decision[0])
            if place is not None and decision[place] == block:
                who = decision[1] if isinstance(decision[1], str) else ""
                return f"block {block}: {decision[0]}{f' by {who}' if who else ''}"
        return ""

    return look


class Stops:
    """The breakpoints of a run, and what it is to run until once."""

    def __init__(self) -> None:
        self._set: list[Breakpoint] = []
        self._until: list[Breakpoint] = []

    def set(self, texts: list[str]) -> None:
        """Raises: UsageError, UnknownName; nothing is changed then."""
        self._set = [parse_breakpoint(text) for text in texts]

    def until(self, texts: list[str]) -> None:
        """Raises: UsageError, UnknownName; nothing is changed then."""
        self._until = [parse_breakpoint(text) for text in texts]

    def forget_until(self) -> None:
        self._until = []

    def check(self, step: StepEvent) -> str:
        """Why to stop after ``step``; "" to go on."""
        reasons = [f"{stop.text} ({found})" for stop in (*self._set, *self._until) if (found := stop.hit(step))]
        return reasons[0] if reasons else ""
