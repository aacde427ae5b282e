"""Points as tasks of a Ray cluster that is there already. A worker makes its run in a folder of its own and uploads it.

Every node needs this version of kvtop, and can write to the store. What a point reads (trace, workload spec, policy
file) is small and travels with it; a model directory does not, and must be at the same path on every node.
"""

from __future__ import annotations

import logging
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from kvtop.bench.inputs import Inputs, collect, unpack
from kvtop.bench.progress import Progress
from kvtop.bench.runner import Done, Observer, Outcome, Point, run_point
from kvtop.bench.store import Store, StoreError
from kvtop.engine.errors import KvtopError, UsageError
from kvtop.results.manifest import version_of
from kvtop.run.spec import RunSpec

POLL_S = 0.5
PROBE_S = 5.0
TELL_EVERY_S = 1.0  # a worker's progress
CANCEL_S = 30.0  # for those under way to end in good order when the bench is interrupted
RETRIES = 2  # of a point whose worker or node is lost; a run that fails is not tried again


def run_on_ray(
    points: Sequence[Point], store: Store, address: str, observe: Observer, done: Done, *, cpus: float, gpus: float
) -> None:
    """Run the points on the cluster at ``address`` ("auto": the one of this machine).

    Each run ends up in ``store``, a copy of it in its spec's directory.

    Raises:
        UsageError: Ray is not installed, or there is no such cluster.
        KeyboardInterrupt: those under way were stopped in good order, as far as ``CANCEL_S`` allowed.
    """
    ray = _connect(address)
    try:
        _Tasks(ray, points, store, observe, done, {"num_cpus": cpus, "num_gpus": gpus}).run()
    finally:
        ray.shutdown()


def _connect(address: str) -> Any:
    try:
        import ray
    except ImportError:
        raise UsageError("--ray: the package ray is not installed (pip install 'kvtop[ray]')") from None
    _probe(address)
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        cause = " ".join(str(error).split())[:200]
        raise UsageError(f"--ray {address}: no Ray cluster can be reached there ({cause})") from None
    return ray


def _probe(address: str) -> None:
    """Whether anybody listens at HOST:PORT: Ray itself would try for minutes.

    Raises:
        UsageError: nobody does.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return  # "auto": Ray looks at this machine
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_S).close()
    except (OSError, OverflowError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"--ray {address}: no Ray cluster can be reached there ({cause})") from None


class _Tasks:
    """The tasks of one bench, and what their workers tell."""

    def __init__(
        self, ray: Any, points: Sequence[Point], store: Store, observe: Observer, done: Done, needs: dict[str, float]
    ) -> None:
        self.ray, self.points, self.store, self.needs = ray, points, store, needs
        self.observe, self.done = observe, done
        self.board = ray.remote(_Board).options(num_cpus=0, max_restarts=-1).remote()
        self.under_way: dict[Any, int] = {}

    def run(self) -> None:
        task = self.ray.remote(_run_remote).options(max_retries=RETRIES, **self.needs)
        for index, point in enumerate(self.points):
            if point.kept:
                self.done(index, point.outcome("kept"))
                continue
            spec = msgspec.msgpack.encode(_without_dir(point.spec))
            arguments = (spec, collect(point.spec), self.store.url, _name(point), point.label, version_of("kvtop"))
            self.under_way[task.remote(*arguments, self.board, index)] = index
        try:
            while self.under_way:
                self._collect(POLL_S)
                self.observe(self._told() or [Progress("waiting for a worker", notice="none has begun")])
        except KeyboardInterrupt:
            self._cancel()
            raise

    def _told(self) -> list[Progress]:
        """Of those under way that have told something; nothing while the board is lost with its node."""
        try:
            told = self.ray.get(self.board.read.remote(), timeout=TELL_EVERY_S)
        except self.ray.exceptions.RayError:
            return []
        return [told[index] for index in self.under_way.values() if index in told]

    def _collect(self, timeout_s: float) -> None:
        ready, _ = self.ray.wait(list(self.under_way), num_returns=1, timeout=timeout_s)
        for task in ready:
            index = self.under_way.pop(task)
            self.done(index, self._outcome(task, self.points[index]))

    def _outcome(self, task: Any, point: Point) -> Outcome:
        """What became of a task; its run is copied here, so that it can be compared."""
        try:
            outcome: Outcome = self.ray.get(task)
        except self.ray.exceptions.RayError as error:
            first = str(error).strip().splitlines()
            return point.outcome("failed", f"Ray: {first[-1] if first else type(error).__name__}", 1)
        run_dir = Path(point.spec.run_dir or "")
        try:
            if outcome.run_dir is not None:
                self.store.download(_name(point), run_dir)
        except StoreError as error:
            return point.outcome("failed", str(error), 1)
        return replace(outcome, run_dir=run_dir)

    def _cancel(self) -> None:
        """Interrupt the workers, which stop their engines in good order, and take what they still say."""
        for task in self.under_way:
            self.ray.cancel(task, force=False)
        deadline_s = time.monotonic() + CANCEL_S
        while self.under_way and time.monotonic() < deadline_s:
            self._collect(POLL_S)


def _without_dir(spec: RunSpec) -> RunSpec:
    """Without the directory: the worker chooses its own."""
    return msgspec.structs.replace(spec, run_dir=None)


def _name(point: Point) -> str:
    return Path(point.spec.run_dir or "").name


class _Board:
    """An actor that keeps the newest progress of each point."""

    def __init__(self) -> None:
        self.told: dict[int, Progress] = {}

    def tell(self, index: int, progress: Progress) -> None:
        self.told[index] = progress

    def read(self) -> dict[int, Progress]:
        return self.told


def _run_remote(
    spec: bytes, inputs: Inputs, url: str, name: str, label: str, version: str | None, board: Any, index: int
) -> Outcome:
    """On a worker: make the run, upload it, say how it ended (``run_dir`` None: nothing was written)."""
    if (own := version_of("kvtop")) != version:
        return Outcome(label, None, "failed", f"this worker has kvtop {own}, the bench {version}", exit_code=1)
    with tempfile.TemporaryDirectory(prefix="kvtop-ray-") as folder:
        run_dir = Path(folder) / name
        local = unpack(msgspec.msgpack.decode(spec, type=RunSpec), inputs, Path(folder) / "inputs")
        local = msgspec.structs.replace(local, run_dir=str(run_dir))
        try:
            outcome = run_point(local, _teller(board, index), label=label)
        except KeyboardInterrupt:
            outcome = Outcome(label, run_dir, "interrupted", "interrupted; what was finished is kept", exit_code=130)
        try:
            if run_dir.is_dir():
                Store(url).upload(run_dir, name)
        except KvtopError as error:
            outcome = replace(outcome, status="failed", error=str(error), exit_code=1)
        return outcome if run_dir.is_dir() else replace(outcome, run_dir=None)


def _teller(board: Any, index: int) -> Callable[[Progress], None]:
    last_s = 0.0

    def tell(progress: Progress) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= TELL_EVERY_S:
            last_s = time.monotonic()
            board.tell.remote(index, progress)

    return tell
