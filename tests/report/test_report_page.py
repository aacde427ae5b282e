"""The page: its numbers are those of ``kvtop compare``, it fetches nothing, and no name in it becomes markup."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_runs import finished, small_run, step, write_run

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


def test_what_all_runs_were_made_of_stands_once(tmp_path: Path) -> None:
    """A row a run has what tells runs apart; the rest is beside the settings that are the same."""
    for policy in ("fcfs", "sjf"):
        for replicate in (0, 1):
            made = {"seed": replicate, "replicate": replicate, "workload_hash": f"{replicate:x}" * 64}
            slower = {"slower_ms": replicate}  # or it would be one run repeated
            small_run(tmp_path / f"{policy}-{replicate}", policy=policy, git_sha="c" * 40, **made, **slower)
    page = Page()
    page.feed(html(make_report([tmp_path])))
    header = next(row for row in page.cells if row[:2] == ["Run", "directory"])
    assert header == ["Run", "directory", "status", "ok / all", "seed", "replicate", "workload hash"]
    rows = [row for row in page.cells if len(row) == len(header) and row[0] in ("fcfs", "sjf")]
    assert [row[1:] for row in rows] == [
        [f"{policy}-{n}", "complete", "2 / 2", str(n), str(n), f"{n}" * 12]
        for policy in ("fcfs", "sjf") for n in (0, 1)
    ]  # fmt: skip
    said = [text for text in page.texts if text.strip()]
    for name, value in (("kvtop's commit", "c" * 10), ("started (UTC)", "2026-01-01 00:00:00")):
        assert said.count(name) == 1
        assert said[said.index(name) + 1] == value
    assert "trace sha256" not in said, "nobody recorded one"


def test_no_heading_of_a_table_is_broken_inside_a_word(text: str) -> None:
    """A table too wide for its place scrolls; its headings are not closed up to a letter a row."""
    rules = re.findall(r"^thead th \{([^}]*)\}", text, re.M)
    assert rules
    assert not any("anywhere" in rule or "break-all" in rule for rule in rules)


def test_no_line_ends_between_a_number_and_its_unit(text: str) -> None:
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", text)
    assert any("p50 and p99: " in caption for caption in captions)
    assert not any(re.search(r"\d (?:ms|s|steps|requests)\b", caption) for caption in captions)


def test_of_one_run_there_are_figures_to_trust_and_no_differences(tmp_path: Path) -> None:
    ends = [finished(f"r{i}", i, i, 20 + i * 7 % 31, 90 + i * 3 % 17, 4) for i in range(40)]
    run = write_run(tmp_path / "run", [step(0, 0, 200, ["r0"]), *ends])
    headings = re.findall(r"<h3[^>]*>([^<]*)</h3>", html(make_report([run])))
    assert "How far to trust the figures" in headings
    assert not any("ifferences" in heading for heading in headings)
