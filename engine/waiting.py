"""The waiting queue: sequences in the order of the queue policy. A preempted one returns to its own place."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any

from kvtop.engine.policies.registry import Policy, PolicyContext, SequenceKey
from kvtop.engine.sequence import Sequence


class WaitingQueue:
    """A sorted list. With a static policy a key is computed once; with a dynamic one ``begin_step`` sorts anew."""

    def __init__(self, policy: Policy[SequenceKey], context: PolicyContext) -> None:
        self.policy = policy
        self._context = context
        self._entries: list[tuple[tuple[Any, ...], Sequence]] = []
        self._keys: dict[str, tuple[Any, ...]] = {}
        self._aside: list[Sequence] = []  # beams with candidates: they have nothing to be admitted for

    def __len__(self) -> int:
        return len(self._entries) + len(self._aside)

    def __iter__(self) -> Iterator[Sequence]:
        """In queue order, those that are set aside last."""
        yield from (seq for _, seq in self._entries)
        yield from self._aside

    def begin_step(self, step: int, *, sort: bool = True) -> None:
        """Order the queue for this step. ``sort`` False: nobody can be admitted in it, the order of before will do.

        Complexity with a dynamic policy: one key a waiting sequence, then a sort of what is nearly in order.
        """
        self._context.step = step
        policy = self.policy
        if policy.prepare is not None:  # an empty queue too: whoever comes next must not pass for having waited
            policy.prepare(self, self._context)
        if sort and policy.dynamic and len(self._entries) > 1:
            rule, context = policy.rule, self._context
            self._entries = sorted([(rule(seq, context), seq) for _, seq in self._entries])
            self._keys = {seq.seq_id: key for key, seq in self._entries}

    def use(self, policy: Policy[SequenceKey]) -> None:
        """Order everybody who waits by another policy from now on."""
        self.policy = policy
        self._context.memo.clear()
        if policy.prepare is not None:
            policy.prepare(self, self._context)
        waiting = [seq for _, seq in self._entries]
        self._entries, self._keys = [], {}
        for seq in waiting:
            self.push(seq)

    def head(self) -> Sequence | None:
        return self._entries[0][1] if self._entries else None

    def push(self, seq: Sequence) -> None:
        """A beam that has its candidates is set aside: it is never the head. Complexity: O(log n) comparisons."""
        if seq.candidates:
            self._aside.append(seq)
            return
        key = self.policy.rule(seq, self._context)
        self._keys[seq.seq_id] = key
        insort(self._entries, (key, seq))

    def remove(self, seq: Sequence) -> None:
        if seq in self._aside:
            self._aside.remove(seq)
            return
        key = self._keys.pop(seq.seq_id)
        index = bisect_left(self._entries, (key,))  # less than the entry itself, greater than those before it
        assert self._entries[index][1] is seq, f"{seq.seq_id} is not where its key says"
        del self._entries[index]
