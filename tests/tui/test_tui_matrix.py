"""Every screen at three sizes in every state, as pictures. What has no picture of its own is in a table, with why."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tui_looks import SIZES, looks
from tui_pictures import PICTURES
from tui_states import STATES, State

from kvtop.tui.screens import SCREENS, ScreenEntry

MORE = "more"  # folder of pictures that are no part of the matrix
NO_PICTURE: dict[tuple[str, str], str] = {
    ("Memory calculator", "paused"): "it shows a plan, and of the run only its settings: as live",
    ("Memory calculator", "stalled"): "it shows a plan, and of the run only its settings: as live",
}
"""(screen, state) -> why there is none."""
MATRIX = [
    (entry, state, size)
    for size in SIZES for state in STATES for entry in SCREENS if (entry.name, state.name) not in NO_PICTURE
]  # fmt: skip


def name_of(entry: ScreenEntry, state: State, size: tuple[int, int]) -> str:
    """Of a picture's file, without its end."""
    return f"{entry.name.lower().replace(' ', '-')}/{state.name}-{size[0]}x{size[1]}"


@pytest.mark.parametrize(("entry", "state", "size"), MATRIX, ids=[name_of(*cell) for cell in MATRIX])
def test_screen(check_picture: Callable, entry: ScreenEntry, state: State, size: tuple[int, int]) -> None:
    check_picture(looks(state, size)[entry.name].picture, name_of(entry, state, size))


def test_every_kept_picture_is_of_the_matrix() -> None:
    kept = {str(path.relative_to(PICTURES).with_suffix("")) for path in PICTURES.rglob("*.svg")}
    assert {name for name in kept if not name.startswith(MORE)} == {name_of(*cell) for cell in MATRIX}


def test_what_has_no_picture_is_of_the_matrix() -> None:
    """A table of screens and states that are no longer there would hide a gap."""
    assert {name for name, _ in NO_PICTURE} <= {entry.name for entry in SCREENS}
    assert {name for _, name in NO_PICTURE} <= {state.name for state in STATES}
