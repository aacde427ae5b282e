"""The generators: one line here for each."""

from __future__ import annotations

from typing import Any

from kvtop.engine.errors import UnknownName
from kvtop.workloads.generators.base import Generator
from kvtop.workloads.generators.synthetic import MIX, SYNTHETIC
from kvtop.workloads.rows import RowSet

GENERATORS: dict[str, Generator] = {
    SYNTHETIC.name: SYNTHETIC,
    MIX.name: MIX,
}


def generate(kind: str, options: dict[str, Any], seed: int) -> RowSet:
    """Make a generator's rows.

    Raises:
        UnknownName: no such generator, or no such option.
        WorkloadError: a missing option, or a value out of range.
    """
    if kind not in GENERATORS:
        raise UnknownName("generator", kind, GENERATORS)
    generator = GENERATORS[kind]
    valid = set(generator.keys(options))
    for key in options:
        if key not in valid:
            raise UnknownName(f"{kind} option", key, valid)
    return generator.generate(options, seed)
