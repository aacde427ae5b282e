"""What a command loads, and how much CPU time it takes: measured in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = ("torch", "triton", "transformers", "textual", "polars", "numpy")
CPU_BUDGET_S = 0.3
SLACK = 3  # a shared machine may be slow; the budget itself holds on an idle one


def loaded_by(code: str) -> set[str]:
    """Heavy modules in a fresh interpreter after ``code``."""
    script = f"import sys\n{code}\nprint(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_the_command_line_loads_nothing_heavy() -> None:
    assert loaded_by("import kvtop.cli.main") == set()


@pytest.mark.parametrize("name", ["live", "bench", "compare", "calc", "policies", "models", "workloads"])
def test_help_of_no_command_loads_anything_heavy(name: str) -> None:
    assert loaded_by(f"from kvtop.cli.main import main; main([{name!r}, '--help'])") == set()


def test_listing_policies_loads_no_torch() -> None:
    assert not loaded_by("from kvtop.cli.main import main; main(['policies'])") & {"torch", "triton", "transformers"}


def test_bench_loads_neither_textual_nor_torch() -> None:
    assert not loaded_by("import kvtop.bench") & {"textual", "torch", "triton", "transformers"}


def test_compare_loads_no_torch() -> None:
    assert not loaded_by("import kvtop.analysis.compare, kvtop.analysis.summary") & {
        "textual",
        "torch",
        "triton",
        "transformers",
    }


@pytest.mark.parametrize("words", [["--help"], ["calc", "--model", "llama-3-70b", "--gpu", "h100-80gb", "--tp", "4"]])
def test_help_and_calc_answer_at_once(words: list[str]) -> None:
    assert min(cpu_s(words) for _ in range(3)) < CPU_BUDGET_S * SLACK


def cpu_s(words: list[str]) -> float:
    """CPU time that the command takes. What else goes on here makes it more: the least of several is its own."""
    before = os.times()
    subprocess.run([sys.executable, "-m", "kvtop", *words], capture_output=True, timeout=60, check=True)
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system


def test_a_closed_pipe_ends_quietly() -> None:
    command = f"{sys.executable} -m kvtop models --json | head -c 1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "{"
    assert done.stderr == ""


def test_python_dash_m_gives_the_exit_code() -> None:
    done = subprocess.run([sys.executable, "-m", "kvtop", "nonsense"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
