"""The output that docs/benchmarks.md shows is what its command prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from bench_process import kvtop

DOCUMENT = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text()


@pytest.mark.slow
def test_the_search_that_is_shown_is_what_the_command_prints(tmp_path: Path) -> None:
    command, shown = re.findall(
        r"```sh\nkvtop ([^\n]*--find-rate[^\n]*)\n```\n\n```text\n(.*?)```", DOCUMENT, flags=re.DOTALL
    )[0]
    words = shlex.split(command.replace("results/rate", str(tmp_path)))
    assert kvtop(*words).stdout == shown
