"""What is left of the search for garbage when the process ends."""

from __future__ import annotations

import subprocess
import sys

SHOWN = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count() > 0))  # registered first, it is called last
from kvtop.tui.garbage import rarely_searched
for _ in range(%d):
    with rarely_searched():
        pass
print(gc.get_freeze_count(), gc.isenabled())
"""


def at_the_end(times: int) -> list[str]:
    """Before the end and at it, of a process that has shown a screen so many times."""
    return subprocess.check_output([sys.executable, "-c", SHOWN % times], text=True, timeout=60).splitlines()


def test_a_process_that_has_shown_a_screen_ends_without_a_last_search() -> None:
    """Nothing that is left out is searched; until then all is as it was."""
    assert at_the_end(0) == ["0 True", "False"]
    assert at_the_end(1) == ["0 True", "True"]
    assert at_the_end(2) == ["0 True", "True"]
