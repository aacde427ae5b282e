"""Lookup: why did a request miss?"""

from __future__ import annotations

from textual.binding import Binding

from kvtop.engine.errors import UsageError
from kvtop.state.attached_reading import no_events
from kvtop.state.cache_log import LookupRow, sharing_cause
from kvtop.state.numbers import MISS_WORDS
from kvtop.tui.block_view import BlockView
from kvtop.tui.frame import Frame
from kvtop.tui.panels.base import TextPanel
from kvtop.tui.panels.block import short_key
from kvtop.tui.panels.prompt import prompt_lines
from kvtop.tui.screens.ask import AskScreen
from kvtop.tui.text import clean, fit, join_fitting, percent, plural, short, whole
from kvtop.tui.widgets.lines import Line, width_of
from kvtop.values_in_text import wrap
from kvtop.why.words import match_end

_HINTS = {
    "evicted": "a larger pool, or an eviction policy that keeps it, would have had it",
    "never_seen": "what is new in a prompt should stand behind what stays the same",
    "not_yet_computed": "it came while the same prefix was being computed: later it would have found it",
    "other_salt": "the same tokens are cached under another salt or adapter, and are not shared",
}


class LookupPanel(TextPanel):
    """Where the match of one request ended, and why; of nobody in particular: all causes."""

    TITLE = "Lookup"
    QUESTION = "why did it miss?"
    PER_REQUEST = True
    HELP = """\
The prefix lookup of the request chosen last, here or on any other screen:
what it asked for, what was found, why the match ended there, and how many
others ended at the same place. i asks for another id. Without a request:
what all lookups that are kept (the last 16,384) ended with.
I takes a prompt that you paste, text or token ids: how much of it is cached
now, where it diverges, which of its blocks were evicted and when. Servers
need KV events for it; one without salt, adapter or images is looked up.
evicted          the next block had been there and was driven out
never seen       nobody has computed this continuation
being computed   somebody was computing that very block
other salt       the same tokens are cached under another extra key
logprobs asked   of the prompt: all of its prompt is computed
cache off        nothing is looked up
last block       everything that may be found was: whole blocks, and the
                 last token of a prompt is always computed"""

    def __init__(self, view: BlockView) -> None:
        super().__init__()
        self._view = view

    def note(self, frame: Frame) -> Line:
        return [(plural(len(frame.state.cache.lookups), "lookup"), "soft")]

    def attached_lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        if frame.prompt is not None:
            return prompt_lines(frame, frame.prompt, self._view.tree, width)
        lines = [*super().attached_lines(frame, width, height), [("I: look up a pasted prompt", "soft")]]
        if why := no_events(frame.state):
            lines += [[(part, "soft")] for part in _wrapped(f"it needs KV events: {why}", width)]
        return lines

    def lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        if frame.prompt is not None:
            return prompt_lines(frame, frame.prompt, self._view.tree, width)
        name = str(frame.selected.get("request", ""))
        row = frame.state.cache.lookup_of(name.partition("#")[0]) if name else None
        if row is not None:
            return _of_request(frame, row, width)
        lines = _by_cause(frame, width)
        if name:
            lines.insert(0, [(f"{clean(name)} has not been looked up yet", "soft")])
        return lines


def ask_lookup(frame: Frame) -> AskScreen:
    """Asks for the id of a request that has been looked up."""
    lookups = frame.state.cache

    def check(name: str) -> None:
        if lookups.lookup_of(name) is None:
            raise UsageError(f"no lookup of a request {name!r} is kept")

    return AskScreen("Why did this request miss?", "the id of a request. Enter takes it, Esc leaves it", check=check)


BINDINGS = [
    Binding("i", "lookup", "lookup", tooltip="why a request missed: type its id"),
    Binding("I", "prompt", "prompt", tooltip="why a prompt would miss: paste it"),
]


def _of_request(frame: Frame, row: LookupRow, width: int) -> list[Line]:
    state = frame.state
    size = state.pool.block_size if state.pool else None
    cause, prompt, found = MISS_WORDS.get(row.reason, clean(row.reason)), row.prompt_tokens, row.found_tokens
    lines: list[Line] = [
        [
            (clean(row.seq_id), "strong"), ("  ", ""), (cause, "good" if row.reason == "last_token" else "warn"),
            (f"  at step {row.step:,}", "soft"),
        ],
        [
            ("asked ", "soft"), (whole(prompt), "text"), ("  found ", "soft"), (whole(found), "text"),
            (f" ({percent(found, prompt)})", "soft"), ("  computed ", "soft"), (whole(prompt - found), "text"),
        ],
    ]  # fmt: skip
    if width_of(lines[0]) + width_of(lines[1]) + 3 <= width:
        lines = [[*lines[0], ("   ", ""), *lines[1]]]
    told = match_end(row.reason, found, prompt, row.other or None, row.age_steps, size).removeprefix("prefix: ")
    lines += [[(part, "text")] for part in _wrapped(clean(told.partition(" in the cache: ")[2] or told), width)]
    if row.reason not in ("last_token", "cache_off", "prompt_logprobs"):
        at_start = row.parent_key is None and row.reason == "never_seen"
        lines.append(_others(sharing_cause(state.cache.lookups, row), at_start, width))
    where: Line = []
    if row.parent_key is not None:
        where += [("behind ", "soft"), (short_key(row.parent_key), "text")]
    if row.key is not None:
        where += [("  missed block " if where else "missed block ", "soft"), (short_key(row.key), "text")]
    if row.age_steps is not None:
        where += [("  evicted at step ", "soft"), (whole(row.step - row.age_steps), "text")]
    lines += [where] if where else []
    regretted = sum(regret.tokens for regret in state.cache.regrets if regret.seq_id == row.seq_id)
    if regretted:
        lines.append([("computed again because of evictions ", "soft"), (f"{whole(regretted)} tokens", "warn")])
    if row.reason in _HINTS:
        lines += [[(part, "soft")] for part in _wrapped(_HINTS[row.reason], width)]
    return lines


def _others(others: list[LookupRow], at_start: bool, width: int) -> Line:
    """Who else; ``at_start``: nothing at all was found, which is no place they have in common."""
    if not others:
        return [("no other match ended there", "soft")]
    tokens = sum(other.prompt_tokens - other.found_tokens for other in others)
    what = "missed from the first block on, too" if at_start else "ended there, too"
    head = f"{plural(len(others), 'other')} {what} ({short(tokens)} tokens): "
    names = list(dict.fromkeys(clean(other.seq_id) for other in reversed(others)))
    return [(head, "text"), (join_fitting(names, max(8, width - len(head))), "soft")]


def _wrapped(text: str, width: int) -> list[str]:
    return wrap(text, max(20, width)) or [""]


def _by_cause(frame: Frame, width: int) -> list[Line]:
    """How many lookups each cause ended, and the tokens that were not found."""
    counts: dict[str, list[int]] = {}
    for row in frame.state.cache.lookups:
        count = counts.setdefault(row.reason, [0, 0])
        count[0] += 1
        count[1] += row.prompt_tokens - row.found_tokens
    if not counts:
        return [[("no prefix has been looked up yet", "soft")]]
    total = sum(missed for _, missed in counts.values())
    lines: list[Line] = [[(f"{'matches ended with':<18}{'lookups':>8}{'not found':>11}", "faint")]]
    room = max(0, width - 48)
    for reason, (number, missed) in sorted(counts.items(), key=lambda item: (-item[1][1], item[0])):
        bar = "▪" * (round(room * missed / total) if total else 0)
        lines.append([
            (fit(MISS_WORDS.get(reason, clean(reason)), 18), "text"), (f"{number:>8,}{short(missed):>11}", "text"),
            (f" {percent(missed, total):>8} ", "soft"), (bar, "warn" if reason == "evicted" else "used"),
        ])  # fmt: skip
    return [*lines, [("i: why one request missed, I: look up a pasted prompt", "soft")]]
