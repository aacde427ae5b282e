"""transformers' continuous batching, what ``generate_batch`` runs on, with each request's own number of tokens."""

from __future__ import annotations

import time

from protocol import Answer, Peer, Requests, serve

MEMORY = 0.1


def load(model_dir: str, threads: int) -> Peer:
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    settings = GenerationConfig(do_sample=False, max_new_tokens=96, eos_token_id=-1, pad_token_id=0)
    # Its default takes most of the machine's memory for the cache, and touching it takes longer than the requests do.
    sizes = ContinuousBatchingConfig(max_memory_percent=MEMORY)
    manager = model.init_continuous_batching(generation_config=settings, continuous_batching_config=sizes)
    manager.start()

    def run(requests: Requests) -> Answer:
        if manager.batch_processor is not None:
            manager.batch_processor.cache.reset()  # prompts of an earlier run would be found in it; nobody runs now
        start = time.perf_counter()
        ids = [manager.add_request(prompt, max_new_tokens=count, record_timestamps=True) for prompt, count in requests]
        done = {}
        while len(done) < len(ids):
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                done[result.request_id] = result
            elif result is None and not manager.is_running():
                raise RuntimeError("the batching thread ended early")
        results = [done[i] for i in ids]
        return Answer(start, [r.generated_tokens for r in results], [r.timestamps for r in results])

    return Peer(transformers.__version__, f"its defaults, {MEMORY:.0%} of memory for the cache", run)


if __name__ == "__main__":
    serve(load)
