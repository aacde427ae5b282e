"""Block map: every block, and who holds it."""

from __future__ import annotations

from kvtop.tui.panels.blocks import BlocksPanel
from kvtop.tui.screens.base import PanelScreen


class BlocksScreen(PanelScreen):
    """The map of the pool."""

    PANELS = (BlocksPanel,)
    AUTO_FOCUS = "BlockMap"

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
