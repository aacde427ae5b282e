"""Send a server completions behind shared prefixes, then print what its answers counted. For trying `kvtop attach`.

python tests/attach/load_server.py http://127.0.0.1:8123 MODEL --requests 24 --at-once 6 --max-tokens 24
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

PREFIX = "You are a careful clerk of shop {shop}. Answer shortly and politely. "
PREFIX_REPEATS = 18  # about 250 tokens of SmolLM2's
TIMEOUT_S = 240


def complete(url: str, model: str, prompt: str, max_tokens: int) -> dict[str, int]:
    """``usage`` of one answer."""
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return json.load(answer)["usage"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--first", type=int, default=0, help="number of the first customer")
    parser.add_argument("--first-shop", type=int, default=0)
    parser.add_argument("--shops", type=int, default=3, help="shared prefixes")
    args = parser.parse_args()
    prompts = [
        PREFIX.format(shop=args.first_shop + i % args.shops) * PREFIX_REPEATS
        + f"Customer {i} asks: "
        + "where is my parcel? " * (i % 7 + 1)
        for i in range(args.first, args.first + args.requests)
    ]
    began = time.monotonic()
    with ThreadPoolExecutor(args.at_once) as pool:
        usages = list(pool.map(lambda prompt: complete(args.url, args.model, prompt, args.max_tokens), prompts))
    counted = {name: sum(usage[name] for usage in usages) for name in ("prompt_tokens", "completion_tokens")}
    print(json.dumps({"requests": len(usages), **counted, "seconds": round(time.monotonic() - began, 1)}))


if __name__ == "__main__":
    main()
