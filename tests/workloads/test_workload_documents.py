"""docs/workloads.md says what there is: its specs load, its tables have every option with the default it really has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvtop.workloads.generators.arrivals import ARRIVALS
from kvtop.workloads.generators.base import REQUIRED
from kvtop.workloads.generators.distributions import DISTRIBUTIONS
from kvtop.workloads.generators.stream import DEFAULT_COUNT, STREAM
from kvtop.workloads.generators.structures import STRUCTURES
from kvtop.workloads.load import load_workload
from kvtop.workloads.spec import WorkloadSpec
from kvtop.workloads.spec_file import COMMON

DOCUMENT = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text()
SPECS = re.findall(r"^```toml\n(.*?)^```", DOCUMENT, flags=re.MULTILINE | re.DOTALL)


def tables(text: str) -> dict[str, str]:
    """First cell -> second cell of every row of the tables in ``text``."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return {first.strip(" `"): second.strip() for first, second, *_ in rows}


def section(title: str) -> str:
    return DOCUMENT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def structure(name: str) -> str:
    return section("Structures").partition(f"\n**{name}**")[2].partition("\n**")[0]


def default_of(cell: str) -> Any:
    return None if cell == "none" else tomllib.loads(f"x = {cell.strip('`')}")["x"]


@pytest.mark.parametrize("spec", SPECS)
def test_a_spec_of_the_document_loads(spec: str, tmp_path: Path):
    path = tmp_path / "work.toml"
    path.write_text(spec)
    assert load_workload(WorkloadSpec(name=str(path)), vocab_size=1000).num_requests > 4


def test_there_are_specs():
    assert len(SPECS) >= 4


def test_every_option_of_a_stream_stands_there_with_its_default():
    found = tables(section("A stream"))
    counts = {shape.counted: DEFAULT_COUNT for shape in STRUCTURES.values()}
    assert {key: default_of(cell) for key, cell in found.items()} == {**STREAM, **counts}


@pytest.mark.parametrize("name", list(STRUCTURES))
def test_every_option_of_a_structure_stands_there_with_its_default(name: str):
    found = tables(structure(name))
    for key, default in STRUCTURES[name].options.items():
        if key not in found:
            assert f"`{key}`" in structure(name)
            assert STRUCTURES["single"].options[key] == default, "as above"
        else:
            assert default_of(found[key]) == default
    assert set(found) - set(STRUCTURES[name].options) <= {"lengths`, `n`, `num_beams`, `temperature"}


@pytest.mark.parametrize(("title", "pieces"), [("Arrivals", ARRIVALS), ("Distributions", DISTRIBUTIONS)])
def test_every_kind_stands_there_with_its_options(title: str, pieces: dict[str, Any]):
    found = tables(section(title))
    assert list(found) == list(pieces)
    for name, cell in found.items():
        told = dict(re.findall(r"`(\w+)`(?: = ([\w.]+))?", cell))
        assert set(told) == set(pieces[name].options)
        defaults = {key: value for key, value in pieces[name].options.items() if value not in (None, REQUIRED)}
        assert {key: float(value) for key, value in told.items() if value} == defaults


def test_every_key_of_the_file_stands_there():
    assert set(tables(section("The file"))) == {"kind", *COMMON}
