"""vLLM's CPU build, stepped in its own process (no server, no second process)."""

from __future__ import annotations

import os
import time

from protocol import Answer, Peer, Requests, serve

KV_GIB = 2


def load(model_dir: str, threads: int) -> Peer:
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(KV_GIB))
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # By default it leaves a core free for its other processes, and here there are none.
    cores = sorted(os.sched_getaffinity(0))[:threads]
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))
    import vllm  # pyright: ignore[reportMissingImports]
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

    eager = os.environ.get("KVTOP_PEER_VLLM_COMPILE") != "1"
    engine = LLM(
        model=model_dir,
        dtype="float32",
        enforce_eager=eager,
        max_model_len=2048,
        enable_prefix_caching=True,
        skip_tokenizer_init=True,
    ).llm_engine

    def run(requests: Requests) -> Answer:
        if not engine.reset_prefix_cache():
            raise RuntimeError("the prefix cache of an earlier run could not be emptied")
        start = time.perf_counter()
        for index, (prompt, count) in enumerate(requests):
            params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
            engine.add_request(str(index), {"prompt_token_ids": prompt}, params)
        tokens: list[list[int]] = [[] for _ in requests]
        times: list[list[float]] = [[] for _ in requests]
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now = time.perf_counter()
            for output in outputs:
                index, known = int(output.request_id), list(output.outputs[0].token_ids)
                times[index] += [now] * (len(known) - len(tokens[index]))
                tokens[index] = known
        return Answer(start, tokens, times)

    return Peer(vllm.__version__, f"{'eager' if eager else 'compiled'}, {KV_GIB} GiB of KV memory", run)


if __name__ == "__main__":
    serve(load)
