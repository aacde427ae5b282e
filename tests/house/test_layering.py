"""Who may import whom, held on the source text.

    kernels    -> torch, triton, numpy, llvmlite                nothing else of ours
    engine     -> kernels
    workloads  -> engine.types, engine.config, engine.errors    never the scheduler or an executor
    kvtop      -> workloads, and of the engine what FRONT lists; the engine itself only in the child process (CHILD)

What this sees: every ``import`` and ``from ... import`` at any depth (in functions, in classes, under TYPE_CHECKING),
relative imports, and ``import_module("literal")``. What it cannot see: a module name computed at run time (the
command table of ``kvtop.cli.registry``), and what an allowed import loads in turn. The tests in
``test_light_imports.py`` look at those, in a process of their own. Tests may import anything.
"""

from __future__ import annotations

import sys

import pytest
from import_graph import LINKED, ROOT, Import, imports_in, imports_of, source_files, within

TOPS = ("kernels", "engine", "workloads", "kvtop")
VOCABULARY = {"kvtop.engine.types", "kvtop.engine.config", "kvtop.engine.errors"}
# What front ends may know of the engine: its words, the tables of names (policies, models) a user chooses from, the
# arithmetic of a simulated step, and of the keys of blocks.
FRONT = {
    *VOCABULARY,
    "kvtop.engine.events",
    "kvtop.engine.keys",
    "kvtop.engine.policies.registry",
    "kvtop.engine.executors.models",
    "kvtop.engine.executors.sim_cost",
}
ALLOWED = {
    "kernels": {"kvtop.kernels"},
    "engine": {"kvtop.engine", "kvtop.kernels"},
    "workloads": {"kvtop.workloads", *VOCABULARY},
    "kvtop": FRONT,
}
# Files of the child process, and what they may import beyond FRONT.
CHILD = {
    "kvtop/run/child.py": {"kvtop.engine.worker", "kvtop.engine.recorder", "kvtop.engine.clock"},
    "kvtop/run/loop.py": {"kvtop.engine.engine"},
    "kvtop/run/answers.py": {"kvtop.engine.engine", "kvtop.engine.text"},
    "kvtop/run/prompts.py": {"kvtop.engine.engine"},
}
CHILD_MODULES = {"kvtop.run.child", "kvtop.run.loop", "kvtop.run.answers", "kvtop.run.prompts"}
KERNEL_LIBRARIES = {"torch", "triton", "numpy", "llvmlite"}


def violation(found: Import) -> str | None:
    """What is wrong with one import, or None."""
    top = found.path.split("/")[0]
    first = found.name.split(".")[0]
    if first in LINKED:
        return f"{found}: a bare name; write kvtop.{found.name}"
    if first != "kvtop":
        foreign = top == "kernels" and first not in KERNEL_LIBRARIES | sys.stdlib_module_names
        return f"{found}: kernels build on {', '.join(sorted(KERNEL_LIBRARIES))} only" if foreign else None
    if top == "kvtop" and within(found.name, CHILD_MODULES) and found.path not in CHILD:
        return f"{found}: belongs to the engine's process; kvtop.run.session starts it"
    if top == "kvtop" and not within(found.name, {"kvtop.engine", "kvtop.kernels"}):
        return None
    allowed = ALLOWED[top] | CHILD.get(found.path, set())
    return None if within(found.name, allowed) else f"{found}: {top} may import {', '.join(sorted(allowed))}"


def violations(imports: list[Import]) -> list[str]:
    return [text for found in imports if (text := violation(found))]


@pytest.mark.parametrize("top", TOPS)
def test_every_import_respects_the_layers(top: str) -> None:
    files = source_files(top)
    assert files, f"no source found in {top}/"
    assert violations([found for path in files for found in imports_of(path)]) == []


def test_tests_use_the_full_names() -> None:
    imports = [found for path in source_files("tests") for found in imports_of(path)]
    assert [str(found) for found in imports if found.name.split(".")[0] in LINKED] == []


@pytest.mark.parametrize(
    ("path", "module", "source"),
    [
        ("kernels/a.py", "kvtop.kernels.a", "import kvtop.engine.types"),
        ("kernels/a.py", "kvtop.kernels.a", "import transformers"),
        ("kernels/a.py", "kvtop.kernels.a", "from kvtop import engine"),
        ("engine/a.py", "kvtop.engine.a", "def f():\n    from kvtop.workloads.spec import WorkloadSpec"),
        ("engine/a.py", "kvtop.engine.a", "from kernels import paged_decode"),
        ("engine/policies/a.py", "kvtop.engine.policies.a", "from ...state import model"),
        ("workloads/a.py", "kvtop.workloads.a", "from kvtop.engine import scheduler"),
        ("workloads/a.py", "kvtop.workloads.a", "from ..engine.events import Event"),
        ("kvtop/tui/a.py", "kvtop.tui.a", "if TYPE_CHECKING:\n    from kvtop.engine.engine import Engine"),
        ("kvtop/tui/a.py", "kvtop.tui.a", "class A:\n    import engine"),
        ("kvtop/tui/a.py", "kvtop.tui.a", "import kvtop.run.child"),
        ("kvtop/run/session.py", "kvtop.run.session", "import kvtop.engine.worker"),
        ("kvtop/run/loop.py", "kvtop.run.loop", "from kvtop.engine.worker import build_engine"),
        ("kvtop/cli/a.py", "kvtop.cli.a", "importlib.import_module('kvtop.kernels.reference')"),
    ],
)
def test_a_forbidden_import_is_found(path: str, module: str, source: str) -> None:
    assert violations(list(imports_in(source, path, module)))


@pytest.mark.parametrize(
    ("path", "module", "source"),
    [
        ("kernels/a.py", "kvtop.kernels.a", "import math, torch\nfrom kvtop.kernels.reference import attend"),
        ("engine/a.py", "kvtop.engine.a", "from .types import Plan\nimport transformers"),
        ("workloads/a.py", "kvtop.workloads.a", "from kvtop.engine.types import RequestSpec\nimport polars"),
        ("kvtop/run/child.py", "kvtop.run.child", "from kvtop.engine.worker import build_engine"),
        ("kvtop/tui/a.py", "kvtop.tui.a", "from kvtop.engine.events import StepEvent\nfrom kvtop.state import model"),
    ],
)
def test_an_allowed_import_passes(path: str, module: str, source: str) -> None:
    assert violations(list(imports_in(source, path, module))) == []


@pytest.mark.parametrize("name", LINKED)
def test_folders_are_linked_and_are_no_packages_of_their_own(name: str) -> None:
    assert (ROOT / "kvtop" / name).is_symlink()
    assert (ROOT / "kvtop" / name).resolve() == ROOT / name
    assert not (ROOT / name / "__init__.py").exists(), "a bare import would pick it up; docs/adr/0001"
