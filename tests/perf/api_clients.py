"""Many clients of `kvtop serve-api` at a time: every answer has to be whole, and no block may be left behind.

    .venv/bin/python tests/perf/api_clients.py [--clients 1000] [--tokens 32] [--leave 0.2] [--executor null]

Each client opens a connection of its own and streams one answer; a share of them leaves after the third token. Prints
how many answers came whole, the rate of tokens, CPU seconds of server and engine, and what the server's metrics say in
the end; exits with 1 when an answer is not whole or a block is in use.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections import Counter

import psutil

READY_S = 120.0


async def one_client(port: int, number: int, tokens: int, leaves: bool) -> str:
    """How it went: whole, left, or what was wrong."""
    prompt = [number % 50] * 32 + [number % 1000] * 8
    body = json.dumps({"prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        writer.write(f"{head}\r\nConnection: close\r\n\r\n".encode() + body)
        status = (await reader.readline()).decode().strip()
        if " 200 " not in status:
            return status
        chunks = 0
        while line := await reader.readline():
            chunks += line.startswith(b'data: {"id"')
            if leaves and chunks == 3:
                return "left"
            if line.startswith(b"data: [DONE]"):
                return "whole" if chunks == tokens else f"{chunks} of {tokens} tokens"
        return "broke off"
    finally:
        writer.close()


async def all_clients(port: int, args: argparse.Namespace) -> Counter[str]:
    every = round(1 / args.leave) if args.leave else args.clients + 1
    clients = [one_client(port, n, args.tokens, leaves=n % every == every - 1) for n in range(args.clients)]
    return Counter(await asyncio.gather(*clients))


def metrics(port: int) -> dict[str, float]:
    """Samples by name and labels, model and engine left out."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}


def blocks(port: int) -> dict[str, int]:
    found = {name: value for name, value in metrics(port).items() if name.startswith("kvtop_blocks{")}
    return {name.partition('state="')[2].rstrip('"}'): int(value) for name, value in found.items()}


def wait_ready(port: int) -> None:
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
            return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the server did not become ready")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--leave", type=float, default=0.2, help="share of clients that leave after three tokens")
    parser.add_argument("--executor", default="null")
    parser.add_argument("--model", default="default")
    parser.add_argument("--num-blocks", type=int, default=1024)
    parser.add_argument("--port", type=int, default=8765)
    args = parser.parse_args()
    command = [sys.executable, "-m", "kvtop", "serve-api", "--port", str(args.port), "--executor", args.executor]
    server = subprocess.Popen([*command, "--model", args.model, "--num-blocks", str(args.num_blocks)])
    try:
        wait_ready(args.port)
        processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children()]
        before = [sum(process.cpu_times()[:2]) for process in processes]
        began_s = time.perf_counter()
        results = asyncio.run(all_clients(args.port, args))
        took_s = time.perf_counter() - began_s
        spent = [sum(process.cpu_times()[:2]) - start for process, start in zip(processes, before, strict=True)]
        deadline_s = time.monotonic() + 10
        while (left := blocks(args.port))["used"] and time.monotonic() < deadline_s:
            time.sleep(0.1)
    finally:
        server.terminate()
        code = server.wait(30)
    streamed = results["whole"] * args.tokens
    print(
        f"{args.clients:,} clients in {took_s:.1f} s: {dict(results)}; {streamed / took_s:,.0f} tokens/s streamed whole"
    )
    print(f"CPU: server {spent[0]:.1f} s, engine {sum(spent[1:]):.1f} s; blocks at the end {left}; exit code {code}")
    lost = sum(count for what, count in results.items() if what not in ("whole", "left"))
    return int(bool(lost or left["used"] or code or sum(left.values()) != args.num_blocks))


if __name__ == "__main__":
    sys.exit(main())
