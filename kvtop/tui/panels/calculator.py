"""The memory calculator's panels: what goes in, what comes out, what fits, and whether the engine agrees."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.message import Message

from kvtop.cli.text import format_bytes
from kvtop.engine.errors import KvtopError
from kvtop.memory_plan import BATCHES, FIELDS, LENGTHS, Answer, Plan, answer, check, fits, plan_of, turned, typed
from kvtop.tui import glyphs
from kvtop.tui.frame import Frame
from kvtop.tui.panels.base import Panel, TextPanel
from kvtop.tui.screens.ask import AskScreen
from kvtop.tui.text import clean, percent, plural, whole
from kvtop.tui.widgets.line_table import Cell, Column, LineTable
from kvtop.tui.widgets.lines import Line, width_of
from kvtop.values_in_text import wrap

_NAMES = {
    "model": "model", "dtype": "KV dtype", "block_size": "block size", "seq_len": "tokens a request", "gpu": "GPU",
    "utilisation": "utilisation", "tp": "tensor parallel", "hit": "shared prefix",
}  # fmt: skip
_ROOMY_FIT = 7 + 6 * len(BATCHES) + len("  requests")  # cells that the fit table takes where nothing is closed up
_FIT = {"yes": (glyphs.USED, "used"), "shared": (glyphs.IDLE, "idle"), "no": (glyphs.FRESH, "fresh")}


class InputsPanel(Panel):
    """The inputs: left and right turn a value, Enter types one."""

    TITLE = "Inputs"
    QUESTION = "what is planned?"
    HELP = """\
left, right   turn the selected input to its next choice
Enter         type a value: a number, a preset, or a model directory
l             take model, dtype and block size of the engine that runs
shared prefix is the share of each sequence that all others have too: the
fit table shows what fits only thanks to it. Nothing here needs an engine;
kvtop calc answers the same on the command line."""
    BINDINGS = [
        Binding("left,h", "turn(-1)", "change", key_display="← →", tooltip="the choice before (right: after)"),
        Binding("right", "turn(1)", show=False, tooltip="the next choice"),
        Binding("enter", "type", "type", key_display="enter", tooltip="type a value"),
        Binding("l", "load", "from engine", tooltip="model, dtype and block size of the engine that runs"),
    ]

    class Changed(Message):
        """Another plan."""

    def __init__(self) -> None:
        super().__init__()
        self.plan = Plan()
        self.answer: Answer | None = None
        self.error = ""
        self._work_out()

    def compose_body(self) -> ComposeResult:
        yield LineTable([Column("", 16), Column("", 0)], header=False)

    def attached_note(self, frame: Frame) -> Line:
        return self.note(frame)  # nothing in it is a server's: no answer makes it stale

    def show_frame(self, frame: Frame) -> None:
        self.query_one(LineTable).set_rows(list(FIELDS), self._cells)

    def _cells(self, field: str) -> list[Cell]:
        value = getattr(self.plan, field)
        if field in ("utilisation", "hit"):
            value = percent(value, 1)
        return [(_NAMES[field], "soft"), (f"{value:,}" if isinstance(value, int) else clean(value), "text")]

    @property
    def _field(self) -> str:
        return self.query_one(LineTable).selected or "model"

    def action_turn(self, by: int) -> None:
        self._take(turned(self.plan, self._field, by))

    def action_type(self) -> None:
        field = self._field
        choices = ", ".join(str(choice) for choice in FIELDS[field])

        def take(text: str | None) -> None:
            if text is not None:
                self._take(typed(self.plan, field, text))

        value, title = str(getattr(self.plan, field)), _NAMES[field]
        self.app.push_screen(AskScreen(title, choices, value, lambda text: typed(self.plan, field, text)), take)

    def action_load(self) -> None:
        try:
            self._take(plan_of(self.kvtop.state.manifest, self.plan))
        except KvtopError as error:
            self.notify(clean(str(error)), timeout=4, markup=False)

    def _take(self, plan: Plan) -> None:
        self.plan = plan
        self._work_out()
        self.post_message(self.Changed())

    def _work_out(self) -> None:
        try:
            self.answer, self.error = answer(self.plan), ""
        except KvtopError as error:
            self.answer, self.error = None, str(error)


class _AnswerPanel(TextPanel):
    """A panel that shows what the inputs come to."""

    @property
    def inputs(self) -> InputsPanel:
        return self.screen.query_one(InputsPanel)

    def attached_note(self, frame: Frame) -> Line:
        return self.note(frame)

    def lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        found = self.inputs.answer
        if found is None:
            return [[(part, "bad")] for part in wrap(clean(self.inputs.error), max(1, width))][:height]
        return self.lines_of(self.inputs.plan, found, width, height)[:height]

    def lines_of(self, plan: Plan, found: Answer, width: int, height: int) -> list[Line]:
        raise NotImplementedError


class AnswerPanel(_AnswerPanel):
    """Bytes a token and a block, the budget, blocks, requests."""

    TITLE = "Result"
    QUESTION = "how much fits?"
    HELP = """\
bytes a token  2 x layers x KV heads x head size x bytes of the dtype, and
               the scales of an int8 or fp8 cache; all exact integers
budget         utilisation x memory of the GPU - weights. Activations come
               out of what utilisation leaves
blocks         budget / bytes of a block, rounded down
requests       of the length given: each needs whole blocks
contiguous     the same budget when each request reserves the model's
               longest length, as without paging
With tensor parallelism all figures are those of one GPU."""

    def lines_of(self, plan: Plan, found: Answer, width: int, height: int) -> list[Line]:
        share, room = found.share, found.room
        formula = f"2·{share.num_layers}·{share.num_kv_heads}·{share.head_dim} {plan.dtype}"
        rows: list[tuple[str, str, str, str]] = [
            ("a token", f"{whole(share.bytes_per_token)} B", formula, "text"),
            ("a block", format_bytes(room.bytes_per_block), plural(plan.block_size, "token"), "text"),
            ("weights", format_bytes(found.weight_bytes), f"of {format_bytes(room.gpu_memory_bytes)}", "text"),
            (
                "KV budget",
                format_bytes(max(0, room.kv_budget_bytes)),
                "",
                "bad" if room.kv_budget_bytes < 0 else "text",
            ),
            ("blocks", whole(room.num_blocks), f"{room.num_tokens:,} tokens", "strong"),
            ("requests", whole(room.max_requests_paged), f"of {plan.seq_len:,} tokens", "strong"),
        ]
        if room.max_requests_contiguous is not None:
            reserving = f"reserving {room.max_model_len:,} each"
            rows.append(("contiguous", whole(room.max_requests_contiguous), reserving, "soft"))
        if share.scale_bytes_per_token:
            rows.append(("scales", f"{share.scale_bytes_per_token:,} B", "of each token", "soft"))
        waste = plan.block_size / 2 / plan.seq_len
        rows.append(("tail waste", percent(waste, 1), "half a block each", "soft"))
        return _aligned(rows, width)


def _aligned(rows: list[tuple[str, str, str, str]], width: int) -> list[Line]:
    """Name, value and remark in columns. A remark that does not fit is left out: half of it would be another number."""
    room = max(len(value) for _, value, _, _ in rows)
    out: list[Line] = []
    for name, value, remark, style in rows:
        line: Line = [(f"{name:<11}", "soft"), (f"{value:>{room}}", style)]
        if remark and width_of(line) + 2 + len(remark) <= width:
            line.append((f"  {remark}", "soft"))
        out.append(line)
    return out


class FitPanel(_AnswerPanel):
    """Concurrency against length."""

    TITLE = "Fit"
    QUESTION = "how many, how long?"
    HELP = f"""\
{glyphs.USED} fits   {glyphs.IDLE} fits only when the shared prefix is stored once   {glyphs.FRESH} does not fit
Rows are tokens a request, columns requests at once."""

    def note(self, frame: Frame) -> Line:
        return [(f"{glyphs.USED} fits  {glyphs.IDLE} with a shared prefix  {glyphs.FRESH} does not", "soft")]

    def lines_of(self, plan: Plan, found: Answer, width: int, height: int) -> list[Line]:
        label, cell, word = (7, 6, "  requests") if width >= _ROOMY_FIT else (6, 5, " requests")
        batches = BATCHES[: max(1, (width - label) // cell)]
        head: Line = [(f"{'tokens':<{label}}", "faint"), *((f"{batch:>{cell}}", "faint") for batch in batches)]
        if width_of(head) + len(word) <= width:
            head.append((word, "faint"))
        rows: list[Line] = [head]
        for length in LENGTHS[: max(1, height - 1)]:
            cells: Line = [(f"{length // 1024:>{label - 2}}k ", "soft")]
            for batch in batches:
                glyph, style = _FIT[fits(plan, found, length, batch)]
                cells.append((f"{glyph:>{cell}}", style))
            rows.append(cells)
        return rows


class EnginePanel(TextPanel):
    """The running engine's own numbers against the calculator's."""

    TITLE = "Engine"
    QUESTION = "does it agree?"
    HELP = """\
Bytes of a block as the engine that runs has allocated it, and as the
calculator says for its model, dtype and block size. A difference is a
fault of one of them."""

    def attached_lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        return [[("not reported: servers do not tell the bytes of a block", "soft")]]

    def lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        found = check(frame.state.manifest)
        if found.engine_bytes is None:
            return [[(part, "soft")] for part in wrap(clean(found.why_not), width)][:height]
        total = f"{whole(found.num_blocks or 0)} blocks, {format_bytes(found.engine_bytes * (found.num_blocks or 0))}"
        out: list[Line] = [[("the engine  ", "soft"), (f"{whole(found.engine_bytes)} B a block  {total}", "text")]]
        if found.calculated_bytes is None:
            return [*out, *([(part, "soft")] for part in wrap(clean(found.why_not), width))][:height]
        verdict = ("agrees", "good") if found.agrees else ("differs", "bad")
        return [*out, [("calculator  ", "soft"), (f"{whole(found.calculated_bytes)} B a block  ", "text"), verdict]]
