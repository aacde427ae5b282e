"""Settings that must be made before anything is imported."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import HealthCheck, settings

# An example may take any time: on a busy machine each does now and then, and would fail for nothing else.
settings.register_profile("kvtop", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvtop")


def pytest_configure(config: pytest.Config) -> None:
    """Interpret Triton kernels on the CPU, unless the tests that need a GPU were asked for.

    Triton looks at the variable when it is first imported, which transformers does too, so it cannot wait for the
    tests of the kernels.
    """
    if not re.search(r"(?<!not )\bgpu\b", config.option.markexpr):
        os.environ.setdefault("TRITON_INTERPRET", "1")
