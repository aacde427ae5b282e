"""One look at a metrics endpoint: ask, read within a time and a size, say in one line what is wrong with the answer.

``urllib.request`` is used, not httpx: it is there already and costs 0.2 s less to load. Redirects are not followed (the
key would go with them), and a proxy of the environment is not asked for an address of this machine.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress

from kvtop.attach.address import Address, without_user
from kvtop.attach.exposition import Exposition
from kvtop.attach.names import WANTED, Meaning, understand
from kvtop.engine.events import EngineSample, Sample
from kvtop.state.session_status import NOT_LOADED
from kvtop.workloads.words import counted

MAX_BODY_BYTES = 64 << 20
READ_BYTES = 1 << 16


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req, fp, code, msg, headers, newurl):
        return None


def headers_for(address: Address, api_key: str | None) -> dict[str, str]:
    """Who asks, and what lets it in."""
    headers = {"User-Agent": "kvtop"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    elif "@" in urllib.parse.urlsplit(address.url).netloc:
        headers["Authorization"] = _basic(address.url)
    return headers


class Scraper:
    """Looks at one endpoint, again and again. Not thread-safe: one request is in flight at a time.

    ``timeout_s`` bounds a whole answer, however slowly it drips.
    """

    def __init__(self, address: Address, *, api_key: str | None = None, timeout_s: float = 5.0) -> None:
        self.address, self.timeout_s = address, timeout_s
        self._headers = {"Accept": "text/plain", **headers_for(address, api_key)}
        self._url = without_user(address.url)
        self._fetcher = Fetcher(address)
        self._exposition = Exposition(WANTED)

    def look(self, step: int, t_ns: int) -> Sample:
        """One sample; whatever goes wrong is its ``problem``. Takes up to about ``timeout_s``."""
        began = time.monotonic()
        body, problem = self._fetch()
        kind, engines, started = "", [], None
        if not problem:
            kind, engines, started, problem = self._read(body)
        took_ns = int((time.monotonic() - began) * 1e9)
        return Sample(
            step=step, t_ns=t_ns, server=self.address.shown, kind=kind, problem=problem, engines=engines,
            took_ns=took_ns, started=started,
        )  # fmt: skip

    def _read(self, body: bytes) -> tuple[str, list[EngineSample], float | None, str]:
        problem = ""
        try:
            text = body.decode("utf-8")
        except UnicodeDecodeError as error:
            return "", [], None, f"bad response: byte {error.start} is not UTF-8, expected Prometheus text"
        if not text.strip():
            return "", [], None, "bad response: empty, expected Prometheus text"
        parsed = self._exposition.parse(text)
        if not parsed.num_lines:
            what = "HTML" if text.lstrip()[:200].lower().startswith(("<!doctype", "<html")) else "no sample in it"
            problem = f"bad response: {what}, not Prometheus text"
        elif not parsed.is_whole:
            problem = f"bad response: cut off after {len(body):,} bytes"
        elif parsed.num_bad * 2 > parsed.num_lines:
            problem = f"bad response: {parsed.num_bad:,} of {parsed.num_bad + parsed.num_lines:,} lines are no samples"
        if problem:
            return "", [], None, problem
        meaning = understand(parsed.series)
        if not meaning.engines:
            return meaning.kind, [], None, _nobody(meaning, parsed.num_lines)
        return meaning.kind, meaning.engines, meaning.started, ""

    def _fetch(self) -> tuple[bytes, str]:
        """(body, what is wrong)."""
        request = urllib.request.Request(self._url, headers=self._headers)
        try:
            return self._fetcher.fetch(request, self.timeout_s, MAX_BODY_BYTES)
        except urllib.error.HTTPError as error:
            return b"", _status(error)


class Fetcher:
    """Sends requests to one address. No redirect is followed, and no proxy asked for an address of this machine.

    Not thread-safe. An answer is bounded in bytes and in time, from the connection to its last byte: a server that
    drips its headers would otherwise be waited for as long as it likes.
    """

    def __init__(self, address: Address) -> None:
        self._sockets: list[socket.socket] = []
        proxies = urllib.request.ProxyHandler({}) if address.is_loopback else urllib.request.ProxyHandler()
        self._opener = urllib.request.build_opener(proxies, _NoRedirect(), _Http(self._sockets), _Https(self._sockets))

    def fetch(self, request: urllib.request.Request, timeout_s: float, max_bytes: int) -> tuple[bytes, str]:
        """(body, what is wrong).

        Raises:
            urllib.error.HTTPError: closed; a status other than 2xx.
        """
        deadline = time.monotonic() + timeout_s
        late = threading.Timer(timeout_s + 0.1, self._cut_off)  # what says nothing at all has timed out by then
        late.daemon = True
        late.start()
        try:
            with self._opener.open(request, timeout=timeout_s) as answer:
                return _body(answer, deadline, timeout_s, max_bytes)
        except urllib.error.HTTPError as error:
            error.close()
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            if time.monotonic() > deadline and not isinstance(reason, TimeoutError):
                return b"", f"slow: no whole answer in {timeout_s:g} s"
            return b"", cause_of(reason, timeout_s)
        finally:
            late.cancel()
            self._sockets.clear()

    def _cut_off(self) -> None:
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _Http(urllib.request.HTTPHandler):
    """Notes the sockets it opens in ``sockets``."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        super().__init__()
        self._noted = sockets

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_noting(http.client.HTTPConnection, self._noted), req)  # type: ignore[arg-type]


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, sockets: list[socket.socket]) -> None:
        super().__init__()
        self._noted = sockets

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_noting(http.client.HTTPSConnection, self._noted), req)  # type: ignore[arg-type]


def _noting(kind: type[http.client.HTTPConnection], sockets: list[socket.socket]) -> type[http.client.HTTPConnection]:
    class Noting(kind):
        def connect(self) -> None:
            super().connect()
            sockets.append(self.sock)

    return Noting


def _body(answer: http.client.HTTPResponse, deadline: float, timeout_s: float, max_bytes: int) -> tuple[bytes, str]:
    coding = "".join(c for c in answer.headers.get("Content-Encoding", "") if c.isprintable())[:20]
    if coding.lower() not in ("", "identity"):
        return b"", f"bad response: its encoding is {coding}, which was not asked for"
    pieces: list[bytes] = []
    size = 0
    while piece := answer.read1(READ_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > max_bytes:
            return b"", f"bad response: more than {max_bytes >> 20} MiB"
        if time.monotonic() > deadline:
            return b"", f"slow: no whole answer in {timeout_s:g} s"
    if time.monotonic() > deadline:  # it may have been cut off
        return b"", f"slow: no whole answer in {timeout_s:g} s"
    expected = answer.headers.get("Content-Length", "")
    if expected.isdigit() and int(expected) > size:
        return b"", f"bad response: cut off after {size:,} of {int(expected):,} bytes"
    return b"".join(pieces), ""


def _nobody(meaning: Meaning, num_metrics: int) -> str:
    """Why a whole answer tells of no engine."""
    if meaning.kind != "kvtop":
        return f"{counted(num_metrics, 'metric')}, but none of vLLM, SGLang or kvtop"
    return NOT_LOADED if meaning.status in ("starting", "") else f"it has no figures: its run is {meaning.status[:20]}"


def _status(error: urllib.error.HTTPError) -> str:
    if error.code in (401, 403):
        return f"HTTP {error.code}: needs --api-key, or another one"
    if 300 <= error.code < 400:
        where = "".join(c for c in error.headers.get("Location", "") if c.isprintable())[:80]
        return f"HTTP {error.code}: moved to {where or 'an address it does not name'}; give that one"
    if error.code == 404:
        return "HTTP 404: no metrics at this address (SGLang: start it with --enable-metrics)"
    return f"HTTP {error.code}"


def cause_of(reason: object, timeout_s: float) -> str:
    """Why there was no answer, in one line."""
    if isinstance(reason, TimeoutError):
        return f"slow: no answer in {timeout_s:g} s"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"TLS: its certificate is not trusted ({reason.verify_message})"
    if isinstance(reason, ssl.SSLError):
        return "TLS: no secure connection (is it http, not https?)"
    if isinstance(reason, ConnectionRefusedError):
        return "unreachable: connection refused"
    if isinstance(reason, socket.gaierror):
        return f"unreachable: {reason.strerror}"
    if isinstance(reason, http.client.IncompleteRead):
        return f"bad response: cut off after {len(reason.partial):,} bytes"
    if isinstance(reason, http.client.HTTPException):
        return f"bad response: no HTTP ({type(reason).__name__})"
    if isinstance(reason, ValueError):  # its text quotes what was to be sent, a key among it
        return "not asked: the address or a header cannot be sent"
    text = " ".join(str(getattr(reason, "strerror", None) or reason).split())
    return f"unreachable: {text or type(reason).__name__}"


def _basic(url: str) -> str:
    import base64

    parts = urllib.parse.urlsplit(url)
    pair = f"{urllib.parse.unquote(parts.username or '')}:{urllib.parse.unquote(parts.password or '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode()
