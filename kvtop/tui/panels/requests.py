"""Requests: who runs, who waits, and why?"""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult

from kvtop.engine.events import RequestEvent
from kvtop.state.model import RunState, SequenceState
from kvtop.tui.frame import Frame
from kvtop.tui.panels.base import Panel
from kvtop.tui.text import clean, duration, seconds, short
from kvtop.tui.widgets.line_table import Cell, Column, LineTable
from kvtop.tui.widgets.lines import Line
from kvtop.tui.words import activity

_COLUMNS = [
    Column("request", 10),
    Column("state", 7),
    Column("age", 6, "right"),
    Column("prompt", 6, "right"),
    Column("output", 8, "right"),
    Column("TTFT", 7, "right", 130),
    Column("last ITL", 8, "right", 130),
    Column("preempted", 9, "right", 100),
    Column("cached", 6, "right"),
    Column("computed", 9, "right", 76),
    Column("blocks", 6, "right"),
    Column("doing / why", 0),
]
_STATES = {"running": ("running", "good"), "waiting": ("waiting", "warn"), "preempted": ("preempt", "bad")}
_DONE = "\x00done:"  # ids of finished rows; no live id holds a NUL on the screen


def request_of(row_id: str) -> tuple[str, bool]:
    """Which request or branch a row of the table stands for, and whether it has ended."""
    return row_id.removeprefix(_DONE), row_id.startswith(_DONE)


class RequestsPanel(Panel):
    """Running sequences first, then the queue, then what finished last."""

    TITLE = "Requests"
    QUESTION = "who runs, who waits, why?"
    HELP = """\
A row is a sequence (branches of a request: r7, r7#1, ...): running ones,
then the queue in order of arrival, then what finished last.
age        since the request was due (finished: until it ended)
prompt     its tokens; cached: of them, found in the cache at admission
output     tokens so far / at most
computed   positions computed / tokens known now
blocks     blocks it holds, shared ones included
preempted  how often it lost its blocks
A waiting row says what it needs, what there is, and who is in the way.
w tells the whole life of the selected one: why it waited and for whom,
where its prefix match ended, what a preemption cost it."""

    def compose_body(self) -> ComposeResult:
        yield LineTable(_COLUMNS, id="requests")

    @property
    def table(self) -> LineTable:
        return self.query_one(LineTable)

    def note(self, frame: Frame) -> Line:
        sequences, state = frame.state.sequences, frame.state
        running = sum(1 for seq in sequences.values() if seq.state == "running")
        waiting = len(sequences) - running
        line: Line = [(f"{running:,} running", "good" if running else "soft"), ("  ", "")]
        line += [(f"{waiting:,} waiting", "warn" if waiting else "soft"), ("  ", "")]
        line += [(f"{state.num_finished:,} finished", "soft")]
        if state.num_rejected:
            line += [(f"  {state.num_rejected:,} rejected", "bad")]
        return line

    def show_frame(self, frame: Frame) -> None:
        state = frame.state
        running = [i for i, seq in state.sequences.items() if seq.state == "running"]
        waiting = [i for i, seq in state.sequences.items() if seq.state != "running"]
        done = {f"{_DONE}{event.request_id}": event for event in reversed(state.finished)}
        self.table.empty_text = "no requests yet" if state.status in ("starting", "running") else "no requests"
        self.table.set_rows([*running, *waiting, *done], lambda row: _cells(row, state, done))

    def select(self, name: str) -> None:
        """Select the live row of ``name``, or the one of a finished request."""
        self.table.select(name if name in self.table.ids else f"{_DONE}{name}")

    def selected_request(self) -> tuple[str, bool] | None:
        """Which request or branch is selected, and whether it has ended."""
        return request_of(self.table.selected) if self.table.selected is not None else None

    @on(LineTable.Selected)
    def _on_selected(self, event: LineTable.Selected) -> None:
        event.stop()
        if event.row_id is not None:
            self.kvtop.choose("request", request_of(event.row_id)[0])


def _cells(row: str, state: RunState, done: dict[str, RequestEvent]) -> list[Cell]:
    seq = state.sequences.get(row)
    if seq is not None:
        return _live_cells(seq, state)
    event = done.get(row)
    return _done_cells(event) if event is not None else []


def _live_cells(seq: SequenceState, state: RunState) -> list[Cell]:
    plain = "text" if seq.state == "running" else "soft"
    ttft = None if seq.t_first_token_ns is None else seq.t_first_token_ns - seq.t_sched_ns
    num_held = seq.num_held
    holds = num_held > 0
    return [
        (clean(seq.seq_id), "strong" if seq.state == "running" else "text"),
        _STATES.get(seq.state, (clean(seq.state), "soft")),
        (seconds(state.t_ns - seq.t_sched_ns), plain),
        (_count(seq.num_prompt), plain),
        (f"{_count(seq.num_tokens - seq.num_prompt)}/{_count(seq.max_tokens)}", plain),
        (duration(ttft), plain),
        (duration(seq.last_itl_ns), plain),
        (_count(seq.num_preemptions), "warn" if seq.num_preemptions else "faint"),
        (_count(seq.cached_tokens) if holds else "", plain if seq.cached_tokens else "faint"),
        (f"{_count(seq.num_computed)}/{_count(seq.num_tokens)}" if holds else "", plain),
        (_count(num_held) if holds else "", plain),
        (activity(seq, state), "soft" if seq.state == "running" else "warn"),
    ]


def _done_cells(event: RequestEvent) -> list[Cell]:
    end = event.t_done_ns if event.t_done_ns is not None else event.t_ns
    ttft = None if event.t_first_token_ns is None else event.t_first_token_ns - event.t_sched_ns
    cells = [
        clean(event.request_id),
        "done",
        seconds(end - event.t_sched_ns),
        _count(event.prompt_tokens),
        f"{_count(event.output_tokens)}/{_count(event.requested_output_tokens * event.n)}",
        duration(ttft),
        "",
        _count(event.num_preemptions),
        "" if event.hit_tokens is None else _count(event.hit_tokens),
        "",
        "",
        _ending(event),
    ]
    style = "bad" if event.finish_reason in ("rejected", "failed") else "faint"
    return [(text, style if i in (1, 11) else "faint") for i, text in enumerate(cells)]


def _ending(event: RequestEvent) -> str:
    """How a request ended, in words."""
    match event.finish_reason:
        case "stop":
            return "ended by itself"
        case "length":
            return "reached its token limit"
        case "capacity":
            return "pool too small to go on"
        case "aborted":
            return "aborted"
        case "rejected":
            return f"rejected: {clean(event.error)}" if event.error else "rejected"
        case "failed":
            return f"failed: {clean(event.error)}" if event.error else "failed"
        case other:
            return clean(other or "finished")


def _count(number: int) -> str:
    return str(number) if number < 100_000 else short(number)
