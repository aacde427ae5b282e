"""The live screen: header, panels, footer. Places what ``panels.PANELS`` lists; knows no panel's inside."""

from __future__ import annotations

from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container
from textual.screen import Screen
from textual.widgets import Footer

from kvtop.state.request_logs import RequestLog
from kvtop.tui.frame import Frame
from kvtop.tui.panels import PANELS, Panel
from kvtop.tui.panels.base import panel_of
from kvtop.tui.panels.requests import RequestsPanel, describe_counts, request_of
from kvtop.tui.screens.why import WhyScreen
from kvtop.tui.text import whole
from kvtop.tui.widgets.block_map import BlockMap
from kvtop.tui.widgets.header import HeaderBar, status_span
from kvtop.tui.widgets.line_table import LineTable
from kvtop.tui.widgets.lines import Line, Lines, cut

MIN_WIDTH, MIN_HEIGHT = 60, 16


class FrameScreen(Screen[None]):
    """A screen that is given frames while it is the active one."""

    def show_frame(self, frame: Frame) -> None:
        raise NotImplementedError


class LiveScreen(FrameScreen):
    """The pool, the numbers and the requests of one engine."""

    BINDINGS: ClassVar[list] = [
        Binding("z", "zoom", "zoom", tooltip="the focused panel alone, and back"),
        Binding("tab", "app.focus_next", "panel", key_display="tab", tooltip="next panel (Shift+Tab: previous)"),
        Binding("shift+tab", "app.focus_previous", show=False),
        Binding("w", "why", "why", tooltip="the whole life of a request, and why it waits now"),
        Binding("escape", "zoom_out", show=False),
    ]
    AUTO_FOCUS = "BlockMap"

    def __init__(self) -> None:
        super().__init__()
        self._frame: Frame | None = None
        self._chosen: str | None = None  # sequence whose blocks are underlined
        self._can_tell = False  # the footer has the key for it

    def compose(self) -> ComposeResult:
        yield HeaderBar(id="header")
        yield Lines(id="too-small")
        with Container(id="body"):
            for area in ("map", "stats", "table"):
                with Container(id=f"{area}-area", classes="area"):
                    yield from (panel() for panel in PANELS if area == panel.AREA)
        yield Footer(show_command_palette=False, compact=True)

    @property
    def is_too_small(self) -> bool:
        return self.size.width < MIN_WIDTH or self.size.height < MIN_HEIGHT

    def show_frame(self, frame: Frame) -> None:
        self._frame = frame
        if self.is_too_small:
            self.query_one("#too-small", Lines).set_lines(self._summary(frame))
            for panel in self.query(Panel):  # to be drawn as soon as there is room
                panel.frame = frame
            return
        self.query_one(HeaderBar).update_frame(frame)
        for panel in self.query(Panel):
            panel.update_frame(frame)
        self._light_chosen()
        self._update_keys()

    def _summary(self, frame: Frame) -> list[Line]:
        """What a screen too small for panels says."""
        width, state = self.size.width, frame.state
        run: Line = [*status_span(state), (f" step {whole(state.step)}", "text")]
        need = f"terminal too small, need {MIN_WIDTH}x{MIN_HEIGHT}"
        return [cut(line, width) for line in (run, [(describe_counts(state), "text")], [(need, "warn")])]

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width < MIN_WIDTH or event.size.height < MIN_HEIGHT, "-tiny")
        self.call_after_refresh(self._redraw)

    def _redraw(self) -> None:
        """Header and summary follow the new size at once; panels do so themselves."""
        if self._frame is None:
            return
        if self.is_too_small:
            self.query_one("#too-small", Lines).set_lines(self._summary(self._frame))
        else:
            self.query_one(HeaderBar).update_frame(self._frame)

    # Panels that act on each other ---------------------------------------------------------------------------

    @on(RequestsPanel.Chosen)
    def _on_chosen(self, event: RequestsPanel.Chosen) -> None:
        self._chosen = event.seq_id
        self._light_chosen()
        self._update_keys()

    def _light_chosen(self) -> None:
        seq = self._frame.state.sequences.get(self._chosen) if self._frame and self._chosen else None
        self.query_one(BlockMap).light(frozenset(seq.held if seq else ()))

    @on(BlockMap.Opened)
    def _on_opened(self, event: BlockMap.Opened) -> None:
        if owners := self._owners_under_cursor():
            table = self.query_one(LineTable)
            # A block with several owners: each Enter goes to the next one.
            after = owners.index(table.selected) + 1 if table.selected in owners else 0
            table.select(owners[after % len(owners)])

    def _owners_under_cursor(self) -> list[str]:
        """Who holds the block under the cursor; where a cell is several blocks, who holds any of them."""
        pool, block_map = self._frame.state.pool if self._frame else None, self.query_one(BlockMap)
        if pool is None:
            return []
        first = block_map.cursor // block_map.grid.density * block_map.grid.density
        return list(
            dict.fromkeys(name for names in pool.owners[first : first + block_map.grid.density] for name in names)
        )

    # Why -----------------------------------------------------------------------------------------------------

    def _told(self) -> tuple[RequestLog, str] | None:
        """Whose life there is to tell: of the selected row, or of the one that holds the block under the cursor."""
        if self._frame is None or self.is_too_small:
            return None
        name, ended, table = None, False, self.query_one(LineTable)
        if self.focused is table and table.selected is not None:
            name, ended = request_of(table.selected)
        elif isinstance(self.focused, BlockMap) and (owners := self._owners_under_cursor()):
            name = table.selected if table.selected in owners else owners[0]
        log = self._frame.state.logs.find(name, ended=ended) if name is not None else None
        return (log, name) if log is not None and name is not None else None

    def _update_keys(self) -> None:
        if self._can_tell != (self._told() is not None):
            self._can_tell = not self._can_tell
            self.refresh_bindings()

    @on(BlockMap.Moved)
    def _on_moved(self) -> None:
        self._update_keys()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that do not apply are absent from the footer and do nothing."""
        return self._told() is not None if action == "why" else True

    def action_why(self) -> None:
        if self._frame is not None and (told := self._told()) is not None:
            self.app.push_screen(WhyScreen(self._frame.state, *told))

    # Zoom ----------------------------------------------------------------------------------------------------

    def action_zoom(self) -> None:
        body, panel = self.query_one("#body"), panel_of(self.focused) if self.focused else None
        if body.has_class("-zoomed") or panel is None:
            self.action_zoom_out()
            return
        body.add_class("-zoomed", f"-{panel.AREA}")

    def action_zoom_out(self) -> None:
        self.query_one("#body").remove_class("-zoomed", "-map", "-stats", "-table")
