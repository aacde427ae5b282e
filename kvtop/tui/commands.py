"""The command palette: every action that applies now, by name, with its key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.dom import DOMNode
from textual.types import IgnoreReturnCallbackType

from kvtop.engine.errors import UsageError
from kvtop.engine.events import SetConfig
from kvtop.tui.text import clean
from kvtop.tui.theme import PALETTES
from kvtop.tui.widgets.key_bar import key_name

if TYPE_CHECKING:
    from kvtop.tui.app import KvtopApp

_LEFT_OUT = ("command_palette", "screen.copy_text")


RATES = {
    "1": "as the workload says", "2": "twice that", "5": "five times that", "0.5": "half of that",
    "0.2": "a fifth of that",
}  # fmt: skip


POOL_SIZES = {"100%": "all blocks", "75%": "three quarters", "50%": "half", "25%": "a quarter", "": "ask for a number"}


def blocks_of(text: str, num_blocks: int) -> int:
    """``text``, a number of blocks or a share of all ``num_blocks`` in percent, as a number of blocks, at least 1.

    Raises:
        UsageError: it is neither.
    """
    number = text.strip().replace(",", "")
    is_share = number.endswith("%")
    try:
        value = float(number[:-1]) / 100 * num_blocks if is_share else int(number)
    except ValueError:
        value = -1.0
    if not 0 < value <= num_blocks:
        expected = f"blocks from 1 to {num_blocks:,}, or a share of them like 50%"
        raise UsageError(f"pool size {clean(text)!r}: expected {expected}")
    return max(1, round(value))


def ask(
    app: KvtopApp, title: str, hint: str, value: str, check: Callable[[str], object],
    then: Callable[[str | None], None],
) -> None:  # fmt: skip
    """Ask for a line. What it is written in is imported only now: its widgets are no part of the first paint."""
    from kvtop.tui.screens.ask import AskScreen

    app.push_screen(AskScreen(title, hint, value, check), then)


def change(app: KvtopApp, name: str, value: str) -> None:
    """Change ``name`` of the engine's configuration to ``value``, as text; of the pool's size "" asks for a number."""
    pool = app.state.pool
    if name == "arrival_rate":
        app.send_command(SetConfig({name: float(value)}))
    elif name != "num_blocks":
        app.send_command(SetConfig({name: value}))
    elif pool is not None and value:
        app.send_command(SetConfig({name: blocks_of(value, pool.num_blocks)}))
    elif pool is not None:
        hint = f"a number of blocks from 1 to {pool.num_blocks:,}, or a share of them like 50%"
        ask(
            app, "Pool size", hint, str(pool.limit), lambda text: blocks_of(text, pool.num_blocks),
            lambda text: change(app, name, text) if text else None,
        )  # fmt: skip


class KvtopCommands(Provider):
    """What the keys of the screen below the palette do."""

    def _actions(self) -> Iterator[tuple[str, str, DOMNode]]:
        """(what it does, action, whose action)"""
        seen: set[str] = set()
        for active in self.screen.active_bindings.values():
            binding = active.binding
            what = binding.tooltip or binding.description
            if not active.enabled or not what or binding.action in seen or binding.action in _LEFT_OUT:
                continue
            seen.add(binding.action)
            yield f"{clean(what)} · {clean(key_name(binding))}", binding.action, active.node
        for name in PALETTES:
            yield f"theme {name}", f"app.theme('{name}')", self.app
        if self.app.check_action("change", ()):
            yield from ((what, action, self.app) for what, action in _changes())

    def _run(self, action: str, node: DOMNode) -> IgnoreReturnCallbackType:
        return lambda: self.app.run_action(action, node)

    async def discover(self) -> Hits:
        for what, action, node in self._actions():
            yield DiscoveryHit(_plain(what), self._run(action, node))

    async def search(self, query: str) -> AsyncIterator[Hit]:
        matcher = self.matcher(query)
        for what, action, node in self._actions():
            if (score := matcher.match(what)) > 0:
                yield Hit(score, _plain(what), self._run(action, node), text=what)


def _changes() -> Iterator[tuple[str, str]]:
    """What of the engine's configuration may be changed while it runs."""
    from kvtop.engine.policies.registry import QUEUE

    for name, meaning in QUEUE.meanings().items():
        yield f"queue policy {name}: {meaning}", f"app.change('policy', '{name}')"
    for factor, words in RATES.items():
        yield f"arrival rate: {words}", f"app.change('arrival_rate', '{factor}')"
    for size, words in POOL_SIZES.items():
        yield f"pool size: {words}", f"app.change('num_blocks', '{size}')"


def _plain(text: str) -> Content:
    """Shown as it is, never parsed for markup."""
    return Content(text)
