"""A run as lines of plain text, one a second: for screen readers, logs and terminals that cannot move their cursor."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from kvtop.state.model import RunState
from kvtop.state.numbers import NUMBERS
from kvtop.state.reduce import reduce
from kvtop.tui.feed import StartableSession
from kvtop.tui.text import clock, measured

EVERY_S = 1.0
SHOWN = (
    ("running", "queue.running"), ("waiting", "queue.waiting"), ("used", "pool.used_blocks"),
    ("idle", "pool.idle_blocks"), ("fresh", "pool.fresh_blocks"), ("hits", "cache.hit_rate"),
    ("TTFT p50", "latency.ttft_p50_ns"), ("ITL p50", "latency.itl_p50_ns"),
    ("decode", "throughput.decode_tokens_s"), ("preempted", "run.preemptions"),
)  # fmt: skip


def line(state: RunState) -> str:
    """One moment in words and numbers."""
    parts = [f"{clock(state.t_ns)} {state.status} step {state.step:,}"]
    if state.pool is None:
        return f"{parts[0]} {state.notice}".rstrip()
    parts += [f"{name} {measured(NUMBERS[key].read(state), NUMBERS[key].unit)}" for name, key in SHOWN]
    return ", ".join(parts)


def run_plain(session: StartableSession, write: Callable[[str], object] = print) -> int:
    """Print a line a second until the run ends; its exit code. Ctrl-C ends it with 130."""
    from kvtop.cli.terminal import interruptible
    from kvtop.engine.events import Event, RunEnded

    state, next_s, end = RunState(), 0.0, None
    session.start()
    try:
        with interruptible():
            while not session.ended:
                events: list[Event] = session.poll(0.2)
                for event in events:
                    reduce(state, event)
                    end = event if isinstance(event, RunEnded) else end
                if time.monotonic() >= next_s:
                    write(line(state))
                    sys.stdout.flush()
                    next_s = time.monotonic() + EVERY_S
    except KeyboardInterrupt:
        return 130
    finally:
        session.stop()
    write(line(state) + (f": {state.error}" if state.error else ""))
    return end.exit_code if end is not None and end.status == "failed" else 0
