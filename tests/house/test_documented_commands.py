"""What the documents tell a reader to type is accepted: every `kvtop` line by its parser, every `make` target, every
Python example by running it."""

from __future__ import annotations

import re
import shlex
from importlib import import_module

import pytest
from import_graph import ROOT

from kvtop.cli.main import main
from kvtop.cli.parser import Parser
from kvtop.cli.registry import COMMANDS, DEFAULT_COMMAND
from kvtop.engine.policies import registry
from kvtop.workloads.load import builtin_workloads

DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    *(
        f"docs/{name}.md"
        for name in (
            "attach",
            "definitions",
            "effects",
            "hit-rate",
            "memory-baselines",
            "metrics",
            "serve-api",
            "report",
            "statistics",
            "tour",
            "traces",
            "why",
            "workloads",
        )
    ),
)
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)


def blocks(language: str, *names: str) -> list[str]:
    """Fenced blocks of one language in some documents."""
    found = [match for name in names for match in FENCE.findall((ROOT / name).read_text())]
    return [text for tag, text in found if tag == language]


def shell_lines(*names: str) -> list[str]:
    lines = [line.split("  #")[0].strip() for text in blocks("sh", *names) for line in text.splitlines()]
    return [line for line in lines if line]


def examples(command: str) -> list[str]:
    """Example lines of a command's help."""
    text = getattr(import_module(COMMANDS[command][0]), "EXAMPLES", "")
    return [line.split("   ")[0].partition("|")[0].strip() for line in text.strip().splitlines()]


def kvtop_lines() -> list[str]:
    lines = [line for line in shell_lines(*DOCUMENTS) if line.split()[0] == "kvtop"]
    return lines + [line for command in COMMANDS for line in examples(command)]


@pytest.mark.parametrize("line", kvtop_lines())
def test_a_documented_kvtop_command_is_accepted(line: str) -> None:
    words = shlex.split(line.partition(" > ")[0])[1:]
    if words == ["--help"] or words == ["COMMAND", "--help"]:
        assert main(["--help"]) == 0
        return
    name = words.pop(0) if words and not words[0].startswith("-") else DEFAULT_COMMAND
    module = import_module(COMMANDS[name][0])
    parser = Parser(f"kvtop {name}")
    module.add_arguments(parser)
    args = parser.parse(words)
    for workload in names_in(args, "workload"):
        assert workload in {*builtin_workloads(), "default"} or "." in workload, "neither built-in nor a file name"
    for policy in names_in(args, "policy"):
        registry.QUEUE.get(policy)


def names_in(args: object, option: str) -> list[str]:
    """Values of an option that some commands allow once and others repeatedly."""
    value = getattr(args, option, None)
    return [] if value is None else [value] if isinstance(value, str) else value


def test_documented_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    lines = [line.split() for line in shell_lines(*DOCUMENTS)]
    used = {words[1] for words in lines if words[0] == "make"}
    assert {"run", "test", "check"} <= used
    assert used <= targets


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if not line.startswith("#")]
    assert script[-1] in shell_lines("README.md")


@pytest.mark.parametrize("source", blocks("python", "README.md"))
def test_a_python_example_runs(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(source, "README.md", "exec"), {})
    assert "1000, 1001, 1002" in capsys.readouterr().out
