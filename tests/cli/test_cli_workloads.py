"""`kvtop workloads`: the list, the spec of one to copy and change, the pieces of specs; and --replay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvtop.cli.main import main
from kvtop.engine.errors import UnknownName, UsageError
from kvtop.results.identity import point_identity
from kvtop.run.spec import RunSpec
from kvtop.workloads.builtins import BUILTINS
from kvtop.workloads.generators.structures import STRUCTURES
from kvtop.workloads.load import load_workload
from kvtop.workloads.spec import WorkloadSpec

Captured = pytest.CaptureFixture[str]


def test_the_list_has_a_line_for_each(capsys: Captured) -> None:
    assert main(["workloads"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines if not line.startswith("    ")] == list(BUILTINS)
    assert main(["workloads", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {name: builtin.summary for name, builtin in BUILTINS.items()}


@pytest.mark.parametrize("name", ["chat", "chunked", "rag"])
def test_the_spec_that_is_printed_is_the_workload(name: str, capsys: Captured, tmp_path: Path) -> None:
    assert main(["workloads", name]) == 0
    copy = tmp_path / "copy.toml"
    copy.write_text(capsys.readouterr().out)
    hashes = {load_workload(WorkloadSpec(name=which), vocab_size=500).hash for which in (name, str(copy))}
    assert len(hashes) == 1


def test_the_pieces_are_listed_with_options_and_defaults(capsys: Captured) -> None:
    assert main(["workloads", "--pieces"]) == 0
    out = capsys.readouterr().out
    assert 'turns = { kind = "geometric", mean = 4.0, high = 50 }' in out
    assert main(["workloads", "--pieces", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told) == ["structure", "arrivals", "distribution"]
    assert list(told["structure"]) == list(STRUCTURES)
    assert told["arrivals"]["gamma"]["options"] == {"rate": "required", "burstiness": 1.0}


def test_what_cannot_be_shown_is_refused(capsys: Captured) -> None:
    assert main(["workloads", "chatt"]) == UnknownName.exit_code
    assert "did you mean 'chat'" in capsys.readouterr().err
    assert main(["workloads", "chat", "--pieces"]) == UsageError.exit_code


def test_an_unknown_replay_and_an_impossible_one_are_refused_before_anything_runs(
    capsys: Captured, tmp_path: Path
) -> None:
    words = ["bench", "-w", "chat", "--executor", "null", "-o", str(tmp_path / "out"), "--replay"]
    assert main([*words, "opne"]) == 2
    assert "open" in capsys.readouterr().err
    assert main([*words, "open"]) == 2
    assert "chat is a closed loop: when its turns arrive was never recorded" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_trace_in_a_spec_counts_by_its_content_where_runs_are_told_apart(tmp_path: Path) -> None:
    def identity(folder: str, data: str) -> object:
        where = tmp_path / folder
        where.mkdir()
        (where / "t.csv").write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97996,{data}\n")
        spec = where / "w.toml"
        spec.write_text('kind = "synthetic"\nrate = 1\nlengths = { path = "t.csv" }')
        return point_identity(RunSpec(workload=WorkloadSpec(name=str(spec)), executor="null"))["workload"]

    first, moved, changed = identity("a", "11,7"), identity("b", "11,7"), identity("c", "11,8")
    assert first == moved
    assert first != changed
