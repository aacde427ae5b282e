"""Themes: a palette each, from which the widgets' styles are made. A glyph always carries the meaning first.

Hues are Okabe and Ito's, told apart by any eye, lightened or darkened for the ground they stand on. ``okabe-ito`` has
them as published; ``ansi`` takes the terminal's own colours; ``mono`` has none, as with NO_COLOR.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from rich.style import Style
from textual.theme import BUILTIN_THEMES, Theme

DEFAULT = "dark"
_HUES = ("primary", "secondary", "accent", "warning", "error", "success")


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours by what they are for. ``deep``: sky, green and purple as areas of charts, calmer."""

    ground: str
    surface: str
    panel: str
    text: str
    strong: str
    soft: str
    faint: str
    rule: str
    sky: str
    green: str
    yellow: str
    orange: str
    vermillion: str
    purple: str
    deep: tuple[str, str, str]
    selected: str  # ground of the selected row
    focused: tuple[str, str]  # ground and text of the selected row of the focused table
    lit: str  # ground of blocks of the selected request
    owners: tuple[str, ...]  # eight
    heat: tuple[str, ...]  # six, from cold to hot, also in lightness
    dark: bool = True
    ansi: bool = False


_DARK = Palette(
    ground="#14171c", surface="#1a1e25", panel="#222831",
    text="#d7dae0", strong="#ffffff", soft="#9aa3b0", faint="#626c7a", rule="#3a424e",
    sky="#56b4e9", green="#1fb08a", yellow="#f0e442", orange="#e69f00", vermillion="#ee6f2d", purple="#d58fb8",
    deep=("#3f7fa6", "#1a7f65", "#8d6380"),
    selected="#2b3a4d", focused=("#2a5673", "#ffffff"), lit="#3b4658",
    owners=("#e69f00", "#56b4e9", "#1fb08a", "#f0e442", "#3f8fd0", "#ee6f2d", "#d58fb8", "#c9ced6"),
    heat=("#7a6f9b", "#9b6aa8", "#c7639c", "#e8728a", "#f89a6c", "#fbd26a"),
)  # fmt: skip
_LIGHT = Palette(
    ground="#fbfbf8", surface="#f1f2ee", panel="#e4e7e6",
    text="#1c2026", strong="#000000", soft="#545d69", faint="#7d8693", rule="#c3cad3",
    sky="#0072b2", green="#00795c", yellow="#7a6200", orange="#a85700", vermillion="#b83800", purple="#93467a",
    deep=("#7fb2d4", "#79c0a9", "#cfa3c0"),
    selected="#d9e6f3", focused=("#0a4a75", "#ffffff"), lit="#d5dbe4",
    owners=("#a85700", "#0072b2", "#00795c", "#7a6200", "#004f8a", "#b83800", "#93467a", "#545d69"),
    heat=("#8f86ad", "#8a5a98", "#a8407e", "#c03a58", "#b04a10", "#8a5a00"),
    dark=False,
)  # fmt: skip
_OKABE_ITO = Palette(
    ground="#000000", surface="#101010", panel="#1c1c1c",
    text="#e8e8e8", strong="#ffffff", soft="#b0b0b0", faint="#808080", rule="#4a4a4a",
    sky="#56b4e9", green="#009e73", yellow="#f0e442", orange="#e69f00", vermillion="#d55e00", purple="#cc79a7",
    deep=("#0072b2", "#009e73", "#cc79a7"),
    selected="#26364a", focused=("#0072b2", "#ffffff"), lit="#404040",
    owners=("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#ffffff"),
    heat=("#5b4a8a", "#0072b2", "#009e73", "#e69f00", "#f0e442", "#ffffff"),
)  # fmt: skip
_ANSI = Palette(
    ground="default", surface="default", panel="default",
    text="default", strong="default", soft="default", faint="bright_black", rule="bright_black",
    sky="cyan", green="green", yellow="bright_yellow", orange="yellow", vermillion="red", purple="magenta",
    deep=("blue", "green", "magenta"),
    selected="default", focused=("blue", "white"), lit="default",
    owners=("yellow", "cyan", "green", "bright_yellow", "blue", "red", "magenta", "white"),
    heat=("blue", "cyan", "green", "yellow", "bright_red", "bright_yellow"),
    ansi=True,
)  # fmt: skip
PALETTES: dict[str, Palette] = {
    "dark": _DARK, "light": _LIGHT, "okabe-ito": _OKABE_ITO, "ansi": _ANSI, "mono": _ANSI,
}  # fmt: skip


def themes() -> list[Theme]:
    """One a palette, under its name."""
    return [_theme(name, palette) for name, palette in PALETTES.items()]


def _theme(name: str, palette: Palette) -> Theme:
    if palette.ansi:
        plain = {} if name == "ansi" else dict.fromkeys(_HUES, "ansi_default")
        return replace(BUILTIN_THEMES["ansi-dark"], name=name, **plain)
    return Theme(
        name=name,
        primary=palette.sky,
        secondary=palette.green,
        accent=palette.sky,
        warning=palette.orange,
        error=palette.vermillion,
        success=palette.green,
        foreground=palette.text,
        background=palette.ground,
        surface=palette.surface,
        panel=palette.panel,
        dark=palette.dark,
    )


@cache
def styles_of(name: str) -> Mapping[str, Style]:
    """The widgets' styles by name, of the theme ``name``; of the default one for a theme that is not ours."""
    styles = _styles(PALETTES.get(name, _DARK))
    if name == "mono":
        return {key: Style(bold=s.bold, underline=s.underline, reverse=s.reverse) for key, s in styles.items()}
    return styles


def _styles(p: Palette) -> dict[str, Style]:
    sky_deep, green_deep, purple_deep = p.deep
    return {
        "": Style(),
        "text": Style(color=p.text),
        "strong": Style(color=p.strong, bold=True),
        "soft": Style(color=p.soft),
        "faint": Style(color=p.faint),
        "rule": Style(color=p.rule),
        "title": Style(color=p.text, bold=True),
        "focus": Style(color=p.sky, bold=True),
        "focusrule": Style(color=p.sky),
        "key": Style(color=p.sky),
        "brand": Style(color=p.sky, bold=True),
        "good": Style(color=p.green),
        "warn": Style(color=p.orange),
        "bad": Style(color=p.vermillion, bold=True),
        "badge": Style(color=p.orange, bold=True, reverse=True),
        "selected": Style(bgcolor=p.selected, bold=True),
        "selectedfocus": Style(color=p.focused[0], bgcolor=p.focused[1], bold=True, reverse=True),
        # blocks
        "fresh": Style(color=p.faint),
        "idle": Style(color=p.sky),
        "used": Style(color=p.green),
        "shared": Style(color=p.yellow, bold=True),
        "shared4": Style(color=p.orange, bold=True),
        "many": Style(color=p.vermillion, bold=True),
        "transfer": Style(color=p.purple),
        **{f"owner{i}": Style(color=color) for i, color in enumerate(p.owners, 1)},
        **{f"heat{i}": Style(color=color, bold=i > 3 or None) for i, color in enumerate(p.heat)},
        "lit": Style(bgcolor=p.lit, underline=True),
        "cursor": _cursor(p),
        # charts
        "ttft": Style(color=sky_deep),
        "itl": Style(color=purple_deep),
        "prefill": Style(color=sky_deep),
        "decode": Style(color=green_deep),
        "usedchart": Style(color=green_deep),
    }


def _cursor(p: Palette) -> Style:
    if p.ansi:
        return Style(bold=True, underline=False, reverse=True)
    front, back = ("#ffffff", "#000000") if p.dark else ("#000000", "#ffffff")
    return Style(color=front, bgcolor=back, bold=True, underline=False, reverse=True)
