"""``kvtop report`` on the command line: files, refusals, and which runs stand in one table."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from report_runs import small_run, write_run

from kvtop.analysis.compare import Options
from kvtop.cli.main import main
from kvtop.report import vega
from kvtop.report.build import compare_all
from kvtop.results.runs_table import write_runs

PNG = b"\x89PNG\r\n\x1a\n"


def test_plots_become_files_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = small_run(tmp_path / "run"), tmp_path / "new" / "plots"
    assert main(["report", str(run), "--svg", str(out)]) == 0
    names = sorted(path.name for path in out.iterdir())
    assert "01-ttft.svg" in names
    assert all((out / name).read_text().startswith("<svg") for name in names)
    assert f"{len(names)} plots written to {out}" in capsys.readouterr().err


def test_a_png_is_one(tmp_path: Path) -> None:
    from kvtop.report.build import make_report
    from kvtop.report.charts import finished

    _, figure = next(make_report([small_run(tmp_path / "run")]).named())
    assert figure.spec is not None
    assert vega.png(finished(figure.spec)).startswith(PNG)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--html FILE"),
        (["--html", "{tmp}"], "is a directory"),
        (["--html", "{tmp}/no/such/out.html"], "there is no directory"),
        (["--png", "{tmp}/run/run.json"], "is no directory"),
    ],
)
def test_where_nothing_can_be_written_nothing_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    small_run(tmp_path / "run")
    words = [option.format(tmp=tmp_path) for option in options]
    assert main(["report", str(tmp_path / "run"), *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_without_the_library_one_line_says_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    vega._library.cache_clear()
    try:
        assert main(["report", str(tmp_path), "--html", str(tmp_path / "out.html")]) == 2
    finally:
        vega._library.cache_clear()
    error = capsys.readouterr().err
    assert "pip install 'kvtop[report]'" in error
    assert error.count("\n") == 1


def test_a_directory_without_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path), "--html", str(tmp_path / "out.html")]) == 2
    assert "no runs below it" in capsys.readouterr().err
    assert not (tmp_path / "out.html").exists()


def test_runs_that_cannot_be_compared_get_chapters_of_their_own(tmp_path: Path) -> None:
    small_run(tmp_path / "a")
    small_run(tmp_path / "b", policy="sjf")
    small_run(tmp_path / "c", block_size_tokens=32)
    small_run(tmp_path / "d", workload="other")
    found = compare_all([tmp_path])
    assert [[column.label for column in comparison.columns] for comparison in found] == [
        ["fcfs", "sjf"], ["fcfs"], ["fcfs"],
    ]  # fmt: skip
    assert any("not comparable" in note and "block size" in note for note in found[1].notes)
    assert not any("not comparable" in note for note in (*found[0].notes, *found[2].notes))


def test_the_table_that_lies_beside_the_runs_is_passed_over(tmp_path: Path) -> None:
    """``results/*`` of a shell names it too."""
    small_run(tmp_path / "a")
    small_run(tmp_path / "b", policy="sjf")
    write_runs(tmp_path)
    named = sorted(tmp_path.iterdir())
    assert [path.name for path in named] == ["a", "b", "runs.parquet"]
    (found,) = compare_all(named)
    assert [column.label for column in found.columns] == ["fcfs", "sjf"]


def test_force_sets_them_side_by_side_and_says_so(tmp_path: Path) -> None:
    small_run(tmp_path / "a")
    small_run(tmp_path / "c", block_size_tokens=32)
    (found,) = compare_all([tmp_path], Options(force=True))
    assert len(found.columns) == 2
    assert any("block size" in conflict for conflict in found.conflicts)


def test_an_interrupted_run_without_a_step_still_has_a_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [], status="interrupted")
    assert main(["report", str(run), "--html", str(tmp_path / "out.html")]) == 0
    text = (tmp_path / "out.html").read_text()
    assert "interrupted, figures cover what was finished" in text
    assert "No step was recorded." in text


def test_compare_writes_the_same_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_run(tmp_path / "runs" / "a")
    small_run(tmp_path / "runs" / "b", policy="sjf", slower_ms=7)
    report, page = tmp_path / "report.html", tmp_path / "page.html"
    assert main(["report", str(tmp_path / "runs"), "--html", str(report)]) == 0
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "runs"), "--html", str(page), "--json"]) == 0
    found = capsys.readouterr()
    assert found.err == f"kvtop: report written to {page}\n"
    assert found.out.startswith("["), "--json is alone on stdout"
    assert page.read_bytes() == report.read_bytes()


def test_a_page_of_compare_holds_its_gates(tmp_path: Path) -> None:
    small_run(tmp_path / "runs" / "a")
    small_run(tmp_path / "runs" / "b", policy="sjf", slower_ms=7)
    page = tmp_path / "page.html"
    words = ["compare", str(tmp_path / "runs"), "--html", str(page), "--fail-on", "e2e_p50>+1%"]
    assert main(words) == 1, "a gate that tripped"
    data = re.search(r'id="comparisons">(.*?)</script>', page.read_text(), re.S)
    assert data is not None
    assert [gate["failed"] for gate in json.loads(data[1])[0]["gates"]] == [True]


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--html", "{tmp}/no/such/out.html"], "there is no directory"), (["--html", "{tmp}/out.html"], "not comparable")],
)
def test_compare_writes_no_page_where_it_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    small_run(tmp_path / "a")
    small_run(tmp_path / "c", block_size_tokens=32)
    words = [option.format(tmp=tmp_path) for option in options]
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "c"), *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out.html").exists()
