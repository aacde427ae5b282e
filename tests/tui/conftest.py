"""Coroutine tests run in a loop of their own, and nothing on the screen moves by itself."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import uneven_run

from kvtop.state.model import RunState

os.environ["TEXTUAL_ANIMATIONS"] = "none"  # read when textual is imported

import pilot_idle

pilot_idle.install()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--accept-pictures", action="store_true", help="keep what the screens look like now")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run ``async def`` tests with asyncio.run."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def check_picture(request: pytest.FixtureRequest, tmp_path: Path) -> Callable:
    """``check_picture(picture, name)``: it looks like the kept one of that name (``tui_pictures.compare``)."""
    from tui_pictures import compare

    accept = bool(request.config.getoption("--accept-pictures", default=False))
    return lambda picture, name: compare(picture, name, tmp_path, accept)


@pytest.fixture(scope="module")
def uneven() -> RunState:
    """The run of ``uneven_run`` at its end."""
    return uneven_run.folded(uneven_run.events())


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    """requests.parquet of the same run."""
    folder = uneven_run.on_disk(tmp_path_factory.mktemp("runs") / "fcfs", uneven_run.events())
    return pl.read_parquet(folder / "requests.parquet")
