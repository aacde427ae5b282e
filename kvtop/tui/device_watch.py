"""What GPU and host report, read once a second by a thread of its own: a slow driver never holds up a key."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

PERIOD_S = 1.0
FIRST_S = 0.2  # what is asked first is loaded then: the first paint comes before it


@dataclass(frozen=True, slots=True)
class Gpu:
    """None is "not reported"."""

    name: str
    used_bytes: int
    total_bytes: int
    busy_percent: float | None
    celsius: float | None
    watts: float | None


@dataclass(frozen=True, slots=True)
class Device:
    """One look at GPU, host and the two processes."""

    gpu: Gpu | None
    why_no_gpu: str
    host_busy: float  # percent of all cores
    host_used_bytes: int
    host_total_bytes: int
    own_bytes: int
    own_busy: float | None  # percent of one core
    engine_bytes: int | None
    engine_busy: float | None


class DeviceWatch:
    """Starts with the first ``latest``; ``stop`` ends it. ``engine_pid`` is asked each time: there may be none yet."""

    def __init__(self, engine_pid: Callable[[], int | None]) -> None:
        self._engine_pid = engine_pid
        self._latest: Device | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def latest(self) -> Device | None:
        """The last look; None until there has been one. Never waits."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="devices", daemon=True)
            self._thread.start()
        return self._latest

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        if self._stopped.wait(FIRST_S):
            return
        import psutil

        processes: dict[int, psutil.Process] = {}
        own = psutil.Process()
        handle, why = _open_gpu()
        psutil.cpu_percent()
        own.cpu_percent()
        while not self._stopped.wait(PERIOD_S):
            memory = psutil.virtual_memory()
            engine = self._engine_of(processes)
            self._latest = Device(
                gpu=None if handle is None else _read_gpu(handle),
                why_no_gpu=why,
                host_busy=psutil.cpu_percent(),
                host_used_bytes=memory.total - memory.available,
                host_total_bytes=memory.total,
                own_bytes=own.memory_info().rss,
                own_busy=own.cpu_percent(),
                engine_bytes=_ask(lambda p=engine: p.memory_info().rss),
                engine_busy=_ask(lambda p=engine: p.cpu_percent()),
            )

    def _engine_of(self, processes: dict[int, Any]) -> Any:
        """The engine's process; None when there is none. Kept, since its load is that since the last look."""
        import psutil

        pid = self._engine_pid()
        if pid is None:
            return None
        if pid not in processes:
            with suppress(psutil.Error):
                processes[pid] = psutil.Process(pid)
        return processes.get(pid)


def _ask(read: Callable[[], Any]) -> Any:
    """None where the system does not tell: the process is gone, or not ours."""
    try:
        return read()
    except Exception:
        return None


def _open_gpu() -> tuple[Any, str]:
    """NVML's first device, or why there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByIndex(0), ""
    except ImportError:
        return None, "the package nvidia-ml-py is not installed"
    except Exception as error:  # no driver, no device, no permission
        return None, f"{error}".lower() or type(error).__name__


def _read_gpu(handle: Any) -> Gpu | None:
    import pynvml

    try:
        name, memory = pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError:
        return None
    return Gpu(
        name=name.decode() if isinstance(name, bytes) else str(name),
        used_bytes=int(memory.used),
        total_bytes=int(memory.total),
        busy_percent=_ask(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        celsius=_ask(lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
        watts=_ask(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000),
    )
