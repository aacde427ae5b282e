"""Fits a machine's constants to measured steps: non-negative, robust, with the error on steps it has not seen.

For a given crossover (tokens above which the matrices are bound by arithmetic, query tokens above which attention is)
the cost of a step is linear in the constants. The crossovers are searched on a grid, everything else is least squares.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import numpy as np

from kvtop.cost.nnls import nnls
from kvtop.cost.steps import Floats, Steps
from kvtop.engine.errors import UsageError
from kvtop.engine.executors.sim_cost import NS, Machine, Work

MIN_STEPS = 20
MIN_HELD_OUT = 5
FREE = 1e18
"""A rate, per second, for what cost nothing that could be measured."""
CLIP = 0.5  # relative error beyond which a step counts for less: another program, a page fault
ROUNDS = 6
CROSSOVERS = (0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
NAMES = ("matrices", "attention", "step_ns", "seq_ns", "ingest_ns")


@dataclass(frozen=True, slots=True)
class StepErrors:
    """Of single steps, relative; ``total`` is that of their sum, signed."""

    num_steps: int
    p50: float
    p90: float
    total: float


@dataclass(frozen=True, slots=True)
class Fit:
    """``fitted`` are the errors on all steps, which the constants come from; ``held_out`` those of a fit to four fifths
    on the last fifth, None with too few steps. ``crossover_*``: in tokens of a step, query tokens of a chunk."""

    machine: Machine
    fitted: StepErrors
    held_out: StepErrors | None
    crossover_tokens: int
    crossover_queries: int
    unseen: tuple[str, ...]  # constants that no step says anything about


def fit_machine(steps: Steps, work: Work) -> Fit:
    """Constants of ``Machine`` from ``steps``.

    Raises:
        UsageError: fewer than ``MIN_STEPS`` steps.
    """
    if len(steps) < MIN_STEPS:
        raise UsageError(f"{len(steps)} steps were measured, expected at least {MIN_STEPS}: calibrate on a longer run")
    best = _best(steps, work)
    held = steps.held_out()
    held_out = None
    if held.sum() >= MIN_HELD_OUT and (~held).sum() >= MIN_STEPS:
        without = _best(steps.subset(~held), work)
        held_out = errors(without.machine, steps.subset(held), work)
    return replace(best, held_out=held_out)


def predict(machine: Machine, steps: Steps, work: Work) -> Floats:
    """Cost of each step, ns: the same sum as ``CostModel.step_ns``, over arrays."""
    num_bytes, flops = steps.attention(work)
    chunk_s = np.maximum(num_bytes / machine.kv_bytes_s, flops / machine.attention_flops_s)
    attention_s = np.bincount(steps.chunk_step, weights=chunk_s, minlength=len(steps))
    matrices_s = np.maximum(
        work.weight_bytes / machine.weight_bytes_s, work.flops_per_token * steps.tokens / machine.flops_s
    )
    fixed = machine.step_ns + machine.seq_ns * steps.chunks + machine.ingest_ns * steps.arrivals
    return fixed + (matrices_s + attention_s) * NS


def errors(machine: Machine, steps: Steps, work: Work) -> StepErrors:
    predicted = predict(machine, steps, work)
    relative = np.abs(predicted / steps.ns - 1)
    p50, p90 = np.quantile(relative, [0.5, 0.9])
    return StepErrors(len(steps), float(p50), float(p90), float(predicted.sum() / steps.ns.sum() - 1))


def _best(steps: Steps, work: Work) -> Fit:
    """The grid's best point; of nearly equal ones the one with the smallest crossovers, which explains more."""
    num_bytes, flops = steps.attention(work)
    # Operations for each byte of K and V, by one query token: the same in windowed layers and in others.
    ops_per_pair = work.flops_per_pair + work.window_flops_per_pair
    intensity = ops_per_pair / work.pool_bytes_per_token
    largest = int(steps.tokens.max())
    tried = []
    for tokens in [t for t in CROSSOVERS if t <= 2 * largest]:
        for queries in [q for q in CROSSOVERS if q <= 256]:
            # max(bytes / K, flops / A) with K and A so that a chunk of ``queries`` tokens takes equally long by both
            ops = np.maximum(num_bytes * intensity * queries, flops)
            columns = np.stack(
                [
                    work.flops_per_token * np.maximum(steps.tokens, tokens),
                    np.bincount(steps.chunk_step, weights=ops, minlength=len(steps)).astype(np.float64),
                    np.ones(len(steps), dtype=np.float64),
                    steps.chunks.astype(np.float64),
                    steps.arrivals.astype(np.float64),
                ],
                axis=1,
            )
            loss, x = _robust(columns, steps.ns)
            tried.append((loss, tokens, queries, x))
    least = min(entry[0] for entry in tried)
    loss, tokens, queries, x = next(entry for entry in tried if entry[0] <= least * 1.002)
    machine = _machine(x, work, tokens, queries, intensity)
    unseen = tuple(name for name, value in zip(NAMES, x, strict=True) if value == 0)
    return Fit(machine, errors(machine, steps, work), None, tokens, queries, unseen)


def _robust(columns: Floats, ns: Floats) -> tuple[float, Floats]:
    """Relative least squares (weights 1 / prediction), steps far off counting less each round.

    Returns the mean of the clipped squared relative errors, and the coefficients in ns.
    """
    size = ns
    weights = np.ones(len(ns))
    x = np.zeros(columns.shape[1])
    for _ in range(ROUNDS):
        scale = np.sqrt(weights) / size
        x = nnls(columns * scale[:, None], ns * scale)
        size = np.maximum(columns @ x, 1.0)
        off = np.abs(ns / size - 1)
        weights = np.where(off > CLIP, CLIP / np.maximum(off, 1e-12), 1.0)
    off = np.abs(ns / size - 1)
    loss = np.where(off > CLIP, CLIP * (2 * off - CLIP), off**2)
    return float(loss.mean()), x


def _machine(x: Floats, work: Work, tokens: int, queries: int, intensity: float) -> Machine:
    matrices, attention, step_ns, seq_ns, ingest_ns = (float(value) for value in x)
    flops_s = NS / matrices if matrices else FREE
    attention_flops_s = NS / attention if attention else FREE
    read_s = work.flops_per_token * tokens / flops_s  # the weights take as long as this many tokens
    kv_s = intensity * queries / attention_flops_s  # a byte
    return Machine(
        weight_bytes_s=work.weight_bytes / read_s if read_s and matrices else FREE,
        flops_s=flops_s,
        kv_bytes_s=1 / kv_s if kv_s and attention else FREE,
        attention_flops_s=attention_flops_s,
        step_ns=step_ns,
        seq_ns=seq_ns,
        ingest_ns=ingest_ns,
    )


def as_json(fit: Fit) -> dict[str, object]:
    """The errors as they stand in the cost file."""
    return {
        "fitted": asdict(fit.fitted),
        "held_out": None if fit.held_out is None else asdict(fit.held_out),
        "crossover_tokens": fit.crossover_tokens,
        "crossover_queries": fit.crossover_queries,
        "cost_nothing": list(fit.unseen),
    }
