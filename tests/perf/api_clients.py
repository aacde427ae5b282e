"""Many clients of `kvtop serve-api` for a minute: no request may be lost, and no block left behind.

    .venv/bin/python tests/perf/api_clients.py [--clients 1000] [--seconds 60] [--max-concurrency 900] [--seed 0]

Each client asks again as soon as its last request has ended: completions and chats, streamed and whole, one answer or
two, and a share of them leaves in the middle. Connections are kept, as real clients keep them, until one is left. 429
is waited out as `Retry-After` says. Every request has one fate, and every count is checked on three sides: clients,
/metrics, and the trace of what came in. Exits with 1 when one of them does not agree.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

READY_S = 120.0
PATIENCE_S = 60.0  # a request without an answer for so long is lost
LEFT_TOKENS = 400
PROBE_EVERY_S = 0.02
SAMPLE_EVERY_S = 5.0


@dataclass(slots=True)
class Ask:
    """One request as a client has thrown the dice for it. One that it leaves is long: it would still be under way."""

    chat: bool
    stream: bool
    n: int
    tokens: int
    prompt: list[int]
    leaves: bool

    @property
    def kind(self) -> str:
        return f"{'chat' if self.chat else 'completion'}, {'streamed' if self.stream else 'whole'}, n={self.n}"

    def message(self) -> bytes:
        body: dict[str, Any] = {"max_tokens": self.tokens, "n": self.n, "stream": self.stream, "ignore_eos": True}
        body["user"] = "leaves" if self.leaves else "stays"
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        if self.chat:
            body["messages"] = [{"role": "user", "content": "".join(chr(97 + token % 26) for token in self.prompt)}]
        else:
            body["prompt"] = self.prompt
        data = json.dumps(body).encode()
        path = "/v1/chat/completions" if self.chat else "/v1/completions"
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data


@dataclass(slots=True)
class Tally:
    """What became of all requests. ``tokens``, ``prompt``: of whole answers, as the clients counted and were told."""

    fates: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)  # whole answers by kind
    tokens: int = 0
    prompt: int = 0

    @property
    def num_lost(self) -> int:
        return sum(count for fate, count in self.fates.items() if fate not in ("whole", "left", "refused (429)"))


def thrown(dice: random.Random, leave: float, tokens: int) -> Ask:
    prompt = [dice.randrange(50)] * 32 + [dice.randrange(1000) for _ in range(dice.randrange(1, 24))]
    leaves = dice.random() < leave
    return Ask(
        chat=dice.random() < 0.5,
        stream=dice.random() < 0.6,
        n=1 + (dice.random() < 0.25),
        tokens=LEFT_TOKENS if leaves else dice.randrange(4, 2 * tokens - 3),
        prompt=prompt,
        leaves=leaves,
    )


class Client:
    """One connection at a time, kept from request to request."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._pair: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, ask: Ask, dice: random.Random, tally: Tally) -> float:
        """Send it and read what comes, as far as this client waits for it; seconds to wait before the next one."""
        if self._pair is None:
            self._pair = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._pair
        writer.write(ask.message())
        if ask.leaves and not ask.stream:
            await asyncio.sleep(dice.random() * 0.2)
            self.close()
            tally.fates["left"] += 1
            return 0.0
        status = (await reader.readline()).decode().strip()
        headers = await self._headers(reader)
        if " 200 " not in status:
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            if " 429 " in status and "retry-after" in headers:
                tally.fates["refused (429)"] += 1
                return float(headers["retry-after"]) * (1 + dice.random())
            tally.fates[f"lost: {status} {body[:80]!r}"] += 1
            return 0.0
        if ask.stream:
            self._count(ask, tally, await self._events(reader, ask, dice))
        else:
            self._count(ask, tally, json.loads(await reader.readexactly(int(headers["content-length"]))))
        return 0.0

    @staticmethod
    async def _headers(reader: asyncio.StreamReader) -> dict[str, str]:
        found: dict[str, str] = {}
        while line := (await reader.readline()).strip():
            name, _, value = line.decode().partition(":")
            found[name.lower()] = value.strip()
        return found

    async def _events(self, reader: asyncio.StreamReader, ask: Ask, dice: random.Random) -> dict[str, Any] | None:
        """A stream put together as a whole answer has it; None: left in the middle."""
        texts, reasons, usage = [""] * ask.n, [None] * ask.n, None
        leave_at, pieces, done = dice.randrange(1, 16) if ask.leaves else 0, 0, False
        while size := int(await reader.readline(), 16):
            data = (await reader.readexactly(size + 2))[:-2]
            for line in data.split(b"\n\n"):
                if not line or line == b"data: [DONE]":
                    done = done or bool(line)
                    continue
                piece = json.loads(line.removeprefix(b"data: "))
                usage = piece.get("usage") or usage
                for choice in piece["choices"]:
                    index, delta = choice["index"], choice.get("delta")
                    texts[index] += choice.get("text", "") if delta is None else delta.get("content", "")
                    reasons[index] = reasons[index] or choice["finish_reason"]
                pieces += 1
                if leave_at and pieces >= leave_at:
                    self.close()
                    return None
        await reader.readline()
        choices = [{"text": text, "finish_reason": reason} for text, reason in zip(texts, reasons, strict=True)]
        return {"choices": choices if done else [], "usage": usage}

    def _count(self, ask: Ask, tally: Tally, answer: dict[str, Any] | None) -> None:
        if answer is None:
            tally.fates["left"] += 1
            return
        texts = [each["text"] if "text" in each else each["message"]["content"] for each in answer["choices"]]
        counted, usage = [text.count("<") for text in texts], answer["usage"] or {}
        ended = all(each["finish_reason"] == "length" for each in answer["choices"])
        if counted != [ask.tokens] * ask.n or not ended or usage.get("completion_tokens") != sum(counted):
            tally.fates[f"lost: {counted} of {ask.tokens} tokens, usage {usage}"] += 1
            return
        tally.fates["whole"] += 1
        tally.kinds[ask.kind] += 1
        tally.tokens += sum(counted)
        tally.prompt += usage["prompt_tokens"]

    def close(self) -> None:
        if self._pair is not None:
            self._pair[1].close()
            self._pair = None


async def one_client(port: int, number: int, until_s: float, leave: float, tokens: int, seed: int, tally: Tally):
    """Ask until ``until_s``; what is under way then is waited for."""
    dice, client = random.Random(seed * 1_000_003 + number), Client(port)
    while time.monotonic() < until_s:
        try:
            wait_s = await asyncio.wait_for(client.ask(thrown(dice, leave, tokens), dice, tally), PATIENCE_S)
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError) as error:
            client.close()
            tally.fates[f"lost: {type(error).__name__}"] += 1
            wait_s = 0.0
        await asyncio.sleep(wait_s)
    client.close()


async def all_clients(port: int, clients: int, seconds: float, leave: float, tokens: int, seed: int = 0) -> Tally:
    """``clients`` at a time for ``seconds``."""
    tally, until_s = Tally(), time.monotonic() + seconds
    await asyncio.gather(*(one_client(port, number, until_s, leave, tokens, seed, tally) for number in range(clients)))
    return tally


# What the server says ----------------------------------------------------------------------------------------


def metrics(port: int) -> dict[str, float]:
    """Samples by name and own labels, those of model and engine left out."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line[0] != "#":
            left, _, value = line.rpartition(" ")
            name, _, labels = left.partition("{")
            own = [part for part in labels.rstrip("}").split(",") if part.startswith(("state=", "finished_reason="))]
            found[name + "".join(f" {part}" for part in own)] = float(value)
    return found


def settled(port: int, within_s: float = 15.0) -> dict[str, float]:
    """The metrics once nothing runs, or when the time is over."""
    deadline_s = time.monotonic() + within_s
    while True:
        found = metrics(port)
        busy = found['kvtop_blocks state="used"'] or found["vllm:num_requests_running"]
        if not (busy or found["vllm:num_requests_waiting"]) or time.monotonic() > deadline_s:
            return found
        time.sleep(0.1)


def probe(port: int, ends: Any, results: Any) -> None:
    """Ask for /health every 20 ms on a connection of its own: a gap of the server's event loop is a late answer."""
    times: list[float] = []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    while not ends.is_set():
        began = time.perf_counter()
        connection.request("GET", "/health")
        connection.getresponse().read()
        times.append(time.perf_counter() - began)
        ends.wait(PROBE_EVERY_S)
    times.sort()
    results.put((len(times), times[len(times) // 2], times[int(len(times) * 0.99)], times[-1]))


def wait_ready(port: int) -> None:
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
            return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the server did not become ready")


def megabytes(processes: list[psutil.Process]) -> list[int]:
    return [process.memory_info().rss >> 20 for process in processes]


async def measured(args: argparse.Namespace, processes: list[psutil.Process]) -> tuple[Tally, list[tuple]]:
    memory: list[tuple] = []

    async def sample() -> None:
        began = time.monotonic()
        while True:
            memory.append((round(time.monotonic() - began), *megabytes(processes)))
            await asyncio.sleep(SAMPLE_EVERY_S)

    watcher = asyncio.create_task(sample())
    tally = await all_clients(args.port, args.clients, args.seconds, args.leave, args.tokens, args.seed)
    watcher.cancel()
    return tally, memory


def recorded(path: Path) -> tuple[int, int, int, int]:
    """(requests, tokens) of clients that stayed, then of those that left: what the trace of the server says."""
    rows = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    stay, leave = [row for row in rows if row["tenant"] == "stays"], [row for row in rows if row["tenant"] == "leaves"]
    return len(stay), _tokens(stay), len(leave), _tokens(leave)


def _tokens(rows: list[dict[str, Any]]) -> int:
    return sum(row["output_tokens"] * row.get("n", 1) for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--tokens", type=int, default=24, help="of an answer, on average")
    parser.add_argument("--leave", type=float, default=0.2, help="share of requests that are left in the middle")
    parser.add_argument("--max-concurrency", type=int, default=2048)
    parser.add_argument("--num-blocks", type=int, default=4096)
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        command = [sys.executable, "-m", "kvtop", "serve-api", "--executor", "null", "--port", str(args.port)]
        command += ["--num-blocks", str(args.num_blocks), "--max-concurrency", str(args.max_concurrency)]
        server = subprocess.Popen([*command, "--record-workload", str(trace)])
        try:
            wait_ready(args.port)
            processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children()]
            before = [sum(process.cpu_times()[:2]) for process in processes]
            at_start = megabytes(processes)
            ends, results = multiprocessing.Event(), multiprocessing.Queue()
            prober = multiprocessing.Process(target=probe, args=(args.port, ends, results))
            prober.start()
            began_s = time.perf_counter()
            tally, memory = asyncio.run(measured(args, processes))
            took_s = time.perf_counter() - began_s
            ends.set()
            gaps = results.get(timeout=40)
            prober.join(10)
            spent = [sum(process.cpu_times()[:2]) - start for process, start in zip(processes, before, strict=True)]
            found = settled(args.port)
            at_end = megabytes(processes)
        finally:
            server.terminate()
            code = server.wait(40)
        told = recorded(trace)
    return report(
        args, tally, found, told, took_s, spent, [(0, *at_start), *memory, (round(took_s), *at_end)], gaps, code
    )


def report(args, tally, found, told, took_s, spent, memory, gaps, code) -> int:
    fates, whole = tally.fates, tally.fates["whole"]
    print(f"{args.clients:,} clients, {took_s:.1f} s, at most {args.max_concurrency:,} answered at a time\n")
    print(f"| fate | requests |\n|---|---:|\n| sent | {fates.total():,} |")
    for fate, count in sorted(fates.items(), key=lambda item: -item[1]):
        print(f"| {fate} | {count:,} |")
    print(f"| lost | {tally.num_lost:,} |\n\n| whole answers | requests |\n|---|---:|")
    for kind, count in sorted(tally.kinds.items()):
        print(f"| {kind} | {count:,} |")
    ended = {reason: int(found.get(f'vllm:request_success_total finished_reason="{reason}"', 0))
             for reason in ("length", "abort", "error", "capacity", "stop")}  # fmt: skip
    generated = int(found["vllm:generation_tokens_total"])
    states = {state: int(found.get(f'kvtop_blocks state="{state}"', 0)) for state in ("used", "idle", "fresh")}
    late = ended["length"] - whole  # had ended before the engine heard that its client was gone
    used = states["used"]
    running, waiting = int(found["vllm:num_requests_running"]), int(found["vllm:num_requests_waiting"])
    stayed, stayed_tokens, left, left_tokens = told
    checks = {
        "no request is lost": not tally.num_lost,
        f"running {running}, waiting {waiting}, blocks used {used}": not (running or waiting or used),
        f"blocks idle {states['idle']:,} + fresh {states['fresh']:,} = {args.num_blocks:,}":
            states["idle"] + states["fresh"] == args.num_blocks,
        f"whole answers: clients {whole:,}, trace {stayed:,}": whole == stayed,
        f"their tokens: clients {tally.tokens:,}, trace {stayed_tokens:,}": tally.tokens == stayed_tokens,
        f"all tokens: metrics {generated:,}, trace {stayed_tokens + left_tokens:,} (n=2 that broke off are rounded)":
            abs(generated - stayed_tokens - left_tokens) <= left,
        f"ended {dict(ended)}: {late:,} of them left too late to be aborted":
            0 <= late <= left and ended["length"] + ended["abort"] == stayed + left,
        f"exit code {code}": code == 0,
    }  # fmt: skip
    print("\n| check | |\n|---|---|")
    for what, fine in checks.items():
        print(f"| {what} | {'yes' if fine else '**NO**'} |")
    print(f"\n{whole / took_s:,.0f} whole answers/s, {generated / took_s:,.0f} tokens/s; "
          f"CPU: server {spent[0]:.1f} s, engine {sum(spent[1:]):.1f} s")  # fmt: skip
    print(f"/health every 20 ms: {gaps[0]:,} answers, p50 {gaps[1] * 1e3:.0f} ms, p99 {gaps[2] * 1e3:.0f} ms, "
          f"slowest {gaps[3] * 1e3:.0f} ms")  # fmt: skip
    print("memory, MB (s: server + engine): " + ", ".join(f"{t}: {' + '.join(map(str, mb))}" for t, *mb in memory))
    return int(not all(checks.values()))


if __name__ == "__main__":
    sys.exit(main())
