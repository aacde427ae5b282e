"""From a workload's name to a source of requests: resolve, read, cut, scale, fit, hash.

WORKLOAD is, in this order: a built-in name (write ``./name`` for a file of that name), a ``.toml`` spec, a trace file.
A built-in or a TOML spec may carry scales, a limit and a seed of its own; those of WorkloadSpec come on top: scales
multiply, the smaller limit holds, seeds add up.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, field
from pathlib import Path

from kvtop.engine.errors import UnknownName, WorkloadError
from kvtop.engine.types import Source
from kvtop.workloads.builtins import BUILTINS, builtin_workloads
from kvtop.workloads.formats.registry import FORMATS
from kvtop.workloads.identity import workload_hash
from kvtop.workloads.recipe import Recipe
from kvtop.workloads.rows import Row
from kvtop.workloads.scale import check_factor, cut, fit, only_sharing, scale_lengths, scale_time
from kvtop.workloads.sessions import as_replayed, predecessors
from kvtop.workloads.spec import WorkloadSpec
from kvtop.workloads.spec_file import read_spec_file

__all__ = ["Workload", "builtin_workloads", "load_workload", "resolve"]


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests ready to be served. ``hash`` names exactly what is served; ``source()`` starts it from the beginning."""

    name: str
    rows: list[Row] = field(repr=False)
    hash: str
    trace_sha256: str | None  # of the trace file as on disk; None: generated
    notices: list[str]
    seed: int
    vocab_size: int
    replay: str = "closed"

    @property
    def num_chained(self) -> int:
        """Requests that wait for others to end; 0: an open loop."""
        return len(predecessors(self.rows))

    @property
    def num_requests(self) -> int:
        return len(self.rows)

    @property
    def span_ns(self) -> int:
        """From the first arrival to the last; where turns wait for answers, as if these took no time."""
        return self.rows[-1].arrival_ns

    def source(self) -> Source:
        """A fresh source at the first request; any number of them may be made."""
        from kvtop.workloads.replay import ReplaySource  # numpy is loaded only where requests are made
        from kvtop.workloads.tokens import TokenMaker

        return ReplaySource(self.rows, TokenMaker(self.seed, self.vocab_size))


def load_workload(spec: WorkloadSpec, *, vocab_size: int, max_model_len: int | None = None) -> Workload:
    """Load what ``spec`` names, cut and scaled. Reads the whole trace; makes no prompt yet.

    ``vocab_size`` bounds the token ids. With ``max_model_len`` (tokens), ``spec.too_long`` is applied and counted.

    Raises:
        UnknownName: no such built-in, format, policy, replay or key; names the nearest.
        WorkloadError: a file that cannot be read, a malformed row (with its number), or an impossible value.
    """
    if vocab_size < 1:
        raise WorkloadError(f"vocab_size is {vocab_size}, expected at least 1")
    user_time = check_factor(spec.time_scale, "time_scale", zero=True)
    user_length = check_factor(spec.length_scale, "length_scale")
    recipe = resolve(spec.name, spec.format)
    time_factor = user_time * check_factor(recipe.time_scale, "time_scale", zero=True)
    length_factor = user_length * check_factor(recipe.length_scale, "length_scale")
    seed = recipe.seed + spec.seed
    mode = spec.replay or recipe.replay or "closed"
    made = as_replayed(recipe.rows(seed, spec.arrival_rate), mode, recipe.name)
    notices = list(made.notices)
    rows = made.rows
    if recipe.sharing_only:
        rows, more = only_sharing(rows)
        notices += more
    for limit in (recipe.limit, spec.limit):
        rows, more = cut(rows, limit)
        notices += more
    rows, more = scale_lengths(scale_time(rows, time_factor), length_factor)
    notices += more
    rows, more = fit(rows, spec.too_long, max_model_len)
    notices += more
    try:
        predecessors(rows)
    except WorkloadError as error:
        raise WorkloadError(str(error), path=recipe.path or recipe.name) from None
    digest = workload_hash(rows, seed=seed, vocab_size=vocab_size)
    return Workload(recipe.name, rows, digest, made.trace_sha256, notices, seed, vocab_size, mode)


def resolve(name: str, format_name: str | None = None) -> Recipe:
    """What a WORKLOAD argument stands for; reads a TOML spec, but no trace.

    Raises:
        UnknownName, WorkloadError: neither a built-in nor a file; a format for something that is no trace file.
    """
    if format_name is not None and format_name not in FORMATS:
        raise UnknownName("trace format", format_name, FORMATS)
    is_spec = name.endswith(".toml")
    if format_name is not None and (name in BUILTINS or is_spec):
        what = "a workload spec" if is_spec else "a built-in workload"
        raise WorkloadError(f"a format is given ({format_name}), but {name!r} is {what}, not a trace file")
    if name in BUILTINS:
        return BUILTINS[name].recipe
    path = _existing(name)
    if is_spec:
        return read_spec_file(path)
    return Recipe(name=_trace_name(path), path=path, format=format_name)


def _existing(name: str) -> Path:
    path = Path(name).expanduser() if name.startswith("~") else Path(name)
    try:
        found = bool(name) and (path.exists() or path.is_symlink())
    except (OSError, ValueError):  # unreadable folder, name too long, zero byte: not a file we could open
        found = "\0" not in name and os.sep in name
    if found:
        return path
    if os.sep in name or path.suffix in (".toml", ".gz", ".jsonl", ".csv", ".json"):
        near = difflib.get_close_matches(path.name, BUILTINS, n=1, cutoff=0.4)
        hint = f"; did you mean the built-in {near[0]!r}?" if near else ""
        raise WorkloadError(f"no such file{hint}", path=name.replace("\0", "\\0"))
    raise UnknownName("workload or trace file", name, BUILTINS)


def _trace_name(path: Path) -> str:
    """The file's name without what says how it is stored."""
    name = path.name.removesuffix(".gz")
    return name.removesuffix(".jsonl").removesuffix(".csv")
