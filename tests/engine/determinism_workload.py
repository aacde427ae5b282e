"""Run one fixed workload and write its whole event stream to standard output. Started by ``test_determinism``."""

from __future__ import annotations

import json
import sys
from random import Random

from kvtop.engine.api import Engine, EngineConfig, NullExecutor, Recorder, RequestSpec, SamplingParams
from kvtop.engine.events import encode


def run(config: dict[str, object], seed: int) -> bytes:
    """Encoded events of 60 requests in a small pool: preemptions, evictions, branches, tenants and extra keys."""
    rng = Random(seed)
    recorder = Recorder()
    engine = Engine(EngineConfig(**config), NullExecutor(), recorder=recorder)  # pyright: ignore[reportArgumentType]
    stems = [[rng.randrange(1000) for _ in range(24)] for _ in range(4)]
    for number in range(60):
        prompt = stems[number % 4][: rng.randrange(4, 24)] + [rng.randrange(1000) for _ in range(rng.randrange(1, 9))]
        extra = rng.choice([None, {"salt": "tenant-x"}, {"adapter": "a", "salt": "tenant-y"}])
        engine.submit_spec(
            RequestSpec(
                prompt,
                SamplingParams(
                    max_tokens=rng.randrange(1, 20), n=rng.choice([1, 1, 1, 3]), num_beams=3 if number % 5 == 0 else 1
                ),
                extra_key=extra,
                block_keys={1: "image"} if rng.random() < 0.2 else None,
                priority=rng.randrange(2),
                tenant=rng.choice(["alice", "bob", "carol"]),
            )
        )
        for _ in range(rng.randrange(3)):
            engine.step()
    engine.run()
    counters = engine.counters()
    assert counters.preemptions, "the workload is too easy to show a difference"
    assert counters.evictions or engine.config.allocator != "paged", "nothing was evicted"
    return b"".join(encode(event) for event in [*recorder.drain(), engine.keyframe()])


if __name__ == "__main__":
    sys.stdout.buffer.write(run(json.loads(sys.argv[1]), seed=7))
