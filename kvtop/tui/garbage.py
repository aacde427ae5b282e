"""When Python looks for garbage: a run is hundreds of thousands of objects that stay, and to look through all of them
takes longer than a frame."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def rarely_searched() -> Iterator[None]:
    """Inside, what a full search has found in use is left out of the next one. The first waits for ``gc.enable``.

    Few of these objects ever become garbage that counting references does not find: a dialog that was open during a
    search, at most. The process that has shown a screen ends without a last search: that took 0.4 s of the 0.8 s from
    key to shell.
    """
    gc.disable()
    gc.callbacks.append(_leave_out)
    try:
        yield
    finally:
        gc.callbacks.remove(_leave_out)
        gc.enable()
        gc.unfreeze()
        atexit.unregister(gc.freeze)
        atexit.register(gc.freeze)


def _leave_out(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
