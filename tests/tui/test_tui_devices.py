"""What GPU and host report, read by a thread that never holds anything up."""

from __future__ import annotations

import os
import threading
import time

import pytest
from tui_fakes import FakeDevices, app_with, go, recorded, screen_text, settled

from kvtop.tui import device_watch
from kvtop.tui.device_watch import DeviceWatch, Gpu

LIMIT_S = 60.0


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(device_watch, "PERIOD_S", 0.01)


def first_look(watch: DeviceWatch):
    deadline_s = time.monotonic() + LIMIT_S
    while (device := watch.latest()) is None and time.monotonic() < deadline_s:
        time.sleep(0.01)
    watch.stop()
    assert device is not None
    return device


def test_host_and_processes_are_read_and_what_is_not_there_is_not_reported(quick, monkeypatch):
    monkeypatch.setattr(device_watch, "_open_gpu", lambda: (None, "driver not loaded"))
    device = first_look(DeviceWatch(lambda: None))
    assert device.gpu is None
    assert device.why_no_gpu == "driver not loaded"
    assert 0 < device.host_used_bytes < device.host_total_bytes
    assert device.own_bytes > 0
    assert device.engine_bytes is None
    own = first_look(DeviceWatch(os.getpid))
    assert own.engine_bytes is not None
    assert own.engine_bytes > 1 << 20


def test_a_slow_driver_keeps_nobody_waiting(quick, monkeypatch):
    asked, answer, answered = threading.Event(), threading.Event(), threading.Event()

    def open_slowly() -> tuple[None, str]:
        asked.set()
        answer.wait(LIMIT_S)
        answered.set()
        return None, ""

    monkeypatch.setattr(device_watch, "_open_gpu", open_slowly)
    watch = DeviceWatch(lambda: None)
    assert watch.latest() is None
    assert asked.wait(LIMIT_S)
    assert watch.latest() is None
    watch.stop()
    assert not answered.is_set()
    answer.set()


async def test_the_panel_shows_what_is_reported_and_says_what_is_not():
    app = app_with(recorded())
    async with app.run_test(size=(200, 50)) as pilot:
        await settled(pilot)
        text = screen_text(app)
        assert "GPU   not reported: driver not loaded" in text
        assert "memory 5.0/16.0 GiB" in text
        assert "engine 2.00 GiB  busy 97 %" in text
        devices = FakeDevices()
        gpu = Gpu("NVIDIA H200", 3 << 30, 141 << 30, 55.0, 61.0, None)
        look = device_watch.Device(gpu, "", *[getattr(devices.latest(), f) for f in FIELDS])
        devices.latest = lambda: look  # type: ignore[method-assign]
        app.devices = devices  # type: ignore[assignment]
        await go(pilot, "left_square_bracket")
        text = screen_text(app)
        assert "NVIDIA H200" in text
        assert "memory 3.0/141.0 GiB  busy 55 %" in text
        assert "temperature 61 C  power not reported" in text


FIELDS = (
    "host_busy", "host_used_bytes", "host_total_bytes", "own_bytes", "own_busy", "engine_bytes", "engine_busy",
)  # fmt: skip
