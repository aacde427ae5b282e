"""Colours: one theme, and the styles the widgets draw with. Hues are Okabe and Ito's, told apart by any eye.

A glyph always carries the meaning first; with NO_COLOR only bold, dim and reverse remain.
"""

from __future__ import annotations

from rich.style import Style
from textual.theme import Theme

_ORANGE, _SKY, _GREEN, _YELLOW, _VERMILLION, _PURPLE = "#e69f00", "#56b4e9", "#1fb08a", "#f0e442", "#ee6f2d", "#d58fb8"
_SKY_DEEP, _GREEN_DEEP, _PURPLE_DEEP = "#3f7fa6", "#1a7f65", "#8d6380"  # areas of charts: calmer
_TEXT, _SOFT, _FAINT, _RULE, _GROUND = "#d7dae0", "#9aa3b0", "#626c7a", "#3a424e", "#14171c"

THEME = Theme(
    name="kvtop",
    primary=_SKY,
    secondary=_GREEN,
    accent=_SKY,
    warning=_ORANGE,
    error=_VERMILLION,
    success=_GREEN,
    foreground=_TEXT,
    background=_GROUND,
    surface="#1a1e25",
    panel="#222831",
    dark=True,
)

STYLES: dict[str, Style] = {
    "": Style(),
    "text": Style(color=_TEXT),
    "strong": Style(color="#ffffff", bold=True),
    "soft": Style(color=_SOFT),
    "faint": Style(color=_FAINT),
    "rule": Style(color=_RULE),
    "title": Style(color=_TEXT, bold=True),
    "focus": Style(color=_SKY, bold=True),
    "focusrule": Style(color=_SKY),
    "key": Style(color=_SKY),
    "brand": Style(color=_SKY, bold=True),
    "good": Style(color=_GREEN),
    "warn": Style(color=_ORANGE),
    "bad": Style(color=_VERMILLION, bold=True),
    "badge": Style(color=_ORANGE, bold=True, reverse=True),
    "selected": Style(bgcolor="#2b3a4d", bold=True),
    "selectedfocus": Style(color="#2a5673", bgcolor="#ffffff", bold=True, reverse=True),
    # blocks
    "fresh": Style(color=_FAINT),
    "idle": Style(color=_SKY),
    "used": Style(color=_GREEN),
    "shared": Style(color=_YELLOW, bold=True),
    "shared4": Style(color=_ORANGE, bold=True),
    "many": Style(color=_VERMILLION, bold=True),
    "transfer": Style(color=_PURPLE),
    "lit": Style(bgcolor="#3b4658", underline=True),
    "cursor": Style(color="#ffffff", bgcolor="#000000", bold=True, underline=False, reverse=True),
    # charts
    "ttft": Style(color=_SKY_DEEP),
    "itl": Style(color=_PURPLE_DEEP),
    "prefill": Style(color=_SKY_DEEP),
    "decode": Style(color=_GREEN_DEEP),
    "usedchart": Style(color=_GREEN_DEEP),
}
