"""What quantised K and V cost in quality: perplexity and agreement with fp32 K and V, as a Markdown table.

    python tests/perf/quantised_kv.py            about 4 minutes on two cores
    python tests/perf/quantised_kv.py --tried    also the forms that were tried and are not offered; about 7

The text is Python's own reference on its language topics (``pydoc_data.topics``, part of CPython, PSF licence). Every
number comes from kvtop's executor: tokens are computed in chunks of 64, so that K and V pass through the pool.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pydoc_data.topics import topics

import kvtop.engine.executors.omp  # noqa: F401

# isort: split
import torch
from torch import Tensor

from kvtop.engine.api import Engine, EngineConfig, SamplingParams
from kvtop.engine.executors.torch_batch import PagedBatch, Row
from kvtop.engine.executors.torch_executor import TorchExecutor
from kvtop.engine.executors.torch_probe import forward
from kvtop.kernels import quant

TOPICS = ("execmodel", "import", "objects", "exceptions", "class", "naming", "types", "comparisons")
CHUNK, BLOCK_SIZE = 64, 16
PROMPT_TOKENS, OUTPUT_TOKENS = 48, 64
TRIED = {"fp8, no scales": "fp8", "int8, fp16 scales": "int8"}  # measured to choose, not offered


@dataclass
class Figures:
    """Sums over all predicted positions of the text, and the greedy answers."""

    nll: list[Tensor] = field(default_factory=list)
    kl: list[Tensor] = field(default_factory=list)
    same_best: list[Tensor] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)


def log_probs(executor: TorchExecutor, tokens: list[int]) -> Tensor:
    """(T, V) log-probabilities of what follows each token, computed chunk by chunk through the pool."""
    executor.allocate(-(-len(tokens) // BLOCK_SIZE), BLOCK_SIZE)
    table = list(reversed(range(executor.pool.num_blocks)))
    parts = []
    with torch.inference_mode():
        for start in range(0, len(tokens), CHUNK):
            batch = PagedBatch(executor.pool, [Row(0, tokens[start : start + CHUNK], start, table)])
            keep = torch.arange(batch.rows[0].count)
            logits = forward(executor._model, batch, batch.input_ids, batch.position_ids, keep)
            parts.append(logits.log_softmax(-1))
    return torch.cat(parts)


def greedy(executor: TorchExecutor, prompts: list[list[int]]) -> list[list[int]]:
    """Answers of the whole engine, all prompts at once."""
    need = len(prompts) * -(-(PROMPT_TOKENS + OUTPUT_TOKENS) // BLOCK_SIZE)
    config = EngineConfig(num_blocks=need, block_size=BLOCK_SIZE, max_batched_tokens=CHUNK, prefix_caching=False)
    executor.allocate(need, BLOCK_SIZE)
    engine = Engine(config, executor)
    ids = [engine.submit(p, SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True)) for p in prompts]
    engine.run()
    return [list(engine.request(rid).output) for rid in ids]


@contextmanager
def storing_as(name: str) -> Iterator[None]:
    """Replace what is written, for the candidates that kvtop does not offer."""
    own = quant.quantise

    def no_scales(rows: Tensor, kv_dtype: str) -> tuple[Tensor, Tensor]:
        plain = rows.float().clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.int8)
        return plain, torch.ones(rows.shape[:-1])

    def half_scales(rows: Tensor, kv_dtype: str) -> tuple[Tensor, Tensor]:
        scales = own(rows, kv_dtype)[1].half().float().clamp_min(6e-8)
        return (rows.float() / scales[..., None]).round().clamp(-127, 127).to(torch.int8), scales

    quant.quantise = {"fp8, no scales": no_scales, "int8, fp16 scales": half_scales}.get(name, own)
    try:
        yield
    finally:
        quant.quantise = own


def measure(executors: dict[str, TorchExecutor], windows: list[list[int]], prompts: list[list[int]]) -> dict:
    """Figures by name; fp32 comes first and is what the others are compared with."""
    found = {name: Figures() for name in executors}
    for number, tokens in enumerate(windows):
        following = torch.tensor(tokens[1:])[:, None]
        reference = log_probs(executors["fp32"], tokens)[:-1]
        for name, executor in executors.items():
            with storing_as(name):
                got = reference if name == "fp32" else log_probs(executor, tokens)[:-1]
            found[name].nll.append(-got.gather(1, following)[:, 0].double())
            found[name].kl.append((reference.exp() * (reference - got)).sum(-1).double())
            found[name].same_best.append(reference.argmax(-1) == got.argmax(-1))
            report(f"window {number + 1} of {len(windows)}, {name}")
    for name, executor in executors.items():
        with storing_as(name):
            found[name].answers = greedy(executor, prompts)
        report(f"greedy, {name}")
    return found


def rows(found: dict[str, Figures], executors: dict[str, TorchExecutor]) -> Iterator[list[str]]:
    yield ["stored as", "bytes a token", "perplexity", "more nats a token", "KL (nats)", "best token kept",
           "greedy tokens equal", "answers equal"]  # fmt: skip
    reference = found["fp32"]
    for name, figures in found.items():
        nll, base = torch.cat(figures.nll), torch.cat(reference.nll)
        error = (nll - base).std() / len(nll) ** 0.5
        pairs = list(zip(figures.answers, reference.answers, strict=True))
        equal = [a == b for mine, theirs in pairs for a, b in zip(mine, theirs, strict=True)]
        yield [
            name,
            f"{bytes_per_token(name, executors[name]):,}",
            f"{float(nll.mean().exp()):.3f}",
            f"{float((nll - base).mean()):+.5f} ± {float(error):.5f}",
            f"{float(torch.cat(figures.kl).mean()):.2e}",
            f"{float(torch.cat(figures.same_best).double().mean()):.2%}",
            f"{sum(equal) / len(equal):.1%}",
            f"{sum(mine == theirs for mine, theirs in pairs)} of {len(pairs)}",
        ]


def bytes_per_token(name: str, executor: TorchExecutor) -> int:
    """Exact; a candidate's is that of the format without its scales, or with half of them."""
    info = executor.info
    scales = 2 * info.num_layers * info.num_kv_heads * 4
    return info.kv_bytes_per_token - {"fp8, no scales": scales, "int8, fp16 scales": scales // 2}.get(name, 0)


def report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--windows", type=int, default=4, help="of the text (default 4)")
    parser.add_argument("--window-tokens", type=int, default=512)
    parser.add_argument("--prompts", type=int, default=24, help="greedy answers to compare (default 24)")
    parser.add_argument("--tried", action="store_true", help="also forms that kvtop does not offer")
    args = parser.parse_args()
    begin = time.perf_counter()
    plain = TorchExecutor.load(args.model, device="cpu")
    if plain.tokenizer is None:
        parser.error(f"{args.model} has no tokenizer")
    text = "\n\n".join(topics[name] for name in TOPICS)
    tokens = list(plain.tokenizer(text)["input_ids"])
    need = args.windows * args.window_tokens + args.prompts * PROMPT_TOKENS
    if len(tokens) < need:
        parser.error(f"the text has {len(tokens)} tokens, {need} are asked for")
    windows = [tokens[i * args.window_tokens :][: args.window_tokens] for i in range(args.windows)]
    rest = tokens[args.windows * args.window_tokens :]
    stride = len(rest) // args.prompts
    prompts = [rest[i * stride :][:PROMPT_TOKENS] for i in range(args.prompts)]
    executors = {"fp32": plain} | {kv_dtype: plain.with_kv_dtype(kv_dtype) for kv_dtype in ("int8", "fp8")}
    if args.tried:
        executors |= {name: plain.with_kv_dtype(kv_dtype) for name, kv_dtype in TRIED.items()}
    found = measure(executors, windows, prompts)
    used = hashlib.sha256(repr((windows, prompts)).encode()).hexdigest()[:16]
    print(f"{plain.info.name}, {args.windows} windows of {args.window_tokens} tokens, {args.prompts} prompts of "
          f"{PROMPT_TOKENS} with {OUTPUT_TOKENS} greedy tokens each; text of Python {platform.python_version()}, "
          f"token ids sha256 {used}; torch {torch.__version__}, {time.perf_counter() - begin:.0f} s\n")  # fmt: skip
    lines = list(rows(found, executors))
    for line in (lines[0], ["---"] + ["---:"] * (len(lines[0]) - 1), *lines[1:]):
        print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()
