"""What a point of a bench is, as plain data to be hashed: the same wherever its files lie, whenever it runs.

Files that can be read whole (traces, workload specs, policies) count by their content. A model counts by its name: a
directory whose weights are replaced keeps it.
"""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from kvtop.engine.errors import KvtopError
from kvtop.engine.policies.registry import with_labels
from kvtop.run.spec import RunSpec
from kvtop.workloads.spec import WorkloadSpec

READ_BYTES = 1 << 20


def point_identity(spec: RunSpec, **changes: Any) -> dict[str, Any]:
    """``spec`` with ``changes``, without defaults and without what does not change the run itself.

    A field that is added to RunSpec later changes no identity as long as it keeps its default.
    """
    spec = msgspec.structs.replace(
        spec, engine=with_labels(spec.engine), run_dir=None, start_paused=False, concurrent_points=1, tokens=False,
        slo=[], warmup=0, brief=False, **changes,
    )  # fmt: skip
    return {**_told(spec), "workload": {**_told(spec.workload), **_content(spec.workload)}}


def _told(values: msgspec.Struct) -> dict[str, Any]:
    """Fields that differ from their defaults."""
    defaults = {field.name: _default(field) for field in msgspec.structs.fields(type(values))}
    plain = msgspec.to_builtins(values)
    return {name: value for name, value in plain.items() if getattr(values, name) != defaults[name]}


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default


def _content(spec: WorkloadSpec) -> dict[str, Any]:
    """What its name stands for; the name alone where it stands for nothing (loading it will say so)."""
    from kvtop.workloads.load import resolve  # only where a run is named: it reads the gallery

    try:
        recipe = resolve(spec.name, spec.format)
        trace = None if recipe.path is None else _sha256(recipe.path)
        options = recipe.options_by(_sha256)
    except (KvtopError, OSError):
        return {}
    told = _told(msgspec.structs.replace(recipe, path=None, spec_path=None, options=options))
    told.pop("about", None)
    return {"name": recipe.name, "recipe": told, "trace": trace}


def _sha256(path: Path) -> str:
    stat = os.stat(path)
    return _sha256_of(str(path.resolve()), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=64)
def _sha256_of(path: str, mtime_ns: int, size: int) -> str:
    """Of the file's bytes; every replicate of a point asks, a long trace is read once."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(READ_BYTES):
            digest.update(data)
    return digest.hexdigest()
