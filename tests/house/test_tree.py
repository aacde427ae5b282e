"""Habits of the tree that a reader relies on: short files, nothing of one machine, links that lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from import_graph import LINKED, ROOT

FOLDERS = ("kvtop", *LINKED, "tests", "docs", "results", ".ci")
MAX_LINES = 450
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root|home|Users|opt/wheels|opt/pypi)/\w")
REGISTRY_HOST = re.compile(r"(?:pypi|pythonhosted|npmjs)\.(?:org|com)")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def tree_files() -> list[Path]:
    """Text files that belong to the project: no build output, no recorded run, no link."""
    files = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        files += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [path for path in files if _belongs(path)]


def _belongs(path: Path) -> bool:
    relative = path.relative_to(ROOT)
    linked = relative.parts[0] == "kvtop" and relative.parts[1] in LINKED
    recorded = relative.parts[0] == "results" and len(relative.parts) > 2
    generated = "__pycache__" in relative.parts
    return not (linked or recorded or generated)


def text_of(path: Path) -> str:
    """The text of a file, "" when it is none (compressed traces, recordings)."""
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return ""


def documents() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in tree_files() if path.suffix == ".md")


def anchors(text: str) -> set[str]:
    """Fragments that the headings of a document offer."""
    headings = re.findall(r"^#+\s+(.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_source_files_can_be_read_in_one_go() -> None:
    sources = [path for path in tree_files() if path.suffix == ".py" and "tests" not in path.parts]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources}
    assert {name: count for name, count in lengths.items() if count > MAX_LINES} == {}


@pytest.mark.parametrize("pattern", [MACHINE_PATH, REGISTRY_HOST], ids=["path of a machine", "host of a registry"])
def test_no_file_names_a(pattern: re.Pattern[str]) -> None:
    found = [f"{path.relative_to(ROOT)}: {m[0]}" for path in tree_files() if (m := pattern.search(text_of(path)))]
    assert found == []


def test_the_documents_are_there() -> None:
    assert {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/definitions.md"} <= set(documents())


@pytest.mark.parametrize("name", documents())
def test_relative_links_lead_somewhere(name: str) -> None:
    document = ROOT / name
    broken = []
    for target in LINK.findall(document.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, fragment = target.partition("#")
        path = document.parent / file if file else document
        if not path.exists() or (fragment and fragment not in anchors(path.read_text())):
            broken.append(target)
    assert broken == []
