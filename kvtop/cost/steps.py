"""Measured steps as arrays: what was computed in each, and how long it took. From a run's tables; numpy and polars."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kvtop.engine.errors import UsageError
from kvtop.engine.executors.sim_cost import Work, attention_work
from kvtop.results.load import Run

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BLOCK_STEPS = 10  # steps in a row that are fitted, or held out, together: neighbours resemble each other


@dataclass(frozen=True, slots=True)
class Steps:
    """One entry a step, and one a chunk, in the order of the steps."""

    ns: Floats  # from its start to the next one's, where that follows at once; else to its end
    tokens: Ints
    chunks: Ints
    arrivals: Ints  # requests submitted meanwhile
    chunk_step: Ints  # index of a chunk's step
    starts: Ints
    counts: Ints

    def __len__(self) -> int:
        return len(self.ns)

    def attention(self, work: Work) -> tuple[Floats, Floats]:
        """(bytes, operations) of each chunk."""
        pairs = [attention_work(work, s, c) for s, c in zip(self.starts.tolist(), self.counts.tolist(), strict=True)]
        array = np.array(pairs, dtype=np.float64).reshape(-1, 2)
        return array[:, 0], array[:, 1]

    def subset(self, keep: NDArray[np.bool_]) -> Steps:
        """The steps that ``keep`` names, renumbered."""
        number = np.cumsum(keep) - 1
        chunk = keep[self.chunk_step]
        return Steps(
            self.ns[keep], self.tokens[keep], self.chunks[keep], self.arrivals[keep],
            number[self.chunk_step[chunk]], self.starts[chunk], self.counts[chunk],
        )  # fmt: skip

    def held_out(self) -> NDArray[np.bool_]:
        """Every fifth block of ``BLOCK_STEPS`` steps."""
        return (np.arange(len(self)) // BLOCK_STEPS) % 5 == 4


def make_steps(ns: Floats, arrivals: Ints, chunk_step: Ints, starts: Ints, counts: Ints) -> Steps:
    """Totals a step from its chunks."""
    size = len(ns)
    tokens = np.bincount(chunk_step, weights=counts, minlength=size).astype(np.int64)
    chunks = np.bincount(chunk_step, minlength=size).astype(np.int64)
    return Steps(ns, tokens, chunks, arrivals, chunk_step, starts, counts)


def join(parts: Iterable[Steps]) -> Steps:
    """Several runs' steps, one after the other."""
    parts = list(parts)
    offsets = np.cumsum([0, *(len(part) for part in parts[:-1])])
    columns: dict[str, list[Any]] = {name: [] for name in Steps.__slots__}
    for part, offset in zip(parts, offsets, strict=True):
        for name in columns:
            values = getattr(part, name)
            columns[name].append(values + offset if name == "chunk_step" else values)
    return Steps(**{name: np.concatenate(values) for name, values in columns.items()})


def steps_of_run(run: Run) -> Steps:
    """Steps of a run with a real model.

    Raises:
        UsageError: the run is simulated, or made no step.
    """
    if run.manifest.get("clock") != "real":
        raise UsageError(f"{run.path}: its clock is {run.manifest.get('clock')}: nothing was measured, so nothing fits")
    steps = (
        run.steps.filter(pl.col("prefill_tokens") + pl.col("decode_tokens") > 0)
        .select("step", "t_start_ns", "t_done_ns", (pl.col("num_running") + pl.col("num_waiting")).alias("left"))
        .sort("step")
        .collect()
    )
    if not len(steps):
        raise UsageError(f"{run.path}: no step computed anything")
    begins, ends, left = (steps[name].to_numpy() for name in ("t_start_ns", "t_done_ns", "left"))
    until = ends.copy()
    follows = left[:-1] > 0  # the loop goes on at once: what lies between two steps belongs to the first
    until[:-1][follows] = begins[1:][follows]
    events = run.events.filter(pl.col("kind").is_in(["chunk", "arrived"])).select(
        "step", "t_ns", "kind", "num_tokens", "age_steps"
    )
    found = events.collect()
    # age_steps of a chunk is its start position.
    chunks = found.filter(pl.col("kind") == "chunk").sort("step", maintain_order=True)
    arrived = found.filter(pl.col("kind") == "arrived")["t_ns"].to_numpy()
    place = np.searchsorted(begins, arrived, side="right") - 1
    arrivals = np.bincount(np.clip(place, 0, len(begins) - 1), minlength=len(begins)).astype(np.int64)
    chunk_step = np.searchsorted(steps["step"].to_numpy(), chunks["step"].to_numpy()).astype(np.int64)
    return make_steps(
        (until - begins).astype(np.float64),
        arrivals,
        chunk_step,
        chunks["age_steps"].to_numpy().astype(np.int64),
        chunks["num_tokens"].to_numpy().astype(np.int64),
    )
