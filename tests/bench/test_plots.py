"""Plots of comparisons: axes that hold what they show, lines that are the values' ECDF, files that are valid XML."""

from __future__ import annotations

import os
import random
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from made_runs import MS, S, finished, make_run, simple_run, steps_of

from kvtop.analysis.compare import compare_paths
from kvtop.cli.main import main
from kvtop.cli.parser import Parser
from kvtop.cli.plotting import add_plot_options, show_plots
from kvtop.plots import svg, text
from kvtop.plots.axes import Axis, tick_text
from kvtop.plots.panels import PLOTTED, Panel, Series, panels

SVG = "{http://www.w3.org/2000/svg}"


def panel(values: Mapping[str, Sequence[float]], *, simulated: bool = False) -> Panel:
    series = [Series(label, sorted(found), 1) for label, found in values.items()]
    return Panel(PLOTTED["itl"], "made", ["cpu"], series, simulated)


@pytest.mark.parametrize("scale", ["auto", "log", "linear"])
def test_an_axis_holds_every_value_and_keeps_their_order(scale: str) -> None:
    rng = random.Random(5)
    for _ in range(300):
        values = sorted(10 ** rng.uniform(3, 11) for _ in range(rng.randint(1, 6)))
        axis = Axis.over(values, scale)
        assert axis.low <= values[0] * 1.001
        assert axis.high >= values[-1] * 0.999
        places = [axis.place(value) for value in values]
        assert places == sorted(places)
        assert all(0 <= place <= 1 for place in places)
        ticks = [value for value, _ in axis.ticks()]
        assert 2 <= len(ticks) <= 16
        assert ticks == sorted(ticks)
        assert axis.low * 0.99 <= ticks[0] <= ticks[-1] <= axis.high * 1.01
        assert len({word for _, word in axis.ticks()}) == len(ticks)


def test_an_axis_is_logarithmic_where_values_spread_widely_or_as_asked() -> None:
    assert not Axis.over([10 * MS, 150 * MS]).log
    assert Axis.over([10 * MS, 250 * MS]).log
    assert Axis.over([10 * MS, 11 * MS], "log").log
    assert not Axis.over([1 * MS, 10 * S], "linear").log
    decade = Axis.over([10 * MS, 1 * S])
    assert [decade.place(value) for value in (10 * MS, 100 * MS, 1 * S)] == pytest.approx([0, 0.5, 1])


def test_zeros_lie_at_the_low_end_and_no_values_make_an_axis_too() -> None:
    axis = Axis.over([0, 10 * MS, 5 * S])
    assert (axis.log, axis.place(0)) == (True, 0)
    assert Axis.over([]).ticks()
    assert Axis.over([0, 0], "log").place(0) == 0


def test_ticks_are_written_without_idle_digits() -> None:
    assert [tick_text(v) for v in (0, 500, 2e3, 500e6, 1e9, 20e9)] == ["0", "500 ns", "2 us", "500 ms", "1 s", "20 s"]


def points(path: str) -> list[tuple[float, float]]:
    """Corners of a step line, (x, y) after each step."""
    return [(float(x), float(y)) for x, y in re.findall(r"H([\d.]+)V([\d.]+)", path)]


def test_a_line_is_the_share_of_values_at_or_below() -> None:
    values = [10 * MS, 20 * MS, 20 * MS, 40 * MS]
    root = ET.fromstring(svg.render([panel({"a": values})], "linear"))
    (line,) = root.iter(f"{SVG}path")
    frame = [float(e.get("y1", "")) for e in root.iter(f"{SVG}line") if e.get("class") in ("grid", "axis")]
    bottom, top = max(frame), min(frame)
    shares = [(bottom - y) / (bottom - top) for _, y in points(line.get("d", ""))]
    assert shares == pytest.approx([0.25, 0.75, 1.0], abs=0.01)
    xs = [x for x, _ in points(line.get("d", ""))]
    assert (xs[1] - xs[0]) / (xs[2] - xs[1]) == pytest.approx(0.5, abs=0.01)
    (dot,) = root.iter(f"{SVG}circle")
    assert float(dot.get("cx", "")) == xs[-1]


def test_a_hundred_thousand_values_make_a_small_file_with_the_same_ends() -> None:
    rng = random.Random(1)
    values = [rng.lognormvariate(17, 1) for _ in range(100_000)]
    made = svg.render([panel({"a": values})])
    assert len(made) < 150_000
    ET.fromstring(made)


def test_labels_are_escaped_and_both_schemes_are_styled() -> None:
    label = 'x<y & "z" \x1b[31m\x00'
    made = svg.render([panel({label: [1 * MS]}, simulated=True)])
    root = ET.fromstring(made)
    shown = [element.text or "" for element in root.iter(f"{SVG}text")]
    assert any(text.startswith('x<y & "z"') for text in shown)
    assert "prefers-color-scheme: dark" in made
    assert "simulated: virtual clock · cpu" in shown
    assert "made: ITL, gap between two tokens of an answer" in shown


def test_the_legend_has_n_and_figures_for_each_line_and_empty_ones_a_dash() -> None:
    root = ET.fromstring(svg.render([panel({"one": [k * MS for k in range(1, 101)], "two": []})]))
    shown = [element.text for element in root.iter(f"{SVG}text")]
    at = shown.index("one")
    assert shown[at + 1 : at + 5] == ["100", "50.5 ms", "99.0 ms", "100 ms"]
    at = shown.index("two")
    assert shown[at + 1 : at + 5] == ["0", "-", "-", "-"]
    assert len(list(root.iter(f"{SVG}path"))) == 1


def test_text_marks_lie_where_the_axis_says() -> None:
    values = {"fast": [10 * MS] * 10, "slow": [10 * MS] * 9 + [1 * S]}
    lines = text.render(panel(values), width=80).splitlines()
    assert all(len(line) <= 90 and line.isascii() for line in lines)
    assert "log axis" in lines[0]
    fast, slow = (line.partition("|")[2] for line in lines[1:3])
    assert fast.startswith("#")
    assert slow.startswith("o")
    assert slow.rstrip("|").endswith("#")
    assert lines[1].split("|")[0].split() == ["fast", "n", "10"]
    ruler, words = lines[3:5]
    assert ruler.index("+") == lines[1].index("#")
    assert ruler[words.index("100 ms") + len("100 ms") // 2] == "+"
    assert words.rstrip().endswith("1 s")


def test_text_without_values_says_so() -> None:
    assert text.render(panel({"a": []})).endswith("no values")


def test_panels_pool_replicates_and_follow_the_columns(tmp_path: Path) -> None:
    for replicate in (0, 1):
        for policy in ("fcfs", "lpm"):
            name, ttft = f"{policy}{replicate}", 100 + 10 * replicate
            simple_run(tmp_path / name, policy=policy, replicate=replicate, ttft_ms=ttft, workload_hash=f"h{replicate}")
    ttft, itl = panels(compare_paths([tmp_path]), ["ttft", "itl"])
    assert [(s.label, s.num_runs) for s in ttft.series] == [("fcfs", 2), ("lpm", 2)]
    assert ttft.series[0].values == [100 * MS] * 3 + [110 * MS] * 3
    assert itl.series[1].values == [10 * MS] * 18
    assert "2 replicates pooled" in svg.render([ttft])


def test_compare_draws_below_the_table_and_into_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(simple_run(tmp_path / "one")), str(simple_run(tmp_path / "two", policy="lpm", ttft_ms=9000))]
    file = tmp_path / "plot.svg"
    assert main(["compare", *runs, "--plot", "ttft", "--plot", "itl", "--svg", str(file)]) == 0
    out = capsys.readouterr().out
    assert "made: TTFT, time to first token (simulated), log axis" in out
    assert "made: ITL, gap between two tokens of an answer (simulated) " in out
    assert len(list(ET.parse(file).getroot().iter(f"{SVG}path"))) == 4
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    before = file.read_bytes()
    assert main(["compare", *runs, "--json", "--svg", str(file)]) == 0
    assert capsys.readouterr().out.startswith("[")
    assert file.read_bytes() != before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--plot tttf", "unknown measure to plot 'tttf'; did you mean 'ttft'?"),
        ("--plot-axis lgo", "unknown axis 'lgo'"),
        ("--svg {tmp}", "is a directory, expected a file name"),
        ("--svg {tmp}/no/plot.svg", "there is no directory"),
        ("--svg {tmp}/pipe", "pipe: is a pipe, expected a file name"),
        ("--svg {tmp}/to-pipe", "to-pipe: is a pipe, expected a file name"),
        ("--svg {tmp}/loop", "loop: cannot write: "),
        ("--svg /proc/plot.svg", "--svg /proc/plot.svg: cannot write: "),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, says: str
) -> None:
    out = tmp_path / "out"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to-pipe").symlink_to("pipe")
    (tmp_path / "loop").symlink_to("loop")
    options = words.format(tmp=tmp_path).split()
    assert main(["bench", "-w", "apc", "--executor", "null", "-o", str(out), *options]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert not out.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loop", "pipe", "to-pipe"]
    assert (tmp_path / "pipe").is_fifo()


def test_without_a_comparison_a_plot_is_told_to_be_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser("kvtop bench")
    add_plot_options(parser)
    args = parser.parse(["--plot", "itl", "--svg", str(tmp_path / "plot.svg")])
    assert show_plots(args, []) == 1
    assert capsys.readouterr().err == "kvtop: --plot and --svg: no plot was made, there is no comparison to draw\n"
    assert list(tmp_path.iterdir()) == []
    assert show_plots(parser.parse([]), []) == 0


def test_the_figures_of_each_class_stand_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = {"a": [10 * MS, 20 * MS, 520 * MS], "b": [2 * S, 2 * S + 30 * MS]}
    ends = [finished("a", 0, tokens=times["a"], klass="chat"), finished("b", 1, tokens=times["b"], klass="document")]
    runs = [str(make_run(tmp_path / name, [*steps_of(times), *ends], policy=name)) for name in ("fcfs", "lpm")]
    assert main(["compare", *runs]) == 0
    rows = {line.split("  ")[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert rows["chat ITL max"][3:5] == ["500", "ms"]
    assert rows["document TTFT max"][3:5] == ["2.00", "s"]
    assert rows["document ITL n"][3:] == ["1", "1"]
    assert rows["ITL max"][2:4] == ["500", "ms"]
    column = compare_paths([Path(runs[0])])[0].as_json()["columns"][0]
    assert column["classes"]["chat"]["itl_max_ns"] == 500 * MS
    assert column["values"]["itl_max_ns"] == 500 * MS
    assert "samples" not in column["runs"][0]


def test_runs_of_one_class_have_no_figures_by_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(simple_run(tmp_path / "one"))]) == 0
    assert "By class" not in capsys.readouterr().out
