"""Regrets: what was evicted and then wanted again?"""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult

from kvtop.state.cache_log import RegrettedPrefix, top_regrets
from kvtop.tui.attached import no_regrets
from kvtop.tui.frame import Frame
from kvtop.tui.panels.base import Panel
from kvtop.tui.panels.block import short_key
from kvtop.tui.text import clean, percent, plural, short, whole
from kvtop.tui.widgets.line_table import Cell, Column, LineTable
from kvtop.tui.widgets.lines import Line

MOST = 200
_COLUMNS = [
    Column("tokens", 7, "right"),
    Column("times", 5, "right"),
    Column("prefix", 8),
    Column("wanted by", 10),
    Column("at step", 8, "right", 70),
    Column("evicted for", 0),
]


class RegretsPanel(Panel):
    """Evicted prefixes by the tokens that had to be computed again because of it."""

    TITLE = "Regrets"
    QUESTION = "evicted, then wanted again?"
    HELP = """\
A block is regretted when it had been published, was evicted, and had to be
computed again by a request that would otherwise have found it.
tokens       computed again, by all requests that wanted this prefix
times        how often that was
prefix       key of the first block that was missing
wanted by    who computed it last, at which step
evicted for  whose need for room had driven that block out, and when
The title says how many tokens the whole run has computed again, and what
part that is of all it computed. Evicted keys are remembered for the last
65,536 at least; what came back from host memory is no regret. A larger
pool, or an eviction policy that keeps what is found often, lowers this.
Enter leads to the request that wanted it last."""
    NUMBERS = ()

    def compose_body(self) -> ComposeResult:
        yield LineTable(_COLUMNS, opens="request")

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[str, RegrettedPrefix] = {}
        self._made: tuple[object, ...] = ()
        self._is_attached = False

    def note(self, frame: Frame) -> Line:
        total = frame.state.cache.regret_tokens
        if not total:
            return []
        computed = frame.state.totals.get("computed_tokens", 0) + frame.state.totals.get("recomputed_tokens", 0)
        share: Line = [(f", {percent(total, computed)} of all", "soft")] if self.size.width >= 70 else []
        return [(f"{short(total)} tokens", "warn"), *share]

    def show_frame(self, frame: Frame) -> None:
        cache, table = frame.state.cache, self.query_one(LineTable)
        made = (id(cache), cache.regrets[-1] if cache.regrets else None)
        if made != self._made:
            self._made = made
            self._rows = {str(found.key): found for found in top_regrets(cache.regrets)[:MOST]}
            self._is_attached = frame.state.attached is not None
        table.empty_text = no_regrets(frame.state)
        table.set_rows(list(self._rows), lambda row: _cells(self._rows[row], self._is_attached))

    @on(LineTable.Selected)
    def _on_selected(self, event: LineTable.Selected) -> None:
        event.stop()

    @on(LineTable.Opened)
    def _on_opened(self, event: LineTable.Opened) -> None:
        event.stop()
        if event.row_id in self._rows and not self._is_attached:
            self.kvtop.select("request", self._rows[event.row_id].last_wanted_by)


def _cells(found: RegrettedPrefix, is_attached: bool) -> list[Cell]:
    """Attached servers do not tell who wanted it, nor who drove it out."""
    step, unit = found.evicted_step, "look" if is_attached else "step"
    before = "before kvtop listened" if step is None else f"{plural(found.last_step - step, unit)} before"
    return [
        (short(found.tokens), "warn"),
        (whole(found.times), "text"),
        (short_key(found.key), "text"),
        ("n/a", "faint") if is_attached else (clean(found.last_wanted_by), "text"),
        (whole(found.last_step), "soft"),
        (f"{'n/a' if is_attached else clean(found.evicted_by)}, {before}", "soft"),
    ]
