"""The TUI as a page: textual-serve on the loopback interface, closed to other pages, with nothing from elsewhere."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
from contextlib import suppress

from aiohttp import web
from textual_serve.server import Server

HOST = "127.0.0.1"
STOP_S = 5.0
_NAMES = (HOST, "localhost")
_FONT_LINK = re.compile(r"<link[^>]*fonts\.googleapis\.com[^>]*>")
_FONT = """<style>
      @font-face { font-family: "Roboto Mono"; src: url("/static/fonts/RobotoMono-VariableFont_wght.ttf"); }
    </style>"""


class Page(Server):
    """Serves ``command``, a shell command that opens the TUI, anew for every page that is opened.

    A browser lets any site that is open in it talk to this machine's ports. What has another name in ``Host`` or comes
    from another ``Origin`` is refused: whoever drives the TUI can write files and stop the engine.
    """

    def __init__(self, command: str, port: int) -> None:
        super().__init__(command, host=HOST, port=port, title="kvtop")
        self._hosts = {f"{name}:{port}" for name in _NAMES} | (set(_NAMES) if port == 80 else set())
        self._origins = {f"http://{host}" for host in self._hosts}
        self._open: set[asyncio.Task] = set()  # what serves a page
        own = " ".join(sorted(self._origins))
        sockets = " ".join(f"ws://{host}" for host in sorted(self._hosts))
        self._policy = f"default-src {own} 'unsafe-inline' data: blob:; connect-src {own} {sockets}"

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._guard)
        app.on_response_prepare.append(self._limit)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if request.host not in self._hosts or (origin is not None and origin not in self._origins):
            return web.Response(status=403, text=f"expected http://{HOST}:{self.port}, and from no other page\n")
        return await handler(request)

    async def _limit(self, request: web.Request, response: web.StreamResponse) -> None:
        """The browser may load nothing from elsewhere for this page, nor show it inside another."""
        response.headers["Content-Security-Policy"] = f"{self._policy}; frame-ancestors 'none'"

    def initialize_logging(self) -> None:
        """Not every request: only what goes wrong."""
        logging.basicConfig(level="WARNING", format="%(message)s")

    def serve(self, debug: bool = False) -> None:
        """Serve until Ctrl+C or SIGTERM. The address is told once connections are taken there, which is later than the
        base class would."""
        self.debug = debug
        self.initialize_logging()
        loop = asyncio.new_event_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(NotImplementedError):  # Windows
                loop.add_signal_handler(number, self.request_exit)
        app = self._make_app()
        web.run_app(app, host=self.host, port=self.port, handle_signals=False, loop=loop, print=self._tell)

    def _tell(self, listening: str) -> None:
        """Called by aiohttp, in its own words, when the socket listens."""
        print(f"kvtop is at {self.public_url} (Ctrl+C ends it)", flush=True)

    async def on_startup(self, app: web.Application) -> None:
        """Nothing is to be told yet."""

    async def on_shutdown(self, app: web.Application) -> None:
        """End what runs behind open pages, while there is a loop to do it in."""
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open, timeout=STOP_S)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            return await super().handle_websocket(request)
        finally:
            self._open.discard(task)

    async def handle_index(self, request: web.Request) -> web.Response:
        """The page. Its font is the one that textual-serve brings, not the one that it links to."""
        page: web.Response = await super().handle_index(request)  # type: ignore[assignment]
        page.text = _FONT_LINK.sub(_FONT, page.text or "")
        return page
