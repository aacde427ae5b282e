"""The command palette: every action that applies now, by name, with its key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.dom import DOMNode
from textual.types import IgnoreReturnCallbackType

from kvtop.tui.text import clean
from kvtop.tui.widgets.key_bar import key_name

_LEFT_OUT = ("command_palette", "screen.copy_text")


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


def _plain(text: str) -> Content:
    """Shown as it is, never parsed for markup."""
    return Content(text)
