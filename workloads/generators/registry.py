"""The generators: one file and one line here for each."""

from __future__ import annotations

from typing import Any

from kvtop.engine.errors import UnknownName
from kvtop.workloads.generators.base import Generator
from kvtop.workloads.generators.mix import MIX
from kvtop.workloads.generators.poisson import POISSON
from kvtop.workloads.rows import RowSet

GENERATORS: dict[str, Generator] = {
    MIX.name: MIX,
    POISSON.name: POISSON,
}


def generate(kind: str, options: dict[str, Any], seed: int) -> RowSet:
    """Make a generator's rows; options that are not given have their defaults.

    Raises:
        UnknownName: no such generator, or no such option.
        WorkloadError: a missing option, or a value out of range.
    """
    if kind not in GENERATORS:
        raise UnknownName("generator", kind, GENERATORS)
    generator = GENERATORS[kind]
    for key in options:
        if key not in generator.options:
            raise UnknownName(f"{kind} option", key, generator.options)
    return generator.generate({**generator.options, **options}, seed)
