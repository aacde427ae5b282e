"""What importing a module loads, each seen in a fresh process: front ends stay light, whatever they import in turn."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from import_graph import ROOT, module_name, source_files

HEAVY = {"torch", "triton", "transformers"}
FOLDERS = ("kvtop/cli", "kvtop/tui", "kvtop/state", "kvtop/results")
PRINT_LOADED = (
    "import sys, json, importlib; [importlib.import_module(m) for m in sys.argv[1:]]; print(json.dumps([*sys.modules]))"
)


def loaded_by(*modules: str) -> set[str]:
    """Top-level names in ``sys.modules`` after importing ``modules``."""
    return {name.split(".")[0] for name in modules_loaded_by(*modules)}


def modules_loaded_by(*modules: str) -> set[str]:
    command = [sys.executable, "-c", PRINT_LOADED, *modules]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "module",
    [
        "kvtop.cli.main",
        "kvtop.engine.config",
        "kvtop.engine.errors",
        "kvtop.engine.events",
        "kvtop.engine.policies.registry",
        "kvtop.engine.types",
        "kvtop.run.session",
        "kvtop.state.reduce",
        "kvtop.tui.app",
        "kvtop.workloads.load",
    ],
)
def test_no_torch_is_loaded_by(module: str) -> None:
    assert HEAVY & loaded_by(module) == set()


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_module_of_a_front_end_loads_torch(folder: str) -> None:
    assert HEAVY & loaded_by(*map(module_name, source_files(folder))) == set()


def test_bench_loads_no_textual() -> None:
    loaded = loaded_by("kvtop.bench", "kvtop.cli.bench", "kvtop.cli.compare")
    assert (HEAVY | {"textual"}) & loaded == set()


def test_the_probe_sees_what_is_loaded() -> None:
    assert "textual" in loaded_by("kvtop.tui.app")


LATER = {
    *("numpy", "polars", "psutil", "pynvml", "aiohttp", "textual_serve"),
    *("textual.widgets._text_area", "textual.document", "kvtop.tui.screens.ask", "kvtop.tui.screens.why"),
    *("kvtop.tui.widgets.block_map", "kvtop.state.prefix_tree", "kvtop.state.block_orders"),
}
"""What other screens and dialogs need, and the first paint does not."""


def test_the_first_paint_loads_nothing_that_is_only_shown_later() -> None:
    loaded = modules_loaded_by("kvtop.cli.live", "kvtop.tui.launch", "kvtop.tui.app", "kvtop.tui.screens.overview")
    assert "kvtop.tui.panels.pool" in loaded
    assert loaded & LATER == set()


BEGUN = """\
import sys, json
from kvtop.cli import live, run_options
from kvtop.cli.parser import Parser
parser = Parser("kvtop live", "", "")
live.add_arguments(parser)
args = parser.parse(sys.argv[1:])
run_options.check_workload(run_options.run_spec(args, args.workload, args.policy).workload)
print(json.dumps([*sys.modules]))
"""


@pytest.mark.parametrize(("words", "is_read"), [(["--seed", "3"], False), (["--limit", "5"], True)])
def test_the_default_run_is_begun_without_reading_its_workload_or_looking_for_its_model(words, is_read) -> None:
    command = [sys.executable, "-c", BEGUN, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert ("kvtop.workloads.load" in loaded) == is_read
    assert not {"importlib.metadata", "kvtop.engine.executors.models"} & loaded
