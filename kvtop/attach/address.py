"""Where a server is, as one types it. Loads no HTTP: commands ask here before they know what they got."""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import dataclass

from kvtop.engine.errors import UsageError

SCHEMES = ("http", "https")
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^/:\s\[\]]+):[0-9]+(/.*)?")
_ONLY_A_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|localhost|[0-9]{1,3}(\.[0-9]{1,3}){3})(/.*)?")  # never a run's name


@dataclass(frozen=True, slots=True)
class Address:
    """``url`` is asked; ``shown`` is it without user and password, for screens and files."""

    url: str
    shown: str
    is_loopback: bool


def is_address(text: str) -> bool:
    """Whether ``text`` is meant as a server: a URL, HOST:PORT, an IP address (IPv6 in brackets) or
    localhost. It may still be a wrong one.

    The bare name of a host is none: it might be that of a run.
    """
    return "://" in text or any(form.fullmatch(text) for form in (_HOST_PORT, _ONLY_A_HOST))


def address_of(text: str) -> Address:
    """``HOST:PORT``, or a URL; without a path it is that of /metrics.

    Raises:
        UsageError: no address, or a scheme that is not HTTP.
    """
    full = text if "://" in text else f"http://{text}"
    try:
        parts = urllib.parse.urlsplit(full)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise UsageError(f"{text!r} is no address, expected one like http://127.0.0.1:8000") from None
    if parts.scheme not in SCHEMES:
        hint = " (KV events belong behind --kv-events)" if parts.scheme == "tcp" else ""
        raise UsageError(f"{text!r}: found {parts.scheme}://, expected http:// or https://{hint}")
    if not host or any(c.isspace() or not c.isprintable() for c in full):
        raise UsageError(f"{text!r} is no address, expected one like http://127.0.0.1:8000")
    netloc = (f"[{host}]" if ":" in host else host) + (f":{port}" if port is not None else "")
    path = parts.path if parts.path not in ("", "/") else "/metrics"
    url = urllib.parse.urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
    shown = urllib.parse.urlunsplit((parts.scheme, netloc, "" if path == "/metrics" else path, "", ""))
    return Address(url, shown, host == "localhost" or host.startswith("127.") or host == "::1")


def without_user(url: str) -> str:
    """``url`` without user and password."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
