"""What is asked of an attached session leaves nothing behind in it."""

from __future__ import annotations

import gc
from types import FunctionType, ModuleType

from kvtop.attach.session import AttachSession, AttachSpec
from kvtop.engine.events import FindPrompt

EACH = 200


def size_of(root: object) -> int:
    """Objects that can be reached from ``root``."""
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen and not isinstance(one, type | ModuleType | FunctionType):
            seen[id(one)] = one
            waiting += gc.get_referents(one)
    return len(seen)


def test_prompts_that_were_looked_up_leave_nothing() -> None:
    """Each has a thread of its own."""
    session = AttachSession(AttachSpec([]))

    def ask() -> int:
        for _ in range(EACH):
            session.send(FindPrompt(text="x"))
            assert session.poll(30.0)
        return size_of(session)

    before = ask()
    assert ask() - before < EACH / 10
