"""The files that a point reads, so that it can run on a machine that does not have them."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvtop.engine.errors import UsageError
from kvtop.engine.policies.registry import names_a_file
from kvtop.run.spec import RunSpec
from kvtop.workloads.builtins import BUILTINS

POLICY_KEYS = ("policy", "batch_policy", "victim", "eviction")

Inputs = dict[str, bytes]
"""Content by a relative path below one folder."""


def collect(spec: RunSpec) -> Inputs:
    """Read trace or workload spec (with the trace that it names by a relative path) and policy files.

    Raises:
        UsageError: one that cannot be read.
    """
    found: Inputs = {}
    for place, path in _files(spec):
        try:
            found[place] = path.read_bytes()
        except OSError as error:
            raise UsageError(f"{path}: cannot be sent to the workers: {error.strerror or error}") from None
    return found


def unpack(spec: RunSpec, inputs: Inputs, folder: Path) -> RunSpec:
    """Write ``inputs`` below ``folder``, and return ``spec`` with the names of the files there."""
    for place, data in inputs.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(data)
    engine = dict(spec.engine)
    for key in POLICY_KEYS:
        if names_a_file(name := str(engine.get(key, ""))):
            engine[key] = f"{folder / _policy_place(key, name)}:{name.rpartition(':')[2]}"
    workload = spec.workload
    if (place := _workload_place(workload.name)) in inputs:
        workload = msgspec.structs.replace(workload, name=str(folder / place))
    return msgspec.structs.replace(spec, engine=engine, workload=workload)


def _files(spec: RunSpec) -> Iterator[tuple[str, Path]]:
    """(place, file) of each."""
    name = spec.workload.name
    if name not in BUILTINS:
        path = Path(name).expanduser()
        yield _workload_place(name), path
        # An absolute path in a workload spec is taken as it is: the trace must be there on every node.
        if (trace := _trace_of(path)) is not None and not trace.is_absolute():
            yield os.path.normpath(Path(_workload_place(name)).parent / trace), path.parent / trace
    for key in POLICY_KEYS:
        if names_a_file(policy := str(spec.engine.get(key, ""))):
            yield _policy_place(key, policy), Path(policy.rpartition(":")[0]).expanduser()


def _trace_of(path: Path) -> Path | None:
    """What a workload spec names as its trace; it was read before, and is sound."""
    if path.suffix != ".toml":
        return None
    named = tomllib.loads(path.read_text()).get("path")
    return None if named is None else Path(named).expanduser()


def _workload_place(name: str) -> str:
    """Deep enough that a relative path upwards stays inside."""
    return f"workload/{'below/' * 8}{Path(name).name}"


def _policy_place(key: str, name: str) -> str:
    return f"{key}/{Path(name.rpartition(':')[0]).name}"
