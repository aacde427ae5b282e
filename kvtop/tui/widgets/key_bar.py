"""The last row: keys that apply now. What does not fit is in the help; help and quit always are."""

from __future__ import annotations

from textual import events
from textual.binding import Binding
from textual.dom import DOMNode

from kvtop.tui.text import clean
from kvtop.tui.widgets.lines import Line, Lines, width_of

KEY_NAMES = {
    "question_mark": "?", "pageup": "PgUp", "pagedown": "PgDn", "escape": "Esc", "enter": "Enter", "tab": "Tab",
    "space": "space",
}  # fmt: skip
_LAST = ("help", "quit")
_RANK = {
    "go": 0, "freeze": 1, "live": 1, "pause": 1, "resume": 1, "step": 1, "why": 2, "lead": 3, "open": 3,
    "move": 5, "pace": 5, "explain": 6, "zoom": 7,
}  # fmt: skip
"""What stands first, and is left out last; the keys of a widget or a screen come in between (4)."""


def key_name(binding: Binding) -> str:
    return binding.key_display or KEY_NAMES.get(binding.key.split(",")[0], binding.key.split(",")[0])


class KeyBar(Lines):
    """Keys with the same words stand together: ``[ ] step``. A click is the key."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._places: list[tuple[int, int, str, DOMNode]] = []  # first column, the one after the last, action, whose

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, lambda _: self.call_after_refresh(self.show))
        self.call_after_refresh(self.show)

    def on_resize(self) -> None:
        super().on_resize()
        self.show()

    def show(self) -> None:
        if not self.is_mounted or not self.screen.is_current:
            return
        entries = self._entries()
        last = [entry for entry in entries if entry[2].split("(")[0] in _LAST]
        room = self.size.width - sum(width_of(_spans(entry)) for entry in last)
        line: Line = []
        self._places = []
        for entry in [*(entry for entry in entries if entry not in last), None, *last]:
            if entry is None:
                room = self.size.width - width_of(line)
                continue
            spans = _spans(entry)
            if width_of(spans) > room:
                continue
            self._places.append((width_of(line), width_of(line) + width_of(spans), *entry[2:]))
            line += spans
            room -= width_of(spans)
        self.set_lines([line])

    def _entries(self) -> list[tuple[str, str, str, DOMNode]]:
        """Keys, words, action and whose it is, in order of importance; keys of one group once."""
        groups: dict[str, list[Binding]] = {}
        nodes: dict[str, DOMNode] = {}
        for node, binding, enabled, _ in self.screen.active_bindings.values():
            if enabled and binding.show and binding.description:
                words = binding.group.description if binding.group else binding.description
                group = groups.setdefault(words, [])
                if all(binding.action != other.action for other in group):
                    group.append(binding)
                    nodes[words] = node
        entries = []
        for words, bindings in groups.items():
            keys = list(dict.fromkeys(key_name(binding) for binding in bindings))
            shown = f"{keys[0]}-{keys[-1]}" if len(keys) > 2 else " ".join(keys)
            entries.append((clean(shown), clean(words), bindings[-1].action, nodes[words]))
        return sorted(entries, key=lambda entry: _RANK.get(entry[2].split("(")[0], 4))

    async def on_click(self, event: events.Click) -> None:
        for start, end, action, node in self._places:
            if start <= event.x < end:
                await self.app.run_action(action, node)


def _spans(entry: tuple[str, str, str, DOMNode]) -> Line:
    return [(f" {entry[0]}", "key"), (f" {entry[1]} ", "soft")]
