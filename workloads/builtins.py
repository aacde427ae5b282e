"""The workloads that come with kvtop: real slices of published traces, and generated ones."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvtop.workloads.recipe import Recipe

DATA = Path(__file__).parent / "data"
MOONCAKE_SLICE = DATA / "mooncake-conversation-first1000.jsonl.gz"
AZURE_CONV_SLICE = DATA / "azure-2023-conv-first1000.csv.gz"

CHATS_BEHIND_A_SYSTEM_PROMPT = {
    "name": "chat",
    "num_requests": 7,
    "every_s": 15.0,
    "system_prompt_tokens": 2000,
    "user_prompt_tokens": [24, 48],
    "output_tokens": [16, 32],
}
LONG_CHATS = {"name": "chat", "num_requests": 4, "every_s": 0.25, "user_prompt_tokens": 64, "output_tokens": 160}
DOCUMENTS = {
    "name": "document",
    "num_requests": 3,
    "start_s": 3.0,
    "every_s": 3.0,
    "user_prompt_tokens": 4000,
    "output_tokens": 8,
}


class Builtin(msgspec.Struct, frozen=True):
    summary: str
    recipe: Recipe


BUILTINS: dict[str, Builtin] = {
    # 0.4 requests/s of 460 prompt tokens on average, half of them in the cache once conversations return: a 135M model
    # on two cores computes 200 to 400 prompt tokens/s. Arrivals come in bursts, so a queue forms and drains.
    "default": Builtin(
        "conversations of several turns of the Mooncake slice, lengths / 32, gaps x 3: 0.4 requests/s for a small CPU",
        Recipe(
            name="default",
            path=MOONCAKE_SLICE,
            format="mooncake",
            sharing_only=True,
            time_scale=3.0,
            length_scale=1 / 32,
        ),
    ),
    "mooncake-conversation": Builtin(
        "first 1,000 requests of the Mooncake conversation trace, as recorded (14k prompt tokens on average)",
        Recipe(name="mooncake-conversation", path=MOONCAKE_SLICE, format="mooncake"),
    ),
    "azure-conv": Builtin(
        "first 1,000 requests of the Azure 2023 conversation trace, as recorded (no prefix information)",
        Recipe(name="azure-conv", path=AZURE_CONV_SLICE, format="azure"),
    ),
    "poisson-shared-prefix": Builtin(
        "generated: 200 requests, Poisson 1.5/s, a shared system prompt of 256 tokens, 32-256 tokens of their own",
        Recipe(name="poisson-shared-prefix", kind="poisson", options={"rate": 1.5}),
    ),
    # A cold prompt takes a 135M model on two idle cores some five seconds: one is done before the next arrives.
    "apc": Builtin(
        "generated: 7 chats behind a system prompt of 2,000 tokens, one every 15 s (with and without prefix caching)",
        Recipe(name="apc", kind="mix", options={"streams": [CHATS_BEHIND_A_SYSTEM_PROMPT]}),
    ),
    # A document takes the same machine some twenty seconds; the chats still have tokens to come after the last one.
    "chunked": Builtin(
        "generated: 4 chats decoding while 3 documents of 4,000 tokens arrive (with and without chunked prefill)",
        Recipe(name="chunked", kind="mix", options={"streams": [LONG_CHATS, DOCUMENTS]}),
    ),
}


def builtin_workloads() -> dict[str, str]:
    """Name and one line of every built-in workload."""
    return {name: builtin.summary for name, builtin in BUILTINS.items()}
