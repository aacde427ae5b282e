"""A headless Chromium, driven over its DevTools protocol: one page, what it asked for, and a picture of it."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
    # Nothing but this machine can be looked up, whatever the page asks for.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)  # fmt: skip


def find_chromium() -> str | None:
    """The browser's program; None: there is none here."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """``asked``: every address that the page wanted something from, socket and failed ones included."""

    def __init__(self, program: str, folder: Path, size: tuple[int, int]) -> None:
        window = f"--window-size={size[0]},{size[1]}"
        self._port_file = folder / "DevToolsActivePort"
        self.process = subprocess.Popen(
            [program, *OPTIONS, f"--user-data-dir={folder}", window, "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.asked: list[str] = []
        self._number = 0

    async def connect(self, http: aiohttp.ClientSession) -> None:
        """To the only page there is."""
        while not self._port_file.is_file() or not self._port_file.read_text().strip():
            assert self.process.poll() is None, "the browser ended by itself"
            await asyncio.sleep(0.05)
        port = self._port_file.read_text().split()[0]
        async with http.get(f"http://127.0.0.1:{port}/json") as answer:
            pages = await answer.json(content_type=None)
        address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        self._socket = await http.ws_connect(address, max_msg_size=0)
        await self.call("Network.enable")

    async def call(self, method: str, **values: object) -> dict[str, Any]:
        """One command and its result."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": values})
        while True:
            told = json.loads(await self._socket.receive_str())
            if told.get("id") == self._number:
                assert "error" not in told, told
                return told["result"]
            if told.get("method") == "Network.requestWillBeSent":
                self.asked.append(told["params"]["request"]["url"])
            elif told.get("method") == "Network.webSocketCreated":
                self.asked.append(told["params"]["url"])

    async def evaluate(self, script: str) -> object:
        return (await self.call("Runtime.evaluate", expression=script))["result"].get("value")

    async def picture(self) -> bytes:
        """The page as a PNG."""
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def colours_of(png: bytes) -> dict[tuple[int, int, int], int]:
    """How many pixels a picture has of each colour (8 bits a channel, not interlaced, as browsers write it)."""
    at, data, channels, width = 8, b"", 0, 0
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        body = png[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, _, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            assert (depth, interlaced) == (8, 0)
            channels = {2: 3, 6: 4}[colour]
        data += body if kind == b"IDAT" else b""
        at += 12 + length
    plain, stride = zlib.decompress(data), width * channels
    counts: dict[tuple[int, int, int], int] = {}
    above = bytearray(stride)
    for start in range(0, len(plain), stride + 1):
        row = _unfiltered(plain[start], plain[start + 1 : start + 1 + stride], above, channels)
        for x in range(0, stride, channels):
            key = (row[x], row[x + 1], row[x + 2])
            counts[key] = counts.get(key, 0) + 1
        above = row
    return counts


def _unfiltered(kind: int, line: bytes, above: bytearray, channels: int) -> bytearray:
    row = bytearray(line)
    for x in range(len(row)):
        left = row[x - channels] if x >= channels else 0
        corner = above[x - channels] if x >= channels else 0
        row[x] = (row[x] + _predicted(kind, left, above[x], corner)) & 0xFF
    return row


def _predicted(kind: int, left: int, up: int, corner: int) -> int:
    if kind < 4:
        return (0, left, up, (left + up) // 2)[kind]
    by_left, by_up, by_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
    return left if by_left <= by_up and by_left <= by_corner else up if by_up <= by_corner else corner
