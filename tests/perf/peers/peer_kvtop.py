"""kvtop: its engine and torch executor in one process, with the sizes a CPU gets by default."""

from __future__ import annotations

import time

from protocol import Answer, Peer, Requests, serve


def load(model: str, threads: int) -> Peer:
    import torch

    from kvtop.engine.recorder import NullRecorder
    from kvtop.engine.types import SamplingParams
    from kvtop.engine.worker import build_engine

    torch.set_num_threads(threads)
    built = build_engine(
        executor="torch",
        engine={},
        executor_params={},
        model=model,
        device="cpu",
        num_blocks=None,
        kv_memory_bytes=None,
        recorder=NullRecorder(),
        progress=lambda text, fraction: None,
    )
    engine = built.engine
    config = engine.config

    def run(requests: Requests) -> Answer:
        engine.reset_prefix_cache()  # what an earlier run left behind would make this one faster
        start = time.perf_counter()
        ids = {
            engine.submit(prompt, SamplingParams(max_tokens=count)): index
            for index, (prompt, count) in enumerate(requests)
        }
        tokens: list[list[int]] = [[] for _ in requests]
        times: list[list[float]] = [[] for _ in requests]
        while engine.has_requests:
            out = engine.step()
            now = time.perf_counter()
            for request_id, new in out.tokens.items():
                tokens[ids[request_id]] += new
                times[ids[request_id]] += [now] * len(new)
        return Answer(start, tokens, times)

    from importlib.metadata import version

    setting = f"budget {config.max_batched_tokens}, {config.max_num_seqs} sequences, {config.num_blocks} blocks of 16"
    return Peer(version("kvtop"), setting, run)


if __name__ == "__main__":
    serve(load)
