"""Coroutine tests run in a loop of their own, and nothing on the screen moves by itself."""

from __future__ import annotations

import asyncio
import inspect
import os

import pytest

os.environ["TEXTUAL_ANIMATIONS"] = "none"  # read when textual is imported


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run ``async def`` tests with asyncio.run."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
