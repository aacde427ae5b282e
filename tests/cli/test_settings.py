"""Values from flag, environment and file, in that order, and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtop.cli.config import apply_settings, as_text, config_path, settings
from kvtop.cli.display_options import THEMES, add_display_options, display
from kvtop.cli.main import main
from kvtop.cli.parser import Parser
from kvtop.engine.errors import KvtopError
from kvtop.tui.theme import PALETTES


def parser() -> Parser:
    made = Parser("kvtop live")
    add_display_options(made)
    made.add_argument("-p", "--policy", default="fcfs")
    made.add_argument("--num-blocks", type=int)
    return made


def resolved(tmp_path: Path, text: str, environment: dict[str, str], *words: str) -> dict[str, tuple[object, str]]:
    (tmp_path / "kvtop").mkdir(exist_ok=True)
    (tmp_path / "kvtop" / "config.toml").write_text(text)
    made = parser()
    sources = apply_settings(made, "live", words, {"XDG_CONFIG_HOME": str(tmp_path), **environment})
    return {one.name: (one.value, one.source) for one in settings(made.parse(words), sources)}


FILE = """
[all]
theme = "light"
not_an_option_of_this_command = 3
[live]
policy = "lpm"
num-blocks = 64
hz = 2
ascii = true
"""


def test_flag_then_environment_then_file_then_default(tmp_path):
    found = resolved(tmp_path, FILE, {"KVTOP_POLICY": "sjf", "KVTOP_NUM_BLOCKS": "99"}, "-p", "hrrn")
    path = tmp_path / "kvtop" / "config.toml"
    assert found["policy"] == ("hrrn", "--policy")
    assert found["num_blocks"] == (99, "KVTOP_NUM_BLOCKS")
    assert found["hz"] == (2.0, f"{path} [live]")
    assert found["theme"] == ("light", f"{path} [all]")
    assert found["ascii"] == (True, f"{path} [live]")
    assert found["no_mouse"] == (False, "default")


def test_a_commands_own_table_wins_over_all(tmp_path):
    assert resolved(tmp_path, FILE + 'theme = "mono"\n', {})["theme"][0] == "mono"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[live]\nthem = 'x'\n", "theme"),
        ("[live]\ntheme = 'drak'\n", "dark"),
        ("[live]\nnum_blocks = 'x'\n", "num_blocks"),
        ("[live]\nascii = 3\n", "expected true or false"),
        ("[live]\npolicy = ['a']\n", "expected one value"),
        ("theme = 'dark'\n", "outside of a table"),
        ("[live\n", "is not TOML"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_it(tmp_path, text, said):
    with pytest.raises(KvtopError, match=said):
        resolved(tmp_path, text, {})


def test_a_file_that_is_named_must_be_there(tmp_path):
    with pytest.raises(KvtopError, match="cannot read"):
        apply_settings(parser(), "live", ["--config", str(tmp_path / "none.toml")], {})
    assert apply_settings(parser(), "live", [], {"XDG_CONFIG_HOME": str(tmp_path)}) == {}
    assert config_path({}) == Path("~/.config/kvtop/config.toml")


def test_show_config_prints_a_line_a_value_and_runs_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("KVTOP_THEME", "okabe-ito")
    assert main(["live", "--show-config", "--hz", "8"]) == 0
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert rows["theme"] == ["okabe-ito", "KVTOP_THEME"]
    assert rows["hz"] == ["8.0", "--hz"]
    assert rows["policy"] == ["fcfs", "default"]


def test_the_themes_that_may_be_asked_for_are_those_there_are():
    assert tuple(PALETTES) == THEMES
    args = parser().parse(["--no-mouse", "--theme", "mono"])
    assert display(args) == {"theme": "mono", "ascii": False, "mouse": False, "hz": 4.0}
    assert "theme" in as_text(settings(args, {}))
