"""A pasted prompt: what of it is cached, where that ends, what of it was evicted and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kvtop.engine.errors import UsageError
from kvtop.engine.events import FindPrompt, PromptKeys
from kvtop.engine.keys import prompt_keys
from kvtop.state.model import RunState
from kvtop.state.prefix_tree import PrefixTree
from kvtop.state.prompt_lookup import CACHED, CUT_OFF, EVICTED, UNKNOWN, Fate, PromptLookup, look_up_prompt
from kvtop.tui.frame import Frame, has_ended
from kvtop.tui.text import clean, percent, plural, whole
from kvtop.tui.widgets.lines import Line
from kvtop.values_in_text import wrap

if TYPE_CHECKING:
    from kvtop.tui.app import KvtopApp

TITLE = "Would this prompt miss?"
HINT = "paste text, or token ids: [1, 2, 3]. Enter looks it up, Esc leaves. It is kept nowhere"
WAITING = "asking the tokenizer"
_WORDS = {
    CACHED: "cached",
    CUT_OFF: "cached behind one that is not: cannot be found",
    EVICTED: "evicted",
    UNKNOWN: "not cached, nor among the evictions kept",
}
_STYLES = {CACHED: "good", CUT_OFF: "soft", EVICTED: "warn", UNKNOWN: "soft"}
_SAID_OF_REST = {
    EVICTED: "a larger pool, or an eviction policy that keeps it, would have it",
    UNKNOWN: "nobody has computed this continuation of late, or it is being computed",
}


def token_ids(text: str) -> list[int] | None:
    """The token ids that ``text`` is a list of; None: it is any other text.

    Raises:
        UsageError: a list of numbers of which some can be no ids.
    """
    line = text.strip()
    if not line.startswith("[") or not line.endswith("]"):
        return None
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    if not found or not all(isinstance(each, int | float) for each in found):
        return None
    if wrong := next((each for each in found if type(each) is not int or not 0 <= each < 1 << 63), None):
        raise UsageError(f"token ids: found {wrong!r}, expected integers from 0")
    return found


def check_prompt(text: str) -> None:
    """Raises UsageError: nothing to look up, or no ids."""
    if not text:
        raise UsageError("the prompt is empty, expected text or token ids")
    token_ids(text)


def ask_of(text: str, state: RunState, is_replay: bool) -> PromptKeys | FindPrompt:
    """The answer, where it needs nobody else; else what the session is to be asked."""
    tokens, pool = token_ids(text), state.pool
    is_attached = state.attached is not None
    now_ns = state.t_ns
    if is_replay and is_attached:
        return PromptKeys(t_ns=now_ns, problem="not reported: a recording of servers has no tokens; attach to them")
    if not is_attached and pool is None:
        return PromptKeys(t_ns=now_ns, problem="the run has not begun")
    if not is_attached and pool is not None and tokens is not None:
        keys = [[key] for key in prompt_keys(tokens, pool.block_size)]
        return PromptKeys(t_ns=now_ns, num_tokens=len(tokens), keys=keys)
    if is_replay or (has_ended(state) and tokens is None):
        return PromptKeys(t_ns=now_ns, problem="the tokenizer has ended with the run: paste token ids, [1, 2, 3]")
    return FindPrompt(text="" if tokens is not None else text.encode("utf-8", "replace").decode(), tokens=tokens)


def find_prompt(app: KvtopApp, text: str | None) -> None:
    """Look up a pasted prompt; what is found is in the frames to come, the prompt nowhere."""
    if not text:
        return
    asked = ask_of(text, app.state, app.is_replay)
    if isinstance(asked, FindPrompt):
        app.feed.tell_prompt(PromptKeys(t_ns=app.state.t_ns, problem=WAITING))
        app.send_command(asked)
    else:
        app.feed.tell_prompt(asked)
    app.show_now()


def prompt_lines(frame: Frame, asked: PromptKeys, tree: PrefixTree, width: int) -> list[Line]:
    """What the Lookup panel says of it."""
    state = frame.state
    if asked.problem:
        return [[(part, "soft")] for part in _wrapped(f"pasted prompt: {asked.problem}", width)]
    if state.pool is None:
        return [[("no block is known yet", "soft")]]
    found = look_up_prompt(asked.keys, asked.num_tokens, state.pool.block_size, tree, state.cache)
    tail = f" + {found.tail}" if found.tail else ""
    lines: list[Line] = [
        [
            ("pasted prompt ", "soft"), (whole(found.num_tokens), "text"), (" tokens: ", "soft"),
            (plural(found.num_blocks, "whole block"), "text"), (f" of {found.block_size}{tail}", "soft"),
        ],
        [
            ("cached now ", "soft"), (whole(found.found), "strong"), (f" of {whole(found.num_blocks)} blocks", "soft"),
            (f"  a request would find {whole(found.usable * found.block_size)} tokens", "text"),
            (f" ({percent(found.usable * found.block_size, found.num_tokens)})", "soft"),
        ],
    ]  # fmt: skip
    lines += [[(part, style)] for text, style in _ending(found) for part in _wrapped(text, width)]
    lines += [_fate_line(fate, frame) for fate in found.fates if fate.what != CACHED]
    if not frame.timeline.at_live:
        lines.append([("what had been evicted by then is not known: end is the live end", "soft")])
    if state.attached is not None:
        lines += [[(part, "warn")] for part in _wrapped(state.attached.partial, width) if part]
    return lines


def _ending(found: PromptLookup) -> list[tuple[str, str]]:
    end = found.end
    others = plural(found.others, "other block")
    if not found.num_blocks:
        return [("shorter than a block: nothing of it is ever cached", "soft")]
    if end is None:
        more = "; the last token is always computed, and its block with it" if found.usable < found.found else ""
        return [(f"every whole block is cached{more}", "good")]
    where = f"diverges at block {found.found:,}, token {found.found * found.block_size:,}"
    around = f"{others} go on there" if found.found else f"from its first block on; {others} begin prefixes"
    said = _SAID_OF_REST.get(end.what)
    return [(f"{where}: {around}", "text"), *([(said, "soft")] if said else [])]


def _fate_line(fate: Fate, frame: Frame) -> Line:
    name = f"block {fate.first:,}" if fate.first == fate.last else f"blocks {fate.first:,} to {fate.last:,}"
    line: Line = [(f"{name} ", "text"), (_WORDS[fate.what], _STYLES[fate.what])]
    if fate.step is not None:
        line.append((f" at step {fate.step:,}, {frame.state.step - fate.step:,} ago", "text"))
    elif fate.what == EVICTED:
        line.append((" before kvtop listened", "text"))
    if fate.cause:
        line.append((f", for {clean(fate.cause)}", "soft"))
    return line


def _wrapped(text: str, width: int) -> list[str]:
    return wrap(clean(text), max(20, width)) or [""]
