"""Policies stay small, and the documentation has them all and runs."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import pytest

from kvtop.cli import bench
from kvtop.cli.parser import Parser
from kvtop.engine.policies.registry import BATCH, EVICTION, QUEUE, VICTIM, Registry

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "policies.md").read_text()
KINDS: list[Registry] = [QUEUE, BATCH, VICTIM, EVICTION]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_policy_is_under_thirty_lines_with_what_it_prepares(kind: Registry) -> None:
    for name in kind.meanings():
        policy = kind.get(name)[0]
        if kind is not BATCH:
            lines = inspect.getsource(policy.rule).splitlines()
            lines += inspect.getsource(policy.prepare).splitlines() if policy.prepare else []
            assert len(lines) < 40, name
            assert len(inspect.getsource(policy.rule).splitlines()) < 30, name


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_policy_has_a_row_under_its_heading(kind: Registry) -> None:
    section = DOCUMENT.split(f"## {kind.kind.capitalize()} policies")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `([^`]+)` \|", section, flags=re.MULTILINE)) == kind.meanings().keys()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_meaning_is_one_short_line(kind: Registry) -> None:
    for name, meaning in kind.meanings().items():
        assert "\n" not in meaning
        assert 20 <= len(meaning) <= 100, name


def test_the_documented_example_is_the_file_and_the_commands_parse() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", DOCUMENT, flags=re.MULTILINE | re.DOTALL)
    assert code.strip() in (ROOT / "docs" / "examples" / "my_policy.py").read_text()
    commands = re.findall(r"^kvtop bench (.*?)$", DOCUMENT, flags=re.MULTILINE)
    assert any("my_policy.py" in command for command in commands)
    for command in commands:
        parser = Parser("kvtop bench")
        bench.add_arguments(parser)
        for policy in parser.parse(shlex.split(command)).policy or ():
            QUEUE.get(policy.replace("docs/", f"{ROOT}/docs/"))


def test_links_of_the_document_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", DOCUMENT):
        assert (ROOT / "docs" / target).exists(), target
