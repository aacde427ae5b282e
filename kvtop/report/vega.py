"""The plotting library, vl-convert: Vega-Lite specifications as SVG and PNG without a browser, and as a script."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from kvtop.engine.errors import KvtopError, UsageError

VEGA_LITE = "6.4"
"""The release that draws, of those the library brings: another one may draw otherwise."""

PNG_SCALE = 2.0

_PLACES = re.compile(r'\b(?:d|transform)="[^"]*"')
_LONG = re.compile(r"-?\d+\.\d{3,}")
"""Places with more digits than a hundredth of a pixel takes make half of a drawing's size."""

_IDS = re.compile(r'(\bid="|url\(#)((?:clip|gradient_)\w+)')

Spec = dict[str, Any]


def check_installed() -> None:
    """Find out early whether anything can be drawn.

    Raises:
        UsageError: the library is missing; the line says how to install it.
    """
    _library()


@cache
def _library() -> Any:
    try:
        import vl_convert
    except ImportError:
        raise UsageError(
            "reports are drawn with vl-convert, which is not installed: pip install 'kvtop[report]'"
        ) from None
    return vl_convert


def svg(spec: Spec, key: str) -> str:
    """The text of an SVG file; fonts are named in it, not embedded. Its ids begin with ``key``: in a page they meet
    those of other plots, and the library counts them through everything that the process draws.

    Raises:
        KvtopError: the library refuses the specification (a mistake of ours).
    """
    try:
        text: str = _library().vegalite_to_svg(spec, vl_version=VEGA_LITE, allowed_base_urls=[])
    except ValueError as error:
        raise KvtopError(f"a plot cannot be drawn: {str(error).splitlines()[0]}") from None
    text = _PLACES.sub(lambda found: _LONG.sub(lambda number: f"{float(number[0]):.2f}", found[0]), text)
    numbers: dict[str, int] = {}
    return _IDS.sub(lambda found: f"{found[1]}{key}-{numbers.setdefault(found[2], len(numbers))}", text)


def png(spec: Spec) -> bytes:
    """The bytes of a PNG file at twice the size, on white.

    Raises:
        KvtopError: see ``svg``.
    """
    try:
        return _library().vegalite_to_png(on_white(spec), vl_version=VEGA_LITE, scale=PNG_SCALE, allowed_base_urls=[])
    except ValueError as error:
        raise KvtopError(f"a plot cannot be drawn: {str(error).splitlines()[0]}") from None


def on_white(spec: Spec) -> Spec:
    """For a file that stands alone: the page's plots let its background through."""
    return {**spec, "background": "#ffffff", "padding": 12}


@cache
def script(snippet: str) -> str:
    """JavaScript that holds Vega, Vega-Lite and Vega-Embed, and runs ``snippet``, which may call ``vegaEmbed``."""
    text: str = _library().javascript_bundle(snippet, vl_version=VEGA_LITE)
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def as_json(value: Any) -> str:
    """JSON that is safe inside a script element of a page: no markup can begin in it."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text
