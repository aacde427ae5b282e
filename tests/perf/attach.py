"""What looking at a server costs: `.venv/bin/python tests/perf/attach.py` (CPU time of one thread, medians).

Reads the recorded server's metrics and KV events in `tests/attach/data`. prometheus_client's parser is measured beside
kvtop's where it is installed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "attach"))


from kvtop.attach.exposition import Exposition
from kvtop.attach.kv_decode import decode_batch
from kvtop.attach.kv_tracker import KvTracker
from kvtop.attach.names import WANTED, understand
from kvtop.state.model import RunState
from kvtop.state.reduce import reduce

recorded = import_module("fake_server")
ROUNDS = 200


def median_ms(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """CPU milliseconds of one call."""
    taken = []
    for _ in range(rounds):
        began = time.thread_time_ns()
        work()
        taken.append(time.thread_time_ns() - began)
    return statistics.median(taken) / 1e6


def main() -> None:
    text, reader = recorded.recorded_metrics()[40][1], Exposition(WANTED)
    lines = reader.parse(text).num_lines
    print(f"metrics of one engine ({lines} samples), parsed: {median_ms(lambda: reader.parse(text)):.2f} ms")
    print(f"  and put under kvtop's names: {median_ms(lambda: understand(reader.parse(text).series)):.2f} ms")
    try:
        from prometheus_client.parser import text_string_to_metric_families as other  # type: ignore[import-not-found]
    except ImportError:
        print("  prometheus_client is not installed: nothing to compare with")
    else:
        print(f"  by prometheus_client: {median_ms(lambda: list(other(text)), 20):.2f} ms")
    bodies = [frames[2] for _, frames in recorded.recorded_messages()]
    num_events = sum(len(decode_batch(body).events) for body in bodies)

    def follow() -> None:
        tracker, state = KvTracker(109), RunState()
        for seq, body in enumerate(bodies):
            tracker.take("tcp://a:1", seq, decode_batch(body), 0.0)
            for event in tracker.drain(seq + 1, seq):
                reduce(state, event)

    decoded = median_ms(lambda: [decode_batch(body) for body in bodies], 50) * 1e3 / num_events
    print(f"KV events ({num_events}), decoded: {decoded:.1f} us each")
    print(f"  decoded, followed and folded: {median_ms(follow, 50) * 1e3 / num_events:.1f} us each")


if __name__ == "__main__":
    main()
