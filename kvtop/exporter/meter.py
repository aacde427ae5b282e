"""A session whose events are counted on their way to whoever polls it, and the text of all such sessions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kvtop.engine.events import Event, Keyframe, RunEnded, RunStarted
from kvtop.exporter.metrics import METRICS, Sample
from kvtop.exporter.totals import Totals
from kvtop.run.session import RunSession
from kvtop.run.spec import RunSpec
from kvtop.state.model import RunState
from kvtop.state.reduce import reduce


class Meter:
    """One run as its metrics see it. ``engine`` tells apart the runs that one exporter tells of; ``model_name`` is what
    the model is called there (None: as the run says).

    Written by the thread that polls the session, read by the threads that answer HTTP; ``lock`` is held for a fold and
    for a reading. Somebody else's state (``follow``) is read without a lock: what is read of it is whole (an event, a
    number, a copy of a container made in one call), though two numbers may be an event apart.
    """

    def __init__(self, engine: str = "0", model_name: str | None = None) -> None:
        self.engine, self._model_name = engine, model_name
        self.totals = Totals()
        self.lock = threading.RLock()
        self._own = RunState()
        self._state: Callable[[], RunState] | None = None

    def follow(self, state: Callable[[], RunState]) -> None:
        """Read the state that somebody else folds from the same events, instead of folding it a second time."""
        self._state = state

    @property
    def state(self) -> RunState:
        return self._own if self._state is None else self._state()

    def fold(self, event: Event) -> None:
        with self.lock:
            if isinstance(event, RunStarted):
                self.totals = Totals()
            self.totals.fold(event)
            if self._state is None:
                reduce(self._own, event)
                if isinstance(event, Keyframe) and self._own.pool is not None:
                    self._own.pool.dirty.clear()

    @property
    def labels(self) -> dict[str, str]:
        """Of every sample. ``simulated`` stands only where times are not those of a clock."""
        manifest = self.state.manifest
        labels = {"model_name": self._model_name or str(manifest.get("model") or "none"), "engine": self.engine}
        if manifest.get("simulated") or manifest.get("clock") == "virtual":
            labels["simulated"] = "true"
        return labels


class MeteredSession(RunSession):
    """A ``RunSession`` whose events its meter sees as they are polled."""

    def __init__(self, spec: RunSpec, exporter: Exporter) -> None:
        super().__init__(spec)
        self._exporter = exporter

    def start(self) -> None:
        super().start()
        self.meter = self._exporter.open()

    def follow(self, state: Callable[[], RunState]) -> None:
        self.meter.follow(state)

    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        events = super().poll(timeout_s)
        for event in events:
            self.meter.fold(event)
            if isinstance(event, RunEnded):
                self._exporter.ended(self.meter)
        return events


class Exporter:
    """The meters of the runs under way, and the last one that ended, so that its end can be read."""

    def __init__(self, model_name: str | None = None) -> None:
        self._model_name = model_name
        self._meters: list[Meter] = []
        self._over: set[int] = set()
        self._lock = threading.Lock()
        self._started_s = time.time()

    def open(self) -> Meter:
        """A meter for a run that is about to begin; it takes the lowest number that no run under way has."""
        with self._lock:
            self._meters = [meter for meter in self._meters if id(meter) not in self._over]
            self._over.clear()
            taken = {meter.engine for meter in self._meters}
            number = next(str(number) for number in range(len(taken) + 1) if str(number) not in taken)
            meter = Meter(number, self._model_name)
            self._meters = sorted([*self._meters, meter], key=lambda each: int(each.engine))
            return meter

    def ended(self, meter: Meter) -> None:
        """Its numbers stay until another run begins."""
        with self._lock:
            self._over.add(id(meter))

    def render(self) -> str:
        """All metrics in Prometheus' text format 0.0.4."""
        with self._lock:
            meters = list(self._meters)
        lines: list[str] = []
        for metric in METRICS:
            samples: list[str] = []
            for meter in meters:
                with meter.lock:
                    labels = meter.labels
                    samples += [_line(metric.name, sample, labels) for sample in metric.read(meter.totals, meter.state)]
            if samples:
                lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}", *samples]
        lines += [
            "# HELP process_start_time_seconds When this process began to count, in seconds since the epoch.",
            "# TYPE process_start_time_seconds gauge",
            f"process_start_time_seconds {self._started_s!r}",
        ]
        return "\n".join(lines) + "\n"


def _line(name: str, sample: Sample, labels: dict[str, str]) -> str:
    own = ",".join(f'{key}="{_escaped(value)}"' for key, value in (labels | sample.labels).items())
    return f"{name}{sample.suffix}{{{own}}} {sample.value!r}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
