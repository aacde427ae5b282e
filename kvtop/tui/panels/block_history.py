"""History: what happened to the block under the cursor?"""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult

from kvtop.state.block_history import BlockEvent, BlockHistory
from kvtop.tui.attached import no_blocks
from kvtop.tui.block_view import BlockView
from kvtop.tui.frame import Frame
from kvtop.tui.panels.base import Panel
from kvtop.tui.text import clean, whole
from kvtop.tui.widgets.line_table import Cell, Column, LineTable
from kvtop.tui.widgets.lines import Line, width_of

LOOK_S = 0.1  # between two looks further back
_COLUMNS = [Column("step", 7, "right"), Column("what", 0)]
_TOLD = {"publish": "stored", "evict": "removed", "unpublish": "forgotten: the cache was cleared, or began anew"}
_STYLES = {"evict": "warn", "unpublish": "warn", "publish": "idle", "alloc": "used", "share": "shared"}


class BlockHistoryPanel(Panel):
    """Every decision about one block that the ring still holds, newest first; Enter goes to that step."""

    TITLE = "History"
    QUESTION = "what happened?"
    HELP = """\
Decisions about the block under the cursor, newest first: taken, found,
shared, published, copied, released, evicted, with the step and for whom.
Of an eviction: steps it was idle, and how often it was found. All are
looked up in what the TUI keeps of the run (the last 15 minutes; all of a
recording), a part at a time; the title says from which step on. What is
after the cursor in time is left out. Enter takes every screen to that
step. f follows the block: , and . then go from one of its decisions to
the next, until f is pressed again."""

    def __init__(self, view: BlockView) -> None:
        super().__init__()
        self.view = view
        self.history: BlockHistory | None = None
        self.follows = False
        self._shown: list[BlockEvent] = []
        self._made: tuple[object, ...] = ()
        self._looks_further = False

    def compose_body(self) -> ComposeResult:
        yield LineTable(_COLUMNS, opens="step")

    @property
    def table(self) -> LineTable:
        return self.query_one(LineTable)

    def note(self, frame: Frame) -> Line:
        what: Line = [("follows  ", "good")] if self.follows else []
        history = self.history
        if history is None:
            return what
        if history.is_whole and not history.first_step:
            return what
        since = f" {history.first_step:,}{'' if history.is_whole else '...'}"
        room = self.size.width - len(self.TITLE) - len(self.QUESTION) - 11 - width_of(what)  # beside the question
        return [*what, (f"from step{since}" if len(since) + 9 <= room else f"from{since}", "soft")]

    def show_frame(self, frame: Frame) -> None:
        if self.history is None or self.history.ring is not frame.timeline.ring:
            self.history = BlockHistory(frame.timeline.ring)
        moved = self.history.block != self.view.cursor
        self.history.look_at(self.view.cursor)
        self.history.update(further=not moved)  # while the cursor moves on, only the newest part is looked at
        entries = self.history.entries(frame.state.step)
        is_attached = frame.state.attached is not None
        if is_attached:  # servers tell what is stored and removed, not who takes and releases
            entries = [entry for entry in entries if entry.kind in _TOLD]
        no_pool = is_attached and frame.state.pool is None
        self.table.empty_text = no_blocks(frame.state) if no_pool else "nothing so far"
        made = (
            self.view.cursor,
            self.table.empty_text,
            len(entries),
            frame.state.step if not frame.timeline.at_live else None,
        )
        if made != self._made:
            self._made = made
            self._shown = entries
            rows = {str(number): entry for number, entry in reversed(list(enumerate(entries)))}
            self.table.set_rows(list(rows), lambda row: cells(rows[row], is_attached))
        self._show_title()
        if not self.history.is_whole and not self._looks_further:
            self._looks_further = True
            self.set_timer(LOOK_S, self._look_further)

    def _look_further(self) -> None:
        """A part of the past at a time, so that keys are not kept waiting."""
        self._looks_further = False
        if self.screen.is_current:
            self.redraw()

    def look(self) -> None:
        """Look one part further back."""
        if self.history is not None:
            self.history.update()

    def steps(self) -> list[int]:
        """Of the block's decisions, those after the cursor in time too, in order."""
        if self.history is None or self.frame is None:
            return []
        return sorted({entry.step for entry in self.history.entries(self.frame.timeline.live.step)})

    @on(LineTable.Opened)
    def _on_opened(self, event: LineTable.Opened) -> None:
        event.stop()
        number = int(event.row_id)
        if number < len(self._shown):
            self.kvtop.select("step", self._shown[number].step)

    @on(LineTable.Selected)
    def _on_selected(self, event: LineTable.Selected) -> None:
        event.stop()


def cells(entry: BlockEvent, is_attached: bool) -> list[Cell]:
    words = _TOLD[entry.kind] if is_attached else in_words(entry)
    return [(whole(entry.step), "soft"), (words, _STYLES.get(entry.kind, "text"))]


def in_words(entry: BlockEvent) -> str:
    """One decision about a block."""
    who = clean(entry.who)
    match entry.kind:
        case "alloc":
            return f"taken by {who} at token {entry.field('num_tokens'):,}"
        case "share":
            how = {"hit": f"found by {who}", "dedup": f"{who} has the same: switched to it"}
            return how.get(str(entry.field("reason")), f"shared with branch {who}")
        case "copy":
            if entry.as_source:
                return f"copied to block {entry.field('block'):,} for {who}, who left it"
            return f"copy of block {entry.field('other'):,} for {who}"
        case "free":
            how = {"dedup": f"given up by {who}: another has the same", "window": f"out of the window of {who}"}
            return how.get(str(entry.field("reason")), f"released by {who}")
        case "publish":
            return f"published by {who}"
        case "unpublish":
            return "unpublished by a reset"
        case "evict":
            uses = entry.field("uses")
            hits = f", hits {uses:,}" if uses else ""
            why = "to make the pool smaller" if who == "limit" else f"for {who}"
            return f"evicted {why}, idle {entry.field('idle_steps'):,}{hits}"
        case "swap_out":
            return f"copied to host block {entry.field('other'):,} for {who}"
        case "swap_in" | "host_load":
            return f"filled from host block {entry.field('other'):,} for {who}"
        case "host_store":
            kept = "kept" if entry.field("reason") == "copied" else "was there already"
            return f"in host block {entry.field('other'):,} {kept}"
    words = {"pin": "pinned", "unpin": "unpinned", "withhold": "withheld", "give_back": "given back to the pool"}
    return words.get(entry.kind, entry.kind)
