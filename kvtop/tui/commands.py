"""The command palette: every action that applies now, by name, with its key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.dom import DOMNode
from textual.types import IgnoreReturnCallbackType

from kvtop.tui.text import clean
from kvtop.tui.theme import PALETTES
from kvtop.tui.widgets.key_bar import key_name

_LEFT_OUT = ("command_palette", "screen.copy_text")


RATES = {
    "1": "as the workload says", "2": "twice that", "5": "five times that", "0.5": "half of that",
    "0.2": "a fifth of that",
}  # fmt: skip


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


def _plain(text: str) -> Content:
    """Shown as it is, never parsed for markup."""
    return Content(text)
