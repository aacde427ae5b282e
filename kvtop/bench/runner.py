"""Points in engine processes of their own on this machine, some at a time; the parent only listens."""

from __future__ import annotations

import select
import shutil
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from kvtop.bench.points import point_label
from kvtop.bench.progress import Progress
from kvtop.engine.errors import KvtopError
from kvtop.engine.events import Notice, RunEnded
from kvtop.results.rundir import check_not_in_use, prepare_run_dir
from kvtop.run.session import RunSession
from kvtop.run.spec import RunSpec

POLL_S = 0.1
STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one point ended. ``status``: complete, interrupted, failed, or kept (it was complete already)."""

    label: str
    run_dir: Path | None
    status: str
    error: str = ""
    warnings: tuple[str, ...] = ()
    traceback: str = ""  # of the engine's process, when it died of a fault
    exit_code: int = 0  # 2 when the engine's process found something the user can correct


@dataclass(frozen=True, slots=True)
class Point:
    """One run to make, its directory in the spec. ``kept``: it is complete, and is not run."""

    spec: RunSpec
    label: str
    kept: bool = False

    def outcome(self, status: str, error: str = "", exit_code: int = 0) -> Outcome:
        run_dir = None if self.spec.run_dir is None else Path(self.spec.run_dir)
        return Outcome(self.label, run_dir, status, " ".join(error.split()), exit_code=exit_code)


Observer = Callable[[Sequence[Progress]], None]
"""Called often while something runs, with what is known of each point under way."""

MakeSession = Callable[[RunSpec], RunSession]

Done = Callable[[int, Outcome], None]
"""Called once a point that was begun, with its place in the list; in the order in which they end."""


def run_point(
    spec: RunSpec,
    observe: Callable[[Progress], None],
    *,
    label: str | None = None,
    force: bool = False,
    make_session: MakeSession = RunSession,
) -> Outcome:
    """Run one point to its end. A failure is an outcome, not an exception. ``label``: default ``point_label``.

    Raises:
        KeyboardInterrupt: after the child was stopped in good order; its finished rows are on disk.
    """
    found: list[Outcome] = []
    point = Point(spec, point_label(spec) if label is None else label)
    run_points(
        [point],
        lambda each: observe(each[0]),
        lambda _, outcome: found.append(outcome),
        force=force,
        make_session=make_session,
    )
    return found[0]


def run_points(
    points: Sequence[Point],
    observe: Observer,
    done: Done,
    *,
    jobs: int = 1,
    force: bool = False,
    make_session: MakeSession = RunSession,
) -> None:
    """Run the points in order, at most ``jobs`` at a time. ``force``: what is in a point's directory is removed.

    Raises:
        KeyboardInterrupt: also when an engine's process was interrupted alone. Those under way were stopped in good
            order and told to ``done``; their finished rows are on disk.
    """
    waiting = deque(enumerate(points))
    running: list[_Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                index, point = waiting.popleft()
                if point.kept:
                    done(index, point.outcome("kept"))
                elif isinstance(begun := _begin(index, point, force, make_session), _Running):
                    running.append(begun)
                else:
                    done(index, begun)
            if running:
                _listen(running, observe)
            for each in [each for each in running if each.ended is not None]:
                running.remove(each)
                outcome = each.outcome()
                done(each.index, outcome)
                if outcome.status == "interrupted":
                    raise KeyboardInterrupt
    finally:
        _stop(running)
        for each in running:
            done(each.index, each.outcome())


@dataclass(slots=True)
class _Running:
    """A point under way."""

    index: int
    point: Point
    session: RunSession
    progress: Progress
    warnings: list[str] = field(default_factory=list)
    ended: RunEnded | None = None

    def poll(self) -> None:
        """Take in what is there."""
        for event in self.session.poll(0.0):
            self.progress.fold(event)
            if isinstance(event, RunEnded):
                self.ended = event
            elif isinstance(event, Notice) and event.level in ("warning", "error") and event.text not in self.warnings:
                self.warnings.append(event.text)

    def outcome(self) -> Outcome:
        """After the end."""
        assert self.ended is not None
        plain = self.point.outcome(self.ended.status, self.ended.error, self.ended.exit_code)
        if plain.run_dir is not None and self.ended.status != "complete":
            with suppress(OSError):
                plain.run_dir.rmdir()  # only when nothing was written: a model that does not load leaves no trace
        return replace(plain, warnings=tuple(self.warnings), traceback=self.ended.traceback)


def _begin(index: int, point: Point, force: bool, make_session: MakeSession) -> _Running | Outcome:
    """Start the engine's process; an outcome when that cannot be done."""
    spec = point.spec
    try:
        if spec.run_dir is not None:
            run_dir = Path(spec.run_dir)
            if force and run_dir.exists():
                check_not_in_use(run_dir)
                shutil.rmtree(run_dir)
            prepare_run_dir(run_dir)
        # Only a progress line comes of the events, unless somebody brought a session that makes more of them.
        session = make_session(msgspec.structs.replace(spec, brief=make_session is RunSession))
        session.start()
    except (KvtopError, OSError) as error:
        return point.outcome("failed", str(error), getattr(error, "exit_code", 1))
    return _Running(index, point, session, Progress(point.label))


def _listen(running: Sequence[_Running], observe: Observer) -> None:
    """Wait until one of them says something, or a moment, and take it in."""
    with suppress(OSError, ValueError):  # a pipe that has just been closed: polling says so
        select.select([each.session for each in running], [], [], POLL_S)
    for each in running:
        each.poll()
    observe([each.progress for each in running])


def _stop(running: Sequence[_Running]) -> None:
    """End them all, at the same time, and take in their last words. Always leaves with the children gone."""
    if not running:
        return
    with ThreadPoolExecutor(len(running)) as pool:
        list(pool.map(lambda each: each.session.stop(STOP_TIMEOUT_S), running))
    for each in running:
        while each.ended is None:
            each.poll()
