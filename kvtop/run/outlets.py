"""Where the child's events go: the pipe to the parent (never in the engine's way) and the recording (never drops)."""

from __future__ import annotations

import msgspec

from kvtop.engine.events import Event, Gap, Keyframe, RequestEvent, StepEvent, encode
from kvtop.results.recording import FrameWriter
from kvtop.run.pipes import MessageWriter

MAX_PENDING_BYTES = 8 << 20  # beyond it steps are dropped
MAX_REQUEST_BYTES = 4 * MAX_PENDING_BYTES  # beyond it request events are dropped as well
KEYFRAME_STEPS = 4096  # in a recording, so that a reader can seek


class PipeOutlet:
    """Events to the parent. ``lossless`` (virtual time) waits for a slow reader; otherwise whole batches are dropped.

    What is dropped is counted, and followed by a ``Gap`` and a keyframe once the reader has caught up. Arrivals, ends,
    pauses and notices are small and rare, and outlive a gap.

    ``brief``: the reader shows how far the run is and nothing else. Of the steps of a batch it gets the last one,
    without decisions, and no keyframe; encoding, sending and decoding all of them was a tenth of a simulated run.
    """

    def __init__(
        self,
        writer: MessageWriter,
        *,
        lossless: bool,
        brief: bool = False,
        max_pending_bytes: int = MAX_PENDING_BYTES,
    ) -> None:
        self.writer = writer
        self.lossless, self.brief = lossless, brief
        self.num_dropped = 0  # events, in all
        self._gap = 0  # events since the last gap mark
        self._limit = max_pending_bytes

    def send(self, events: list[Event]) -> None:
        if self.brief and not (events := _in_brief(events)):
            return
        if self.lossless:
            self._send(events)
            while not self.writer.flush(timeout_s=1.0):
                pass  # the parent reads on, or its end of the pipe closes
            return
        self.writer.flush()
        if self._gap or self.writer.pending_bytes > self._limit:
            events = self._thin_out(events)
        if events:
            self._send(events)

    @property
    def behind(self) -> bool:
        """Something was dropped, and the reader does not know yet."""
        return self._gap > 0

    def tick(self, step: int) -> bool:
        self.writer.flush()
        return self.behind and self.writer.pending_bytes <= self._limit // 4

    def resync(self, keyframe: Keyframe) -> None:
        gap, self._gap = self._gap, 0
        self._send([Gap(t_ns=keyframe.t_ns, dropped=gap), keyframe] if gap else [keyframe])

    def flush(self) -> bool:
        return self.writer.flush()

    def finish(self, events: list[Event], timeout_s: float) -> None:
        """The last events: they are worth a wait."""
        self._send(events)
        self.writer.flush(timeout_s)

    def _send(self, events: list[Event]) -> None:
        self.writer.send(encode(events))

    def _thin_out(self, events: list[Event]) -> list[Event]:
        droppable: tuple[type[Event], ...] = (StepEvent, Keyframe)
        if self.writer.pending_bytes > MAX_REQUEST_BYTES:
            droppable += (RequestEvent,)
        kept = [event for event in events if not isinstance(event, droppable)]
        self._gap += len(events) - len(kept)
        self.num_dropped += len(events) - len(kept)
        return kept


def _in_brief(events: list[Event]) -> list[Event]:
    """Without keyframes, and of the steps the last one, without what it did to whom."""
    last = next((event for event in reversed(events) if isinstance(event, StepEvent)), None)
    brief: list[Event] = []
    for event in events:
        if event is last:
            brief.append(msgspec.structs.replace(event, decisions=[], emitted=[]))
        elif not isinstance(event, (StepEvent, Keyframe)):
            brief.append(event)
    return brief


class FileOutlet:
    """Events to the recording, with a keyframe of its own every ``KEYFRAME_STEPS``.

    Raises (all methods):
        FileError: the disk refuses; the run ends, and what is in the file stays readable.
    """

    def __init__(self, writer: FrameWriter) -> None:
        self.writer = writer
        self._keyframe_step = 0

    def send(self, events: list[Event]) -> None:
        self.writer.write(events)

    def tick(self, step: int) -> bool:
        self.writer.tick()
        return step - self._keyframe_step >= KEYFRAME_STEPS

    def resync(self, keyframe: Keyframe) -> None:
        self._keyframe_step = keyframe.step
        self.writer.write([keyframe])

    def flush(self) -> bool:
        self.writer.flush()
        return True
