"""Figures of single blocks: how long they were held, and how long what they held stayed in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvtop.report import charts
from kvtop.report.figure import Figure, Material, Shown, counts, join
from kvtop.report.latency import step_lines
from kvtop.report.thin import ecdf
from kvtop.workloads import words

KINDS = ("alloc", "share", "free", "copy", "pin", "unpin", "publish", "unpublish", "evict")


@dataclass(slots=True)
class Lifetimes:
    """Times in ns. ``held``: of each block from the first reference to the last one's end; ``kept``: of each evicted
    block from its allocation on. ``num_cached``: published ones that were in the cache when the log ends.
    """

    held: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    num_held_at_end: int = 0
    num_cached_at_end: int = 0


def block_figures(material: Material) -> Iterator[Figure]:
    """Two ECDFs: of holding, and of staying in the cache."""
    runs = material.first_runs
    found = [lifetimes(shown) for shown in runs]
    labels = [shown.label for shown in runs]
    yield _figure(
        material, "block-held", "How long blocks are held", "time held", [each.held for each in found], "holds",
        "From the moment a block gets its first reference to the moment it has none (one value each time; a block that "
        "is found idle and taken again counts again), by the decision log.",
        counts(labels, [len(each.held) for each in found], "hold"),
        f"{counts(labels, [each.num_held_at_end for each in found], 'block').removeprefix('n = ')} held at the end: "
        "not in it",
    )  # fmt: skip
    yield _figure(
        material, "block-kept", "Age of blocks at their eviction", "age at eviction", [each.kept for each in found],
        "evictions",
        "From a block's allocation to the eviction of what it held.",
        counts(labels, [len(each.kept) for each in found], "eviction"),
        f"{counts(labels, [each.num_cached_at_end for each in found], 'block').removeprefix('n = ')} published and not "
        "evicted when the log ends: older or younger, and not in it",
    )  # fmt: skip


def _figure(
    material: Material,
    key: str,
    title: str,
    across: str,
    values: list[list[float]],
    counted: str,
    meaning: str,
    *numbers: str,
) -> Figure:
    runs = material.first_runs
    if not any(values):
        return Figure(key, title, join("There were none.", material.which_runs()), None)
    ordered = [sorted(each) for each in values]
    axis = charts.axis_over(value for each in ordered for value in each)
    rows = [(index, t, share) for index, each in enumerate(ordered) for t, share in ecdf(each, axis)]
    dropped = sum(int(shown.summary.manifest.get("events_dropped") or 0) for shown in runs)
    events = f"{words.counted(dropped, 'event')} {words.was(dropped)}"
    warning = f"{events} dropped while recording: times around them are wrong." if dropped else ""
    caption = join(meaning, *(f"{text}." for text in numbers), warning, material.which_runs())
    return Figure(key, title, caption, step_lines([shown.label for shown in runs], rows, axis, across, counted))


def lifetimes(shown: Shown) -> Lifetimes:
    """Follow every block's references through the decision log."""
    import polars as pl

    events = shown.run.events.filter(pl.col("kind").is_in(KINDS)).sort("seq")
    found = Lifetimes()
    refs: dict[int, int] = {}
    since: dict[int, int] = {}
    born: dict[int, int] = {}
    published: set[int] = set()

    def hold(block: int, t_ns: int) -> None:
        if not refs.get(block):
            since[block] = t_ns
        refs[block] = refs.get(block, 0) + 1

    def release(block: int, t_ns: int) -> None:
        refs[block] = refs.get(block, 0) - 1
        if not refs[block] and block in since:
            found.held.append(t_ns - since.pop(block))

    for kind, block, other, t_ns in events.select("kind", "block", "other", "t_ns").collect().iter_rows():
        if kind in ("share", "pin"):
            hold(block, t_ns)
        elif kind in ("free", "unpin"):
            release(block, t_ns)
        elif kind == "alloc" or (kind == "copy" and not refs.get(block)):
            # a copying fork was given its block before: then the copy changes no reference
            hold(block, t_ns)
            born[block] = t_ns
            if kind == "copy":
                release(int(other), t_ns)
        elif kind == "publish":
            published.add(block)
        elif kind == "unpublish":
            published.discard(block)
        elif kind == "evict":
            published.discard(block)
            if block in born:
                found.kept.append(t_ns - born.pop(block))
    found.num_held_at_end, found.num_cached_at_end = len(since), len(published)
    return found
