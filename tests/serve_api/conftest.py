from __future__ import annotations

from collections.abc import Iterator

import pytest
from serving import Served, serving


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """One server for all tests of a module that leave it as it was."""
    with serving() as server:
        yield server
