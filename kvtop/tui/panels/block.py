"""Block: what is under the cursor?"""

from __future__ import annotations

from collections import Counter

from kvtop.state.eviction_order import KEYS, policy_of
from kvtop.state.model import FRESH, IDLE, NOT_KNOWN, USED, WITHHELD, PoolState, RunState
from kvtop.state.step_times import ago
from kvtop.tui.attached import no_blocks
from kvtop.tui.block_view import BlockView
from kvtop.tui.frame import Frame
from kvtop.tui.panels.base import TextPanel
from kvtop.tui.text import clean, duration, join_fitting, percent, plural, whole
from kvtop.tui.widgets.lines import Line, width_of
from kvtop.values_in_text import wrap

NARROW = 60  # cells: below it a fact a line
_LABEL = 10


class BlockPanel(TextPanel):
    """Everything the log says about the block under the cursor, and about the other blocks of its cell."""

    TITLE = "Block"
    QUESTION = "what is it, when does it go?"
    HELP = """\
state      fresh, idle, used (shared by n), in transfer; pinned, if it is
tokens     token slots filled, of those it has
held by    the sequences with it in their tables, and at which positions
key        its published key and that of the block before it (last digits)
prefix     its place in its chain; how many blocks follow it there
hits       how often it was found since it was published; tokens that saved
last use   when it was last released or found
age        since it was taken for what is in it
evicted    how many idle blocks go before it, in the order of the eviction
           policy; fresh blocks are taken first. Not reported: of a policy
           from a file, of belady, and with several KV groups
in         an estimate: these blocks over the evictions of the last ten
           seconds. Not reported while nothing is evicted
group      the KV group whose table holds it"""

    def __init__(self, view: BlockView) -> None:
        super().__init__()
        self.view = view

    def attached_lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        """A logical block: which number it has on the server, who holds it, and how often, is not reported."""
        pool, block = frame.state.pool, self.view.cursor
        if pool is None or block >= pool.num_blocks:
            return [[(part, "soft")] for part in wrap(no_blocks(frame.state), max(20, width))]
        known = ("block", "tokens", "key", "prefix", "age", "group") if pool.key[block] is not None else ("block",)
        facts = [(name, line) for name, line in self._facts(frame.state, pool, block, width - _LABEL) if name in known]
        facts.insert(1, ("state", [("cached", "idle") if pool.key[block] is not None else ("nothing cached", "text")]))
        facts.append(("n/a", [("its number there, holders, hits, order of eviction", "soft")]))
        return [[(f"{label:<{_LABEL}}", "soft"), *line] for label, line in facts]

    def lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        pool, block = frame.state.pool, self.view.cursor
        if pool is None or block >= pool.num_blocks:
            return [[("no pool yet", "soft")]]
        if width >= NARROW:
            return self._wide(frame.state, pool, block, width)
        facts = [*self._facts(frame.state, pool, block, width - _LABEL)]
        lines: list[Line] = [[(f"{label:<{_LABEL}}", "soft"), *line] for label, line in facts]
        if len(self.view.cell) > 1:
            lines = [*_cell_lines(pool, self.view.cell), *lines]
        return lines

    # Many facts a line --------------------------------------------------------------------------------------

    def _wide(self, state: RunState, pool: PoolState, block: int, width: int) -> list[Line]:
        """For a panel that is wide and low: the same facts, as many a line as fit."""
        head: Line = [("block ", "soft"), (whole(block), "strong"), ("  ", ""), *_state(pool, block)]
        if pool.state[block] != FRESH:
            head += [("  tokens ", "soft"), (f"{pool.filled[block]}/{pool.block_size}", "text")]
            head += [("  hits ", "soft"), (whole(pool.uses[block]), "text")]
            head += [("  group ", "soft"), *_group(state, block)]
        lines = [head]
        if len(self.view.cell) > 1:
            lines = [[part for line in _cell_lines(pool, self.view.cell) for part in (*line, ("  ", ""))], *lines]
        second = _owners(state, block, max(20, width - 26))
        key = _key(pool, block)
        if width_of(second) + width_of(key) + 2 <= width:
            second += [("  ", ""), *key]
        lines.append(second)
        if pool.state[block] == FRESH:
            return lines
        for names in (("evicted", "in"), ("prefix", "published"), ("age", "last use")):  # what asks the title first
            line: Line = []
            for label, fact in self._facts(state, pool, block, width):
                if label in names:
                    line += [(f"{label} ", "soft"), *fact, ("  ", "")]
            lines.append(line)
        return lines

    # A fact a line -------------------------------------------------------------------------------------------

    def _facts(self, state: RunState, pool: PoolState, block: int, room: int) -> list[tuple[str, Line]]:
        facts: list[tuple[str, Line]] = [("block", [(whole(block), "strong")]), ("state", _state(pool, block))]
        if pool.state[block] == FRESH:
            return [*facts, ("", [("nothing is in it", "soft")])]
        facts.append(("tokens", [(f"{pool.filled[block]}/{pool.block_size}", "text")]))
        facts += [("held by" if not i else "", line) for i, line in enumerate(_holders(state, block, room))]
        if pool.key[block] is None:
            facts.append(("key", [("not published", "soft")]))
        else:
            facts += self._published(state, pool, block)
        facts += [
            ("age", _since(state, pool.since_step[block])),
            ("last use", _since(state, pool.last_use_step[block] or None)),
            *self._eviction(state, pool, block),
            ("group", _group(state, block)),
        ]
        return facts

    def _published(self, state: RunState, pool: PoolState, block: int) -> list[tuple[str, Line]]:
        key, parent = pool.key[block], pool.parent_key[block]
        above: Line = [(short_key(parent), "text") if parent in self.view.tree.block_of else ("none", "soft")]
        tree = self.view.tree
        depth, below = tree.depth(block), tree.num_children[tree.twin_of.get(block, block)]
        uses, size, follow = pool.uses[block], pool.block_size, "follows" if below == 1 else "follow"
        by: Line = [("by ", "soft"), (clean(pool.publisher[block]), "text")] if pool.publisher[block] else []
        if by and pool.tenant[block]:
            by += [(f" of {clean(pool.tenant[block])}", "soft")]
        step = f"step {pool.published_step[block]:,}"
        by += [(f", {step}" if by else f"{step}, by whom not reported", "soft")]
        return [
            ("key", [(short_key(key), "text"), ("  parent ", "soft"), *above]),
            (
                "prefix",
                [(f"block {depth + 1:,}", "text"), (f", {below:,} {follow} it" if below else ", the last", "soft")],
            ),
            ("published", by),
            ("hits", [(whole(uses), "text"), (f", saved {plural(uses * size, 'token')}" if uses else "", "soft")]),
        ]

    def _eviction(self, state: RunState, pool: PoolState, block: int) -> list[tuple[str, Line]]:
        """Its place in the order of eviction, and when its turn comes."""
        if pool.state[block] == USED:
            return [("evicted", [("not while it is used", "soft")])]
        policy = policy_of(state)
        place, seconds = self.view.until_evicted(state, block)
        if policy not in KEYS or (place is None and self.view.tree.twin_of):
            why = f"not reported: policy {clean(policy)}" if policy not in KEYS else "not reported: several groups"
            return [("evicted", [(why, "soft")])]
        if place is None:
            stuck = "in transfer" if pool.state[block] != IDLE else "blocks behind it are used"
            return [("evicted", [(f"not now: {stuck}", "soft")])]
        when: Line = [("not reported: no eviction lately", "soft")]
        if seconds is not None:
            when = [(f"~{duration(seconds * 1e9)}", "strong"), (" at this rate (estimate)", "soft")]
        others: Line = [("next", "warn")] if not place else [("after ", "soft"), (plural(place, "other"), "text")]
        fresh = pool.counts[FRESH]
        others += [(f" and {fresh:,} fresh", "soft")] if fresh else []
        return [("evicted", others), ("in", when)]


def short_key(key: int | None) -> str:
    """The last eight hexadecimal digits of a published key."""
    return "-" if key is None else f"{key & 0xFFFFFFFF:08x}"


def _state(pool: PoolState, block: int) -> Line:
    state, count = pool.state[block], pool.refcount[block]
    pinned: Line = [("  pinned", "warn")] if pool.pins[block] else []
    if state == FRESH:
        return [("fresh", "text"), *pinned]
    if state == IDLE:
        return [("idle", "idle"), *pinned]
    if state == WITHHELD:
        return [("withheld: the pool may use fewer blocks than it has", "soft")]
    if state != USED:
        return [("in transfer", "transfer"), *pinned]
    return [(f"shared by {count:,}", "shared") if count > 1 else ("used by 1", "used"), *pinned]


def _since(state: RunState, step: int | None) -> Line:
    if step is None or step == NOT_KNOWN:
        return [("not reported", "soft")]
    passed = ago(state, step)
    time: Line = [] if passed is None else [(f"{duration(passed)} " if passed else "now, ", "text")]
    return [*time, (f"since step {step:,}", "soft" if time else "text")]


def _key(pool: PoolState, block: int) -> Line:
    if pool.key[block] is not None:
        return [("published as ", "soft"), (short_key(pool.key[block]), "text")]
    return [("not published", "soft")] if pool.state[block] == USED else []


def positions(state: RunState, block: int, owner: str) -> tuple[int, int] | None:
    """KV group and index of ``block`` in its owner's tables."""
    seq = state.sequences.get(owner)
    if seq is None:
        return None
    return next(((group, table.index(block)) for group, table in enumerate(seq.tables) if block in table), None)


def _span(state: RunState, block: int, owner: str) -> str:
    where = positions(state, block, owner)
    if where is None or state.pool is None:
        return ""
    size = state.pool.block_size
    return f"{where[1] * size:,}-{where[1] * size + size - 1:,}"


def _group(state: RunState, block: int) -> Line:
    """The table it is in; of a block that nobody holds the log tells it only where there is one group."""
    assert state.pool is not None
    owners = state.pool.owners[block]
    where = positions(state, block, owners[0]) if owners else None
    if where is not None:
        return [(str(where[0]), "text")]
    several = (
        any(len(seq.tables) > 1 for seq in state.sequences.values()) or len(state.manifest.get("kv_groups") or ()) > 1
    )
    return [("not reported", "soft")] if several else [("0", "text")]


def _owners(state: RunState, block: int, room: int) -> Line:
    """Who holds a block, in one line; of a single position also which."""
    assert state.pool is not None
    names = list(dict.fromkeys(state.pool.owners[block]))
    if not names:
        return [("held by nobody", "soft")]
    spans = {_span(state, block, name) for name in names}
    tail: Line = [("  positions ", "soft"), (spans.pop(), "text")] if len(spans) == 1 and "" not in spans else []
    return [("held by ", "soft"), (join_fitting([clean(name) for name in names], room - width_of(tail)), "text"), *tail]


def _holders(state: RunState, block: int, room: int, most: int = 6) -> list[Line]:
    """A line an owner: its name and the positions it has here."""
    assert state.pool is not None
    names = list(dict.fromkeys(state.pool.owners[block]))
    if not names:
        return [[("nobody", "soft")]]
    lines: list[Line] = []
    for name in names[: most if len(names) <= most else most - 1]:
        span = _span(state, block, name)
        lines.append([(clean(name)[: max(6, room - 14)], "text"), (f"  at {span}" if span else "", "soft")])
    if len(names) > most:
        lines.append([(f"and {len(names) - most + 1:,} more", "soft")])
    return lines


def _cell_lines(pool: PoolState, blocks: list[int]) -> list[Line]:
    """What the blocks of one cell are."""
    states = Counter(pool.state[block] for block in blocks)
    shared = sum(1 for block in blocks if pool.refcount[block] > 1)
    consecutive = blocks == list(range(blocks[0], blocks[0] + len(blocks)))
    what = f"blocks {blocks[0]:,}-{blocks[-1]:,}" if consecutive else f"cell of {len(blocks):,} blocks"
    line: Line = [(f"{what}  ", "soft" if not consecutive else "text")]
    line += [(f"{states[USED]} used", "used"), (f" ({shared} shared)" if shared else "", "shared")]
    rest: Line = [(f"{states[IDLE]} idle  ", "idle"), (f"{states[FRESH]} fresh", "text")]
    used = [block for block in blocks if pool.state[block] == USED]
    if not used:
        return [line, rest]
    filled = sum(pool.filled[block] for block in used)
    return [line, [*rest, ("  filled ", "soft"), (percent(filled, len(used) * pool.block_size), "text")]]
