"""Load models without a word: libraries print bars and warnings that would tear a terminal UI."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

MAX_LINE = 200


@contextmanager
def quiet() -> Iterator[None]:
    """Errors only: transformers' log level, its progress bars and Python warnings; put back afterwards."""
    from transformers.utils import logging as transformers_logging

    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


def one_line(error: BaseException) -> str:
    """The first line of an error, cut to a length that fits a terminal; its type where it says nothing."""
    lines = str(error).strip().splitlines()
    text = lines[0].strip() if lines else ""
    if not text:
        return type(error).__name__
    return text if len(text) <= MAX_LINE else text[: MAX_LINE - 1] + "…"
