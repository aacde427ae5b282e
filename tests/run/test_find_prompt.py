"""A prompt asked about while a run goes on: its keys come back, and nothing of it is recorded."""

from __future__ import annotations

from pathlib import Path

from test_session import poll_until

from kvtop.engine.events import Event, FindPrompt, PromptKeys
from kvtop.engine.keys import prompt_keys
from kvtop.results.recording import FRAMES_NAME, read_frames
from kvtop.run.session import RunSession
from kvtop.run.spec import RunSpec
from kvtop.workloads.spec import WorkloadSpec

CANARY = "the launch code is zebra 4711"


def is_answer(event: Event) -> bool:
    return isinstance(event, PromptKeys)


def test_a_paused_engine_answers_and_records_nothing_of_it(tmp_path: Path) -> None:
    workload = WorkloadSpec(name="poisson-shared-prefix", limit=3)
    session = RunSession(
        RunSpec(workload=workload, executor="null", num_blocks=64, run_dir=str(tmp_path / "run"), start_paused=True)
    )
    session.start()
    try:
        session.send(FindPrompt(text=CANARY))
        answer = poll_until(session, is_answer)[-1]
        # Without a tokenizer a byte is a token; blocks are of 16, and 29 bytes are one of them and some.
        assert isinstance(answer, PromptKeys)
        assert (answer.num_tokens, answer.problem) == (29, "")
        assert answer.keys == [[key] for key in prompt_keys(list(CANARY.encode()), 16)]
        assert len(answer.keys) == 1
        session.send(FindPrompt(tokens=list(range(40))))
        answer = poll_until(session, is_answer)[-1]
        assert isinstance(answer, PromptKeys)
        assert answer.keys == [[key] for key in prompt_keys(range(40), 16)]
    finally:
        session.stop()
    recorded = [event for frame in read_frames(tmp_path / "run" / FRAMES_NAME) for event in frame]
    assert recorded
    assert not any(map(is_answer, recorded))
    assert all(b"zebra" not in path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
