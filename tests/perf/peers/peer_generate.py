"""transformers' ``generate``: static batches, padded on the left; a sequence stops at its own length."""

from __future__ import annotations

import time
from typing import Any

from protocol import Answer, Peer, Requests, serve

BATCH = 16


def load(model_dir: str, threads: int) -> Peer:
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteria, StoppingCriteriaList

    torch.set_num_threads(threads)
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()

    class Watch(StoppingCriteria):
        """Notes when each token came; done rows are padded on, as ``generate`` does."""

        def __init__(self, counts: list[int], width: int) -> None:
            self.counts, self.width = torch.tensor(counts), width
            self.times: list[float] = []

        def __call__(self, input_ids, scores, **kwargs):
            self.times.append(time.perf_counter())
            return input_ids.shape[1] - self.width >= self.counts

    def batch(requests: Requests) -> tuple[list[list[int]], list[list[float]]]:
        width, counts = max(len(p) for p, _ in requests), [count for _, count in requests]
        ids = torch.tensor([[0] * (width - len(p)) + p for p, _ in requests])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p, _ in requests])
        watch = Watch(counts, width)
        settings = GenerationConfig(
            do_sample=False, max_new_tokens=max(counts), pad_token_id=0, eos_token_id=-1, use_cache=True
        )
        out = model.generate(
            ids, attention_mask=mask, generation_config=settings, stopping_criteria=StoppingCriteriaList([watch])
        )
        rows = out[:, width:].tolist()
        return [r[:c] for r, c in zip(rows, counts, strict=True)], [watch.times[:c] for c in counts]

    def run(requests: Requests) -> Answer:
        tokens, times, start = [], [], time.perf_counter()
        with torch.inference_mode():
            for first in range(0, len(requests), BATCH):
                more_tokens, more_times = batch(requests[first : first + BATCH])
                tokens += more_tokens
                times += more_times
        return Answer(start, tokens, times)

    return Peer(transformers.__version__, f"batches of {BATCH} in the order of arrival", run)


if __name__ == "__main__":
    serve(load)
