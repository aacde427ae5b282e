"""The host tier: prefixes that the cache on the device lost to eviction, kept in host memory until asked for again.

An evicted block is copied out before anything overwrites it, and stays known under all that led to it: the tokens of
the whole chain are compared on a hit, so a collision of keys can only be a miss. The tier is inclusive: a block that is
brought back keeps its host copy, so that its next eviction moves nothing; a copy that the device makes superfluous is
not touched meanwhile and ages out by itself.

Its own order is LRU over stores and hits, of one chain deeper blocks first. Nothing is held back for its children: a
chain can be hit as far as it is contiguous from the end of what the device has, and what lies behind a gap is found
again once the gap is filled, or ages out.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Iterator

from kvtop.engine.errors import InvariantError
from kvtop.engine.events import Decision
from kvtop.engine.host_pool import HostPool
from kvtop.engine.keys import BlockExtra, Packed
from kvtop.engine.prefix_cache import PrefixCache
from kvtop.engine.sequence import Sequence

STORING = -1  # the host block of a node that is about to get one


class _Node:
    """One block of a chain. Without a host block it only leads to others: the device has it, or nobody any more."""

    __slots__ = ("children", "extra", "host", "key", "last_use_step", "parent", "root", "stored_step", "tokens", "uses")

    def __init__(self, parent: _Node | None, root: Hashable, key: int, tokens: Packed, extra: BlockExtra) -> None:
        self.parent, self.root = parent, root
        self.key, self.tokens, self.extra = key, tokens, extra
        self.children: dict[int, _Node] | None = {}  # None: it has left the tree
        self.host: int | None = None
        self.stored_step = self.last_use_step = self.uses = 0


class HostTier:
    """``num_blocks`` host blocks, the first of them with the id ``first``, behind the prefix cache ``cache``.

    Copies out (``outs``) and in (``loads``) are planned here and stay until ``executed``. A host block that is about to
    be read is not given to anybody else.
    """

    def __init__(self, num_blocks: int, first: int, cache: PrefixCache) -> None:
        self.pool = HostPool(num_blocks, first)
        self.cache = cache
        self._roots: dict[Hashable, dict[int, _Node]] = {}
        self._known: OrderedDict[int, _Node] = OrderedDict()  # host block -> what is in it, least recently used first
        self._node_of: list[_Node | None] = [None] * len(cache.key)  # of device blocks, where it was looked for
        self._outs: dict[int, int] = {}  # host block -> device block whose content it gets
        self._handed: list[tuple[int, int]] = []  # (host block, device block) of the plan being executed
        self._loads: list[tuple[Sequence, list[int], list[int]]] = []  # sequence, host blocks, blocks
        self._reading: Counter[int] = Counter()  # host block -> loads that read it

    # -- lookup --------------------------------------------------------------------------------------------------

    def match(self, seq: Sequence, found: int) -> list[int]:
        """Host blocks that continue a match of ``found`` blocks on the device; the last token is never among them.

        Changes nothing. The keys of ``seq`` are known already: the device was asked first.
        """
        hosts: list[int] = []
        if not self._known:
            return hosts
        extras = seq.request.spec.block_keys or {}
        level = self._roots.get(seq.request.extra)
        for i in range((len(seq.tokens) - 1) // self.cache.block_size):
            node = level.get(seq.keys[i]) if level else None
            if node is None or node.extra != extras.get(i) or node.tokens != seq.key_tokens[i]:
                break
            if i >= found:
                if node.host is None:
                    break
                hosts.append(node.host)
            level = node.children
        return hosts

    # -- in ------------------------------------------------------------------------------------------------------

    def load(self, seq: Sequence, hosts: list[int], blocks: list[int], step: int) -> None:
        """``hosts``, just matched, will be copied into ``blocks`` of ``seq``: a use of each."""
        for host in reversed(hosts):
            node = self._known[host]
            node.last_use_step = step
            node.uses += 1
            self._known.move_to_end(host)
        self._reading.update(hosts)
        self._loads.append((seq, hosts, blocks))

    def loading(self, seq: Sequence) -> bool:
        """Blocks of ``seq`` are still to be filled: there is nothing in them yet."""
        return any(loader is seq for loader, _, _ in self._loads)

    def drop(self, seq: Sequence) -> None:
        """``seq`` gives its blocks back: what they were to be filled with is not needed any more."""
        for load in [load for load in self._loads if load[0] is seq]:
            self._loads.remove(load)
            self._end_reading(load[1])

    def _end_reading(self, hosts: Iterable[int]) -> None:
        for host in hosts:
            self._reading[host] -= 1
            if not self._reading[host]:
                del self._reading[host]
                if host not in self._known:  # a reset came meanwhile
                    self._outs.pop(host, None)
                    self.pool.give([host])

    # -- out -----------------------------------------------------------------------------------------------------

    def store(self, blocks: list[int], cause: str, step: int) -> list[Decision]:
        """Idle device blocks are about to leave the cache's tree, children before parents: keep what is in them.

        Returns the decisions to record: what was stored (or was there already), and what was forgotten for it.
        """
        decisions: list[Decision] = []
        for block in blocks:
            node = self._place(block)
            if node is not None:
                self._keep(node, block, cause, step, decisions)
            self._node_of[block] = None
        return decisions

    def _keep(self, node: _Node, block: int, cause: str, step: int, decisions: list[Decision]) -> None:
        there = node.host is not None
        if not there:
            node.host = STORING  # so that it does not leave the tree with a child that has to go for it
            host = self._take(cause, step, decisions)
            node.host = host
            if host is None:  # all are about to be read
                self._prune(node)
                return
            self._known[host] = node
            self._outs[host] = block
            node.stored_step, node.uses = step, 0
        assert node.host is not None
        node.last_use_step = step
        self._known.move_to_end(node.host)
        decisions.append(("host_store", cause, 0, block, node.key, node.host, "there" if there else "copied"))

    def _take(self, cause: str, step: int, decisions: list[Decision]) -> int | None:
        """A host block to write into: a free one, or else the least recently used that nobody is about to read.

        Content that was still on its way there goes no more: the new one takes its place in ``_outs``.
        """
        if free := self.pool.take(1):
            return free[0]
        for host, node in self._known.items():
            if host not in self._reading:
                ages = (step - node.stored_step, step - node.last_use_step)
                decisions.append(("host_evict", cause, 0, host, node.key, *ages, node.uses))
                self._forget(host)
                return host
        return None

    def _forget(self, host: int) -> None:
        node = self._known.pop(host)
        node.host = None
        self._prune(node)

    # -- moves ---------------------------------------------------------------------------------------------------

    def moves(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """For the plan: (block, host block) to copy out first, and (host block, block) to copy in after that."""
        self._handed = list(self._outs.items())
        outs = [(block, host) for host, block in self._handed]
        return outs, [pair for _, hosts, blocks in self._loads for pair in zip(hosts, blocks, strict=True)]

    def executed(self) -> None:
        """The moves that the plan was given are made."""
        for host, block in self._handed:
            if self._outs.get(host) == block:
                del self._outs[host]
        self._handed = []
        loads, self._loads = self._loads, []
        for _, hosts, _ in loads:
            self._end_reading(hosts)

    def reset(self) -> None:
        """Forget everything. What is about to be read stays until then, its copy out included."""
        for host in list(self._known):
            self._forget(host)
            if host not in self._reading:
                self._outs.pop(host, None)
                self.pool.give([host])

    # -- the tree ------------------------------------------------------------------------------------------------

    def _place(self, block: int) -> _Node | None:
        """The node of a published block, made if need be; None: its key belongs to other tokens there."""
        node, path, at = None, [], block
        while at is not None:
            node = self._node_of[at]
            if node is not None and node.children is not None:
                break
            node = None
            path.append(at)
            at = self.cache.parent[at]
        for at in reversed(path):
            key, tokens, extra = self.cache.content(at)
            root = self.cache.root_of(at) if node is None else None
            level = self._roots.setdefault(root, {}) if node is None else node.children
            assert level is not None
            child = level.get(key)
            if child is None:
                level[key] = child = _Node(node, root, key, tokens, extra)
            elif child.tokens != tokens or child.extra != extra:
                self._prune(node)
                return None
            self._node_of[at] = node = child
        return node

    def _prune(self, node: _Node | None) -> None:
        """Take ``node`` out of the tree, and those above it, as far as they lead nowhere."""
        while node is not None and node.host is None and not node.children:
            level = self._roots[node.root] if node.parent is None else node.parent.children
            assert level is not None
            del level[node.key]
            if not level and node.parent is None:
                del self._roots[node.root]
            node.children = None
            node = node.parent

    def _nodes(self) -> Iterator[_Node]:
        stack = [node for level in self._roots.values() for node in level.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend((node.children or {}).values())

    def check(self) -> None:
        """Raises InvariantError when blocks, nodes and moves disagree."""
        used = self.pool.used()
        if used != set(self._known) | set(self._reading):
            raise InvariantError(f"host blocks {used} are used, {set(self._known)} known, {self._reading} to be read")
        found = {}
        for node in self._nodes():
            level = self._roots.get(node.root) if node.parent is None else node.parent.children
            if level is None or level.get(node.key) is not node or node.children is None:
                raise InvariantError(f"the node of key {node.key} does not hang where it says")
            if node.host is None and not node.children:
                raise InvariantError(f"the node of key {node.key} leads to no host block")
            if node.host is not None:
                found[node.host] = node
        if found != self._known:
            raise InvariantError(f"host blocks {set(self._known)} are known, the tree has {set(found)}")
        if not set(self._outs) <= used:
            raise InvariantError(f"content is on its way to host blocks {set(self._outs) - used}, which are free")
        if self._reading != Counter(host for _, hosts, _ in self._loads for host in hosts):
            raise InvariantError(f"loads of {[hosts for _, hosts, _ in self._loads]} are counted as {self._reading}")
        for seq, hosts, blocks in self._loads:
            if len(hosts) != len(blocks) or not set(blocks) <= set(seq.block_table):
                raise InvariantError(f"{seq.seq_id}: host blocks {hosts} are to be read into {blocks}, not its own")
