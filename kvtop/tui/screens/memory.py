"""Memory calculator: what fits, before anything is started."""

from __future__ import annotations

from textual import on

from kvtop.tui.panels.calculator import AnswerPanel, EnginePanel, FitPanel, InputsPanel
from kvtop.tui.screens.base import PanelScreen


class MemoryScreen(PanelScreen):
    """Inputs, result, fit table, and the engine's own numbers."""

    PANELS = (InputsPanel, AnswerPanel, FitPanel, EnginePanel)
    AUTO_FOCUS = "InputsPanel LineTable"
    CSS = """
    MemoryScreen #body { layout: grid; grid-size: 2; grid-columns: 2fr 3fr; grid-gutter: 0 1; }
    MemoryScreen FitPanel { column-span: 2; }
    MemoryScreen EnginePanel { column-span: 2; }
    MemoryScreen #body { grid-rows: 11 1fr 3; }
    MemoryScreen.-tall #body, MemoryScreen.-full #body { grid-rows: 11 11 1fr; }
    MemoryScreen.-narrow #body { grid-columns: 35 1fr; }
    MemoryScreen.-narrow.-short #body { grid-rows: 9 1fr 3; }
    MemoryScreen.-low FitPanel { display: none; }
    MemoryScreen.-low #body, MemoryScreen.-narrow.-low #body { grid-rows: 1fr 3; }
    MemoryScreen #body.-zoomed { layout: vertical; }
    """

    @on(InputsPanel.Changed)
    def _on_changed(self) -> None:
        for panel in self.panels:
            panel.redraw()
