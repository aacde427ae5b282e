"""Attached servers where there is little room: what is asked first is not what is cut."""

from __future__ import annotations

import pytest
from attach_tui import recorded, seen


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)])
def test_the_latency_screen_has_a_row_for_each_metric_and_says_that_these_are_buckets(size: tuple[int, int]) -> None:
    text = seen(recorded(60), "5", size=size)
    rows = [
        line.split()[0] for line in text.splitlines() if line.startswith(("TTFT ", "ITL ", "queue ", "TPOT ", "E2E "))
    ]
    assert rows == ["TTFT", "ITL", "queue", "TPOT", "E2E"]
    assert "Latency — how long does it take?" in text  # not one metric's title over all of them
    assert "the bucket that each percentile is in" in text
    assert "v metric" not in text  # there is nothing to go through


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)])
def test_source_health_says_whether_the_events_are_whole(size: tuple[int, int]) -> None:
    text = seen(recorded(60), "8", size=size)
    health = text[text.index("Source health") :]
    for part in ("sequence 44", "98 cached", "whole", "dropped 0"):
        assert part in health, part
