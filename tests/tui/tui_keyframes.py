"""Pools and sequences made by hand, as keyframes of a run that is served for real."""

from __future__ import annotations

from kvtop.engine.events import BlockRow, Keyframe, RunStarted, SequenceRow

MANIFEST = {"model": "tiny", "device": "cpu", "policy": "fcfs", "executor": "torch", "clock": "real", "max_num_seqs": 8}


def started(**manifest) -> RunStarted:
    return RunStarted(run_id="r", manifest={**MANIFEST, **manifest})


def sequence(name: str, state: str, table: list[int], reason: str = "", blocker: str = "") -> SequenceRow:
    return SequenceRow(name, name, state, 40, 41, 40, 100, 16, 0, table, reason, blocker, 0, 0, None, None)


def used(block: int, refcount: int, filled: int = 16, key: int | None = 0xABCD1234) -> BlockRow:
    return BlockRow(block, "used", refcount, filled, key, None, 1, 5, 3, 0)


def keyframe(*sequences: SequenceRow, blocks: list[BlockRow] | None = None, num_blocks: int = 64) -> Keyframe:
    return Keyframe(
        step=7,
        t_ns=2_000_000_000,
        num_blocks=num_blocks,
        block_size=16,
        blocks=blocks or [],
        sequences=list(sequences),
        totals={},
    )
