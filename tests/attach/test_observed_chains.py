"""Recordings of publishers that tell what cannot be: they become a workload in bounded time and memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attach_helpers import stored
from test_attach_commands import body, observed

from kvtop.cli.main import main


@pytest.mark.parametrize(
    "told",
    [
        [stored(7, parent=7)],
        [stored(1, 1, 1)],
        [stored(1, parent=2), stored(2, parent=1)],
        [stored(1, 2, 3), stored(1, 2, parent=3)],
    ],
    ids=["its own parent", "itself thrice", "each other's parents", "a ring of three"],
)
def test_a_block_below_itself_has_a_parent_that_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], told: list[dict[str, object]]
) -> None:
    run = observed(tmp_path / "run", [(float(i), body(event)) for i, event in enumerate(told, 1)])
    assert main(["trace", "info", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 1 <= found["rows"] <= len(told)
    assert any("stored blocks under ones that were never reported" in notice for notice in found["notices"])
