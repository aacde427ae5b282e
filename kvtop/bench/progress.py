"""What is known of a run while it goes on."""

from __future__ import annotations

from dataclasses import dataclass

from kvtop.engine.events import Event, Notice, RequestEvent, RunStarted, StepEvent


@dataclass(slots=True)
class Progress:
    """What a progress line shows of one run."""

    label: str
    step: int = 0
    t_ns: int = 0  # the run's clock
    num_ended: int = 0
    num_requests: int | None = None
    num_running: int = 0
    num_waiting: int = 0
    used_blocks: int = 0
    num_blocks: int | None = None
    notice: str = ""  # what is being done where no step is: loading, writing
    fraction: float | None = None

    def fold(self, event: Event) -> None:
        """Take in one event."""
        if isinstance(event, StepEvent):
            self.step, self.t_ns, self.notice = event.step, event.t_done_ns, ""
            self.num_running, self.num_waiting, self.used_blocks = (
                event.num_running,
                event.num_waiting,
                event.used_blocks,
            )
        elif isinstance(event, RequestEvent):
            self.num_ended += event.phase == "finished"
        elif isinstance(event, RunStarted):
            self.num_requests, self.num_blocks = event.manifest.get("num_requests"), event.manifest.get("num_blocks")
        elif isinstance(event, Notice) and (event.level == "info" or not self.step):
            self.notice, self.fraction = event.text, event.progress
