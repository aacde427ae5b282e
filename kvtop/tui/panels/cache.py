"""Prefix cache: how much is reused, and why is the rest missed?"""

from __future__ import annotations

from kvtop.state.numbers import MISS_WORDS, hit_rate
from kvtop.state.windows import recent_hits
from kvtop.tui.frame import Frame
from kvtop.tui.glyphs import USED
from kvtop.tui.panels.base import TextPanel
from kvtop.tui.text import clean, percent, short
from kvtop.tui.widgets.lines import Line

_ROOMY, _TIGHT = 36, 31  # cells in which words need no abbreviation; up to which they are left out
_AVOIDABLE = ("evicted", "other_salt", "not_yet_computed", "cache_off")


class CachePanel(TextPanel):
    """Hit rate by tokens and by requests; what was missed, by where the match ended."""

    TITLE = "Prefix cache"
    QUESTION = "why missed?"
    NUMBERS = (
        "cache.hit_rate", "cache.query_tokens", "cache.hit_tokens", "cache.recent_hit_rate",
        "cache.recent_request_hit_rate", *(f"cache.missed_{reason}" for reason in MISS_WORDS), "cache.evictions",
        "cache.regretted_tokens",
    )  # fmt: skip
    HELP = """\
prefix hits  prompt tokens found in the cache at first admission / prompt
             tokens looked up, over the whole run. Only whole blocks, and
             at most all but the last token: 100 % cannot be reached
host hits    of the same tokens, found beyond that in host memory
The bars: tokens behind the point where a match ended, of the last 60 s,
by why it ended there.
never seen       nobody had computed that prefix: nothing could be done
evicted          it had been there: a larger pool or another eviction
                 policy would have kept it
last block       all that may be cached was found
being computed   a running request is at it: a moment later it is a hit
other salt       the same tokens under another key (adapter, tenant)
logprobs asked   of the prompt: all of it is computed"""

    def lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        state = frame.state
        totals = state.totals
        if state.manifest.get("prefix_caching") is False:
            return [[("prefix hits ", "soft"), ("prefix caching is off", "soft")]]
        rate, queried = hit_rate(state), totals.get("query_tokens", 0)
        if rate is None:
            return [[("prefix hits ", "soft"), ("no lookups yet", "soft")]]
        first: Line = [("prefix hits ", "soft"), (percent(rate, 1), "good" if rate else "text")]
        of, by = (" tokens", "requests") if width >= _ROOMY else (" tok" if width > _TIGHT else "", "req.")
        out: list[Line] = [[*first, (f" of {short(queried)}{of}", "soft")]]
        hits = recent_hits(state)
        if hits.num_lookups:
            minute: Line = [
                ("last 60 s   " if width > _TIGHT else "last 60 s ", "soft"),
                (percent(hits.found_tokens, hits.prompt_tokens), "text"),
            ]
            requests = percent(hits.num_with_hits, hits.num_lookups)
            out.append([*minute, (f"  {by} ", "soft"), (requests, "text")])
        if host := self._host(frame):
            out.insert(1, host)
        for reason, tokens in hits.missed.items():
            out.append(_miss(reason, tokens, hits.missed_tokens, width))
        evicted: Line = [("evictions ", "soft"), (short(totals.get("evictions", 0)), "text")]
        return [*out[: height - 1], evicted]

    def _host(self, frame: Frame) -> Line:
        """What the host tier adds, where there is one: its hits, then how full it is."""
        totals, size = frame.state.totals, frame.state.manifest.get("host_cache_blocks")
        if not size:
            return []
        queried, hit, held = (totals.get(name, 0) for name in ("query_tokens", "host_hit_tokens", "host_cached"))
        rate = percent(hit, queried) if queried else "none yet"
        held_of = f"  {short(held)} of {short(size)} blocks"
        return [("host hits ", "soft"), (rate, "good" if hit else "text"), (held_of, "soft")]


def _miss(reason: str, tokens: int, total: int, width: int) -> Line:
    name = MISS_WORDS.get(reason, clean(reason).replace("_", " "))
    style = "warn" if reason in _AVOIDABLE else "soft"
    line: Line = [(f"  {name:<15}", style), (f"{percent(tokens, total):>8} ", "text")]
    return [*line, (USED * max(1, tokens * max(1, width - 28) // total), style)]
