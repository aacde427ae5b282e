"""Where a layer's K and V lie in a block: its KV group, and its slot in that group's blocks.

All blocks of a pool have the same number of slots, one a layer, whichever group takes them. Layers of one window are
cut into groups of about that many, so that little of a block stays empty: 10 full and 52 windowed layers become one
full and five windowed groups of at most 11, with 6 % of the slots empty. As two groups it would be 40 %, all of it in
the blocks of the full one, of which there are the most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvtop.engine.errors import ConfigError
from kvtop.engine.executors.torch_pool import KVLayout, LayerShape, one_group
from kvtop.engine.windows import Windows

PADDING_ACCEPTED = 1 / 8  # of a group's slots; up to here fewer groups are better
PADDING_REFUSED = 1 / 2
MAX_GROUPS = 8  # every group has a table of its own to keep for every sequence


@dataclass(frozen=True, slots=True)
class ModelGroups:
    """The layouts a model can be served with. ``reason``: why its windowed layers keep every token, if they do."""

    layers: Sequence[LayerShape]
    reason: str | None = None

    def windows(self, max_len: int | None = None) -> Windows:
        """The KV groups of this model where no request is longer than ``max_len`` tokens."""
        return self._grouped(max_len).windows

    def layout(self, kv_groups: Windows) -> KVLayout:
        """Raises ConfigError: ``kv_groups`` is neither (None,) nor what this model's layers keep."""
        if kv_groups == (None,):
            return one_group(self.layers)
        limits = {None, *(layer.window for layer in self.layers)}
        for limit in limits:
            found = self._grouped(limit)
            if found.windows == kv_groups:
                return found
        raise ConfigError(
            f"kv_groups is {kv_groups}, this model's layers keep {self.windows()}; (None,) keeps every token"
        )

    def _grouped(self, max_len: int | None) -> KVLayout:
        if self.reason is not None:
            return one_group(self.layers)
        return group_layers(self.layers, max_len) or one_group(self.layers)


def model_groups(layers: Sequence[LayerShape]) -> ModelGroups:
    """What ``layers`` can be served with."""
    if all(layer.window is None for layer in layers):
        return ModelGroups(layers)
    shapes = {(layer.kv_heads, layer.k_dim, layer.v_dim) for layer in layers}
    if len(shapes) > 1 and len({layer.window for layer in layers}) > 1:
        return ModelGroups(layers, "its full and windowed layers have different KV shapes")
    if group_layers(layers, None) is None:
        return ModelGroups(layers, f"in at most {MAX_GROUPS} KV groups more than half of a block would be empty")
    return ModelGroups(layers)


def group_layers(layers: Sequence[LayerShape], max_len: int | None) -> KVLayout | None:
    """Cut ``layers`` into groups of one window each; None: too much of some block would stay empty.

    A window that no request of ``max_len`` tokens outgrows keeps every token.
    """
    by_window: dict[int | None, list[LayerShape]] = {}
    for layer in layers:
        keeps_all = layer.window is None or (max_len is not None and layer.window >= max_len)
        by_window.setdefault(None if keeps_all else layer.window, []).append(layer)
    counts = [len(members) for members in by_window.values()]
    sizes = [size for size in range(max(counts), 0, -1) if sum(-(-n // size) for n in counts) <= MAX_GROUPS]
    padding = {size: max(1 - n / (-(-n // size) * size) for n in counts) for size in sizes}
    slots = next((size for size in sizes if padding[size] <= PADDING_ACCEPTED), min(sizes, key=lambda s: padding[s]))
    if padding[slots] > PADDING_REFUSED:
        return None
    windows: list[int | None] = []
    group_of: dict[int, int] = {}
    slot_of: dict[int, int] = {}
    for window in sorted(by_window, key=lambda w: (w is not None, w or 0)):  # the groups that keep everything first
        members = by_window[window]
        for index, layer in enumerate(members):
            group_of[layer.layer], slot_of[layer.layer] = len(windows) + index // slots, index % slots
        windows += [window] * -(-len(members) // slots)
    return KVLayout(tuple(windows), group_of, slot_of, tuple(layers[:slots]))
