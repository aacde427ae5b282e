"""GPU and host: what do the devices say?"""

from __future__ import annotations

from textwrap import wrap

from kvtop.tui.device_watch import Device
from kvtop.tui.frame import Frame
from kvtop.tui.panels.base import TextPanel
from kvtop.tui.text import clean, percent
from kvtop.tui.widgets.lines import Line, width_of

_GIB = 1 << 30
_UNBOUND = 1000


class DevicePanel(TextPanel):
    """Memory, load, temperature and power of GPU and host, as their own counters report them."""

    TITLE = "GPU and host"
    QUESTION = "how loaded?"
    HELP = """\
As the devices report it, once a second; it is not recorded, and is that
of now wherever the cursor is. GPU: by NVML, the first device. Host: by
the operating system; engine is the engine's process, kvtop this one.
What no device reports is called so."""

    def attached_lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        own = self.kvtop.devices.latest()
        busy = "not reported" if own is None or own.own_busy is None else f"{own.own_busy:.0f} % of a core"
        return [[("not reported: the server's devices", "soft")], [*_pair("kvtop here", busy)]][:height]

    def lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        device = self.kvtop.devices.latest()
        if device is None:
            return [[("not reported yet", "soft")]]
        wrapped = [*_gpu(device, width), *_host(device, width)]
        return wrapped if len(wrapped) <= height else [*_gpu(device), *_host(device)][:height]


def _gpu(device: Device, width: int = _UNBOUND) -> list[Line]:
    """What does not fit ``width`` goes on below."""
    gpu = device.gpu
    if gpu is None:
        first, *more = wrap(f"not reported: {clean(device.why_no_gpu)}", max(1, width - len("GPU   ")))
        return [[("GPU   ", "title"), (first, "soft")], *([("      ", ""), (rest, "soft")] for rest in more)]
    return [
        [("GPU   ", "title"), (clean(gpu.name), "text")],
        [
            *_pair("memory", f"{gpu.used_bytes / _GIB:.1f}/{gpu.total_bytes / _GIB:.1f} GiB"),
            *_pair("busy", _or(gpu.busy_percent, " %")),
        ],
        [*_pair("temperature", _or(gpu.celsius, " C")), *_pair("power", _or(gpu.watts, " W"))],
    ]


def _host(device: Device, width: int = _UNBOUND) -> list[Line]:
    memory = f"{device.host_used_bytes / _GIB:.1f}/{device.host_total_bytes / _GIB:.1f} GiB"
    engine = "not reported" if device.engine_bytes is None else f"{device.engine_bytes / _GIB:.2f} GiB"
    host: Line = [("host  ", "title"), *_pair("busy", percent(device.host_busy, 100))]
    fits = width_of([*host, *_pair("memory", memory)]) - 2 <= width
    return [
        *([[*host, *_pair("memory", memory)]] if fits else [host, [("      ", ""), *_pair("memory", memory)]]),
        [*_pair("engine", engine), *_pair("busy", _or(device.engine_busy, " %"))],
        [*_pair("kvtop", f"{device.own_bytes / _GIB:.2f} GiB"), *_pair("busy", _or(device.own_busy, " %"))],
    ]


def _pair(name: str, value: str) -> Line:
    return [(f"{name} ", "soft"), (f"{value}  ", "text")]


def _or(value: float | None, unit: str) -> str:
    return "not reported" if value is None else f"{value:.0f}{unit}"
