"""Compare: runs of one workload side by side, at the same moment."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding

from kvtop.tui.frame import Frame
from kvtop.tui.panels.parting import PartingPanel
from kvtop.tui.panels.tracks import TracksPanel
from kvtop.tui.panels.versus import NAMES, ComparePanel, VersusPanel
from kvtop.tui.screens.base import PanelScreen

_PACE = Binding.Group("pace", compact=True)


class CompareScreen(PanelScreen):
    """What each measures and what that means; when they differ; where they part."""

    PANELS = (VersusPanel, TracksPanel, PartingPanel)
    AUTO_FOCUS = "VersusPanel"
    BINDINGS: ClassVar[list] = [
        Binding("v", "against", "other run", tooltip="set the next run against the first"),
        Binding("b", "look", "shown elsewhere", tooltip="which run all other screens show"),
        Binding("plus,equals_sign", "lane_pace(1)", "pace", key_display="+", group=_PACE, tooltip="time faster"),
        Binding("minus", "lane_pace(-1)", "pace", key_display="-", group=_PACE, tooltip="time slower"),
        Binding("p", "hold", "hold", tooltip="hold all runs where they are, or let them go on"),
        Binding("enter", "part", "first divergence", show=False, tooltip="to the step where the runs part"),
    ]
    CSS = """
    CompareScreen VersusPanel { height: 1fr; }
    CompareScreen TracksPanel { height: 13; }
    CompareScreen.-full TracksPanel { height: 25; }
    CompareScreen PartingPanel { height: 4; }
    CompareScreen.-short TracksPanel { height: 3; }
    CompareScreen .-alone TracksPanel, CompareScreen .-alone PartingPanel { display: none; }
    """

    def show_frame(self, frame: Frame) -> None:
        lanes = self.kvtop.lanes
        self.query_one("#body").set_class(lanes is None, "-alone")
        if lanes is not None:
            lanes.follow(frame.timeline)
        super().show_frame(frame)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        lanes = self.kvtop.lanes
        match action:
            case "against":
                return lanes is not None and len(lanes.lanes) > 2
            case "look":
                return lanes is not None
            case "lane_pace" | "hold":
                return lanes is not None and not self.kvtop.is_replay
            case "part":
                return isinstance(self.focused_panel, ComparePanel) and lanes is not None
        return super().check_action(action, parameters)

    def action_against(self) -> None:
        lanes, panel = self.kvtop.lanes, self.query_one(VersusPanel)
        if lanes is None:
            return
        other = panel.other % (len(lanes.lanes) - 1) + 1
        panel.set_against(other)
        for each in self.query(ComparePanel):
            each.other = other
            each.redraw()

    def action_look(self) -> None:
        from kvtop.tui.compare_app import CompareApp

        app = self.app
        if isinstance(app, CompareApp):
            app.look_at((app.looked_at + 1) % len(app.lanes.lanes))
            lane = app.lanes.lanes[app.looked_at]
            self.notify(f"all other screens show {NAMES[app.looked_at]} {lane.label}", timeout=2, markup=False)
            app.show_now()

    def action_lane_pace(self, direction: int) -> None:
        if (lanes := self.kvtop.lanes) is not None:
            lanes.change_pace(direction)
            self.query_one(VersusPanel).redraw()

    def action_hold(self) -> None:
        if (lanes := self.kvtop.lanes) is not None:
            lanes.is_held = not lanes.is_held
            self.query_one(VersusPanel).redraw()

    def action_part(self) -> None:
        """To the first divergence of the two runs compared."""
        lanes = self.kvtop.lanes
        found = lanes.partings[self.query_one(VersusPanel).other - 1].found if lanes is not None else None
        if lanes is None or found is None:
            self.notify("they have not parted so far", timeout=2)
            return
        self.kvtop.select("step", found.step)
        lanes.seek(found.step, self.timeline)
        self.kvtop.show_now()
