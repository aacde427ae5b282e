"""`kvtop serve` as it is used: a page on the loopback interface that shows the screens, and nobody else's."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import make_frames
import pytest
from chromium import Chromium, colours_of, find_chromium
from loopback import free_port  # pyright: ignore[reportMissingImports]

from kvtop.tui.theme import PALETTES

LIMIT_S = 100.0


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[aiohttp.ClientSession, str, subprocess.Popen[bytes]]]:
    """A client, the address of the page (once it is served), and the server's process."""
    port = free_port()
    words = ["serve", "--port", str(port), "replay", str(make_frames.PATH), "--speed", "0"]
    server = subprocess.Popen(
        [sys.executable, "-m", "kvtop", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        cwd=folder,
    )
    try:
        assert server.stdout is not None
        line = await asyncio.to_thread(server.stdout.readline)
        assert line.decode() == f"kvtop is at http://127.0.0.1:{port} (Ctrl+C ends it)\n"
        async with aiohttp.ClientSession() as http:
            yield http, f"127.0.0.1:{port}", server
    finally:
        server.terminate()
        try:
            server.communicate(timeout=LIMIT_S / 4)
        except subprocess.TimeoutExpired:
            server.kill()
            server.communicate()


async def read_until(page: aiohttp.ClientWebSocketResponse, wanted: bytes) -> bytes:
    output = b""
    async for message in page:
        output += message.data if isinstance(message.data, bytes) else message.data.encode()
        if wanted in output:
            return output
    raise AssertionError(output[-2000:])


async def test_the_page_shows_the_screens_and_takes_keys_and_ends_in_order(tmp_path):
    async with asyncio.timeout(LIMIT_S), served(tmp_path) as (http, host, server):
        async with http.get(f"http://{host}/") as answer:
            page = await answer.text()
            policy = answer.headers["Content-Security-Policy"]
        assert "googleapis" not in page
        assert "default-src http://127.0.0.1:" in policy
        async with http.ws_connect(f"ws://{host}/ws?width=100&height=30") as screen:
            await read_until(screen, b"Findings")
            await screen.send_json(["stdin", "4"])
            await read_until(screen, b"who runs")
            server.send_signal(signal.SIGTERM)
            output, _ = await asyncio.to_thread(server.communicate, timeout=LIMIT_S)
        assert server.returncode == 0
        assert output.decode() == ""  # no word about loops and transports


async def test_another_page_of_the_same_browser_is_refused(tmp_path):
    async with asyncio.timeout(LIMIT_S), served(tmp_path) as (http, host, _):
        for headers in ({"Origin": "http://example.org"}, {"Host": f"example.org:{urlsplit(f'//{host}').port}"}):
            for path in ("/", "/ws", "/static/js/textual.js"):
                async with http.get(f"http://{host}{path}", headers=headers) as answer:
                    assert answer.status == 403, (headers, path)
        async with http.get(f"http://{host}/", headers={"Origin": f"http://{host}"}) as answer:
            assert answer.status == 200


async def test_it_listens_on_loopback_only(tmp_path):
    async with asyncio.timeout(LIMIT_S), served(tmp_path) as (_, host, _server):
        port = urlsplit(f"//{host}").port
        assert port is not None
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # nothing is sent: only which address this machine has elsewhere
            own = probe.getsockname()[0]
        if own.startswith("127."):
            pytest.skip("this machine has no address but loopback")
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((own, port), timeout=LIMIT_S).close()


@pytest.mark.skipif(find_chromium() is None, reason="no Chromium is installed")
async def test_a_browser_shows_it_and_asks_nobody_else(tmp_path):
    program = find_chromium()
    assert program is not None
    browser = Chromium(program, tmp_path / "profile", (1000, 640))
    try:
        async with asyncio.timeout(LIMIT_S), served(tmp_path) as (http, host, _):
            await browser.connect(http)
            await browser.call("Page.navigate", url=f"http://{host}/")
            while "-first-byte" not in str(await browser.evaluate("document.body.className")):
                await asyncio.sleep(0.1)
            red, green, blue = bytes.fromhex(PALETTES["dark"].orange.removeprefix("#"))
            while True:  # fades in
                counts = colours_of(await browser.picture())
                if counts.get((red, green, blue), 0) > 3_000:  # what tells that the run is simulated, and frozen
                    break
                await asyncio.sleep(0.2)
        total = sum(counts.values())
        background = max(counts.values())
        assert 0.6 < background / total < 0.98  # neither blank nor noise
        assert len(counts) > 30  # text with smooth edges in several colours
        assert {urlsplit(address).hostname for address in browser.asked} == {"127.0.0.1"}
        assert any(address.startswith(f"ws://{host}/") for address in browser.asked)
        assert any("RobotoMono" in address for address in browser.asked)
    finally:
        browser.close()
