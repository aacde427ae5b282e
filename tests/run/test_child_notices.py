"""What loading has to say reaches the user: it must not end with the progress line that showed it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from run_fakes import ListInbox, ListOutlet

from kvtop.engine import worker
from kvtop.engine.events import Notice
from kvtop.results.recording import FRAMES_NAME, read_frames
from kvtop.run.child import _Child
from kvtop.run.spec import RunSpec
from kvtop.workloads.spec import WorkloadSpec

FALLBACK = "the model that was asked for is not installed; using a random one instead"


class Outlet(ListOutlet):
    lossless = behind = False
    num_dropped = 0


class Inbox(ListInbox):
    loading = stop_wanted = False


def warnings(events: list[Any]) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice) and event.level == "warning"]


def test_notices_of_the_model_are_warnings_on_the_screen_and_in_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = worker.build_engine

    def build_with_notice(**options: Any) -> worker.Built:
        built = build(**options)
        monkeypatch.setattr(built.engine.executor, "info", SimpleNamespace(notices=(FALLBACK,)), raising=False)
        return built

    monkeypatch.setattr(worker, "build_engine", build_with_notice)
    workload = WorkloadSpec(name="poisson-shared-prefix", limit=2)
    outlet = Outlet()
    end = _Child(RunSpec(workload=workload, executor="null", run_dir=str(tmp_path)), outlet, Inbox()).run()  # type: ignore[arg-type]
    assert end.status == "complete"
    assert warnings(outlet.events) == [FALLBACK]
    assert warnings([event for batch in read_frames(tmp_path / FRAMES_NAME) for event in batch]) == [FALLBACK]
