"""The page: its numbers are those of ``kvtop compare``, it fetches nothing, and no name in it becomes markup."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_runs import small_run

from kvtop.cli.main import main
from kvtop.report.build import html, make_report

HOSTILE = "</script><script>alert(1)</script>\"'<img src=http://evil.example/x>\u202eabc\u2066\n&amp;"
VOID = {"meta", "link", "img", "br", "hr", "input"}


@dataclass
class Page(HTMLParser):
    """Elements, attributes and texts of a page, as a browser sees them."""

    tags: list[str] = field(default_factory=list)
    attributes: list[tuple[str, str, str]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)  # outside scripts and styles
    scripts: list[str] = field(default_factory=list)
    cells: list[list[str]] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif not self.open or self.open[-1] != "style":
            self.texts.append(data)
            if self.open and self.open[-1] in ("td", "th"):
                self.cells[-1][-1] += data


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, more in (("a", {}), ("b", {"policy": "sjf", "slower_ms": 7})):
        small_run(folder / name, workload=HOSTILE, model=HOSTILE + name, **more)
    return folder


@pytest.fixture(scope="module")
def text(runs: Path) -> str:
    return html(make_report([runs]))


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page


def test_its_data_is_what_compare_prints(runs: Path, page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(runs), "--json"]) == 0
    (data,) = [script for script in page.scripts if script.startswith('[{"workload"')]
    assert json.loads(data) == json.loads(capsys.readouterr().out)


def test_its_tables_show_the_values_of_compare(runs: Path, page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row[0]: row[1:] for row in page.cells if row}
    assert rows["TTFT max"] == ["2", "25.0 ms", "32.0 ms", "+28.0 %"]  # 30 - 5 ms, and 37 - 5
    assert rows["evictions"] == ["", "1", "1", "same"]
    main(["compare", str(runs)])
    printed = re.findall(r"^(TTFT max|E2E p50|duration) .*?(\d\S* m?s)\s+(\d\S* m?s)", capsys.readouterr().out, re.M)
    assert len(printed) == 3
    for name, first, other in printed:
        assert rows[name][1:3] == [first, other]


def test_no_element_asks_the_network_for_anything(page: Page, text: str) -> None:
    fetching = [(tag, name, value) for tag, name, value in page.attributes if name in ("src", "href", "data", "action")]
    assert all(value.startswith("#") for _, _, value in fetching), fetching
    assert {"link", "img", "iframe", "object", "embed", "base"} & set(page.tags) == set()
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    library = page.scripts[-1]
    assert len(library) > 500_000
    assert not re.search(r"(?:src|href)\s*=\s*[\"']?https?:", library)
    (policy,) = [value for tag, name, value in page.attributes if tag == "meta" and "default-src" in value]
    assert "http" not in policy.replace("http-equiv", "")


def test_names_never_become_markup(page: Page) -> None:
    figures = page.tags.count("figure")
    assert figures > 8
    assert page.tags.count("script") == figures + 2  # a specification each, the data, the library
    assert "img" not in page.tags
    assert any("</script><script>alert(1)</script>" in text for text in page.texts)
    assert any("x>?abc??&amp;a" in text for text in page.texts)  # a label of a column, in tables and in plots


def test_nothing_turns_the_direction_of_text(text: str) -> None:
    assert not any(char in text for char in "\u202e\u2066")


def test_every_contents_entry_leads_to_a_heading(page: Page) -> None:
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    targets = [value[1:] for tag, name, value in page.attributes if tag == "a" and name == "href"]
    assert targets
    assert set(targets) <= set(ids)


def test_a_simulated_run_is_marked(page: Page) -> None:
    assert "simulated: virtual clock" in page.texts


def test_drawings_share_no_ids(text: str) -> None:
    clips = re.findall(r'<clipPath id="([^"]+)"', text)
    assert clips
    assert len(clips) == len(set(clips))
    assert set(re.findall(r"url\(#([^)]+)\)", text.rpartition("<script>")[0])) <= set(clips)


def test_the_same_runs_make_the_same_page(runs: Path, text: str) -> None:
    assert html(make_report([runs])) == text


def test_specifications_can_be_read_back(page: Page) -> None:
    specs = [json.loads(script) for script in page.scripts if script.startswith('{"$schema"')]
    assert len(specs) == page.tags.count("figure")
