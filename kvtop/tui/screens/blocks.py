"""Block map: every block, who holds it, what happened to it and when it goes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import replace
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding

from kvtop.tui import block_view
from kvtop.tui.block_view import BlockView
from kvtop.tui.frame import Frame
from kvtop.tui.panels.block import BlockPanel
from kvtop.tui.panels.block_history import BlockHistoryPanel
from kvtop.tui.panels.blocks import BlocksPanel
from kvtop.tui.screens.base import PanelScreen
from kvtop.tui.screens.frame_screen import Area
from kvtop.tui.widgets.block_map import BlockMap


class BlocksScreen(PanelScreen):
    """The map of the pool, and beside it (below it, where there is no room) the block under the cursor."""

    AUTO_FOCUS = "BlockMap"
    BINDINGS: ClassVar[list] = [
        Binding("f", "follow", "follow", tooltip="follow the block: , and . go from one of its decisions to the next"),
        Binding("v", "prefix", "prefix", tooltip="the prefix of the block, in the tree"),
    ]
    CSS = """
    BlocksScreen #body { layout: horizontal; }
    BlocksScreen BlocksPanel { width: 1fr; }
    BlocksScreen #beside { width: 42; height: 100%; margin-left: 1; }
    BlocksScreen #settings { height: 1; }
    BlocksScreen BlockPanel { height: 20; }
    BlocksScreen.-wide #beside { width: 56; }
    BlocksScreen.-narrow #body { layout: vertical; }
    BlocksScreen.-narrow #beside { width: 100%; height: 6; margin-left: 0; }
    BlocksScreen.-narrow BlockPanel { height: 6; }
    BlocksScreen.-narrow BlockHistoryPanel { display: none; }
    BlocksScreen.-short.-mid BlockPanel, BlocksScreen.-short.-wide BlockPanel { height: 16; }
    BlocksScreen #body.-zoomed #beside { margin-left: 0; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.view = BlockView()
        self._catches_up = False

    def compose_panels(self) -> ComposeResult:
        yield BlocksPanel(self.view)
        with Area(classes="area", id="beside"):
            yield BlockPanel(self.view)
            yield BlockHistoryPanel(self.view)

    def show_frame(self, frame: Frame) -> None:
        self.view.update(frame)
        super().show_frame(frame)
        if self.view.is_stale and not self._catches_up:
            self._catches_up = True
            self.set_timer(block_view.RESORT_S, self._catch_up)

    def _catch_up(self) -> None:
        """The run may have fallen silent before blocks got to their places."""
        self._catches_up = False
        if self._frame is not None and self.is_current:
            self.show_frame(replace(self._frame, dirty=set(), whole=False))

    def show_selection(self, kind: str, id: str | int) -> None:
        if kind == "block":
            self.query_one(BlocksPanel).map.move_to(int(id))

    def told(self) -> tuple[str, bool] | None:
        """The owner of the block under the cursor: the selected request, if it is one of them."""
        if self._frame is None or self.is_too_small:
            return None
        owners, chosen = self.query_one(BlocksPanel).owners_under_cursor(), self.kvtop.selected.get("request")
        if not owners:
            return None
        return (str(chosen) if chosen in owners else owners[0]), False

    @on(BlockMap.Moved)
    def _on_moved(self) -> None:
        self.view.cursor = self.query_one(BlocksPanel).map.cursor
        self.kvtop.choose("block", self.view.cursor)
        for panel in (self.query_one(BlockPanel), self.query_one(BlockHistoryPanel)):
            panel.redraw()
        self.update_keys()

    # Following a block -----------------------------------------------------------------------------------------

    def action_follow(self) -> None:
        panel = self.query_one(BlockHistoryPanel)
        panel.follows = not panel.follows
        panel.redraw()
        if panel.follows:
            self.notify(f"following block {self.view.cursor:,}: , and . go to its decisions", timeout=3)

    def action_moment(self, direction: int) -> None:
        """While a block is followed: to its decision before or after the step that is looked at."""
        panel = self.query_one(BlockHistoryPanel)
        if not panel.follows:
            super().action_moment(direction)
            return
        panel.look()
        steps, here = panel.steps(), self.timeline.view.step
        place = bisect_right(steps, here) if direction > 0 else bisect_left(steps, here) - 1
        if not 0 <= place < len(steps):
            self.notify("nothing later about this block" if direction > 0 else "nothing earlier is kept", timeout=2)
            return
        self.timeline.stop()
        self.timeline.seek(steps[place])
        self.kvtop.show_now()

    def action_prefix(self) -> None:
        self.query_one(BlocksPanel).open_prefix()
