"""Attached servers as a session: the application polls it as it polls a run of its own. Nothing is ever sent to them,
but a prompt that the user asks about, to be tokenized.

One thread a metrics endpoint, one for all KV events, one for the recording. They wait, the caller never does: a slow or
dead server, or disk, holds up neither the screen nor the others; a server has one request in flight. ``t_ns`` is this
machine's monotonic clock, from the start of the session.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvtop.attach.address import Address
from kvtop.attach.recorder import Recorder
from kvtop.attach.scrape import Scraper
from kvtop.engine.events import (
    Command,
    ConfigChanged,
    Event,
    FindPrompt,
    Keyframe,
    Notice,
    Observed,
    PromptKeys,
    RunEnded,
    RunStarted,
    Sample,
)
from kvtop.state.attached import Engine, capacity

if TYPE_CHECKING:
    from kvtop.attach.kv_listen import KvListener

POLL_LIMIT = 5_000  # events handed out at once
DRAIN_S = 0.05  # changes of blocks are put together for so long
KV_WAIT_S = 0.05
JOIN_S = 0.1  # for connections to be closed in order
RECORD_S = 2.0  # for what was received to be in the recording
KV_FLAG = "vLLM, SGLang: --kv-events-config; see kvtop doctor URL"


@dataclass(frozen=True, slots=True)
class AttachSpec:
    """What to look at. ``replays``: the replay endpoint of each of ``kv_events``, or ""."""

    servers: list[Address]
    kv_events: list[str] = field(default_factory=list)
    replays: list[str] = field(default_factory=list)
    interval_s: float = 1.0
    timeout_s: float = 5.0
    api_key: str | None = field(default=None, repr=False)
    tokenizer: Path | None = None  # the file for prompts asked about; None: the server does it
    record: Path | None = None
    keep_tokens: bool = False


class AttachSession:
    """``poll`` never waits longer than it is told to; commands do nothing: an attached server is only looked at."""

    has_engine = False  # that would have to end its step first

    def __init__(self, spec: AttachSpec) -> None:
        self.spec = spec
        self.ended = False
        self.recording_error = ""  # why the recording is not whole
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._prompts: queue.SimpleQueue[list[int]] = queue.SimpleQueue()  # tokens, on their way to ``_listen``
        self._stop = threading.Event()
        self._listener: threading.Thread | None = None
        self._began_s = 0.0
        self._step = 0
        self._recorder: Recorder | None = None
        self._left: list[Event] = []  # recorded when it was stopped, and not yet polled
        self._facts: dict[str, Any] = {}  # of the manifest, as servers have told them
        self._blocks: dict[tuple[str, str], int] = {}  # capacity, by server and engine
        self._pool_blocks: int | None = None

    def start(self) -> None:
        """Begin to look; nothing is waited for.

        Raises:
            UsageError: the directory of the recording cannot be used.
        """
        self._began_s = time.monotonic()
        manifest = self._manifest()
        if self.spec.record is not None:
            self._recorder = Recorder(self.spec.record, manifest)
        self._queue.put(RunStarted(run_id=str(manifest["run_id"]), manifest=manifest))
        for address in self.spec.servers:
            self._spawn(self._look, address)
        if self.spec.kv_events:
            self._listener = self._spawn(self._listen)

    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        """What was seen since the last call, in order; waits up to ``timeout_s`` for the first. [] when nothing was."""
        events: list[Event] = []
        if self.ended:  # a server may still answer: nobody asks any more
            self._left, events = [], self._left
            return events
        try:
            event = self._queue.get(timeout=timeout_s) if timeout_s > 0 else self._queue.get_nowait()
            while True:
                events += self._numbered(event)
                self.ended = isinstance(event, RunEnded)
                if self.ended or len(events) >= POLL_LIMIT:
                    break
                event = self._queue.get_nowait()
        except queue.Empty:
            pass
        return self._recorded(events)

    def send(self, command: Command) -> None:
        """An attached server takes no commands. Only a prompt is looked up, which waits for nobody."""
        if isinstance(command, FindPrompt):
            self._spawn(self._tokenize, command)

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the looking and the recording. No server is waited for: what is under way is nobody's any more. Only
        events that were received already are, and the disk, where they are recorded: ``timeout_s`` for both."""
        if self._stop.is_set():
            return
        self._stop.set()
        deadline = time.monotonic() + timeout_s
        if self._listener is not None:
            self._listener.join(min(timeout_s, JOIN_S if self._recorder is None else RECORD_S))
        self._queue.put(RunEnded(t_ns=self._now_ns(), status="complete"))
        if self._recorder is not None:
            while not self.ended:
                self._left += self.poll()
            self._left += self._refused(self._recorder.close(max(0.0, deadline - time.monotonic())))

    # Threads -------------------------------------------------------------------------------------------------

    def _spawn(self, target: Any, *args: object) -> threading.Thread:
        thread = threading.Thread(target=self._guarded, args=(target, *args), daemon=True, name="kvtop-attach")
        thread.start()
        return thread

    def _guarded(self, target: Any, *args: object) -> None:
        try:
            target(*args)
        except Exception as error:  # a source is lost, the others go on: and it is said
            text = f"a source ended: {type(error).__name__}: {error}"
            self._queue.put(Notice(t_ns=self._now_ns(), text=text, level="error"))

    def _now_ns(self) -> int:
        return int((time.monotonic() - self._began_s) * 1e9)

    def _look(self, address: Address) -> None:
        """Every ``interval_s``; where an answer took longer than that, ``interval_s`` after it."""
        scraper = Scraper(address, api_key=self.spec.api_key, timeout_s=self.spec.timeout_s)
        due = time.monotonic()
        while not self._stop.is_set():
            sample = scraper.look(0, self._now_ns())
            self._queue.put(msgspec.structs.replace(sample, t_ns=self._now_ns()))
            due, now = due + self.spec.interval_s, time.monotonic()
            due = due if due > now else now + self.spec.interval_s
            self._stop.wait(due - now)

    def _listen(self) -> None:
        from kvtop.attach.asked_prompt import AskedPrompt
        from kvtop.attach.kv_listen import KvListener
        from kvtop.attach.kv_tracker import KvTracker

        tracker = KvTracker(self._pool_blocks, keep_tokens=self.spec.keep_tokens)
        asked = AskedPrompt(tracker.blocks)
        listener = KvListener(self.spec.kv_events, self.spec.replays, tracker, is_over=self._stop.is_set)
        due = 0.0
        try:
            while not self._stop.is_set():
                listener.receive(KV_WAIT_S)
                if self._pool_blocks is not None:
                    tracker.blocks.resize(self._pool_blocks)
                if (now := time.monotonic()) >= due:
                    due = now + DRAIN_S
                    self._tell(listener)
                    while not self._prompts.empty():
                        asked.ask(self._prompts.get())
                    if (found := asked.news(self._now_ns())) is not None:
                        self._queue.put(found)
        finally:
            self._tell(listener)
            listener.close()

    def _tell(self, listener: KvListener) -> None:
        for event in listener.drain(0, self._now_ns()):
            self._queue.put(event)

    def _tokenize(self, command: FindPrompt) -> None:
        from kvtop.attach.tokenize import NoTokens, tokens_by_file, tokens_by_server

        if not self.spec.kv_events:
            self._no_prompt(f"not reported: what is cached, servers tell in KV events: give --kv-events ({KV_FLAG})")
            return
        tokens, problems = command.tokens, []
        if tokens is None and self.spec.tokenizer is not None:
            try:
                tokens = tokens_by_file(self.spec.tokenizer, command.text)
            except NoTokens as error:
                problems.append(str(error))
        elif tokens is None:
            for address in self.spec.servers:
                try:
                    tokens = tokens_by_server(
                        address, str(self._facts.get("model") or ""), command.text,
                        api_key=self.spec.api_key, timeout_s=self.spec.timeout_s,
                    )  # fmt: skip
                    break
                except NoTokens as error:
                    problems.append(str(error))
        if tokens is None:
            why = "; ".join(problems) or "no server is given to tokenize it"
            self._no_prompt(f"{why}; give --tokenizer PATH, or paste token ids: [1, 2, 3]")
        else:
            self._prompts.put(tokens)

    def _no_prompt(self, problem: str) -> None:
        self._queue.put(PromptKeys(t_ns=self._now_ns(), problem=problem))

    # Events --------------------------------------------------------------------------------------------------

    def _numbered(self, event: Event) -> list[Event]:
        """``event`` with its step, behind what it tells about the servers."""
        if isinstance(event, Keyframe):
            return [msgspec.structs.replace(event, step=self._step)]
        if not isinstance(event, Observed):
            return [event]
        self._step += 1
        numbered = msgspec.structs.replace(event, step=self._step)
        changes = self._learn(numbered) if isinstance(numbered, Sample) else {}
        return [ConfigChanged(t_ns=event.t_ns, changes=changes), numbered] if changes else [numbered]

    def _learn(self, sample: Sample) -> dict[str, Any]:
        """What a sample says about model and pool, where it is news."""
        if sample.problem:
            return {}
        for engine in sample.engines:
            if size := capacity(Engine(engine)):
                self._blocks[sample.server, f"{engine.model} {engine.engine}"] = size
        total = sum(self._blocks.values()) or None
        if len({server for server, _ in self._blocks}) == len(self.spec.servers):
            self._pool_blocks = total
        info = next((engine.info for engine in sample.engines if engine.info), {})
        size = info.get("block_size", "")
        found = {
            "model": next((engine.model for engine in sample.engines if engine.model), None),
            "server_kind": sample.kind or None,
            "block_size_tokens": int(size) if size.isdigit() else None,
            "prefix_caching": {"True": True, "False": False}.get(info.get("prefix_caching", "")),
            "num_blocks": total,
        }
        news = {key: value for key, value in found.items() if value is not None and self._facts.get(key) != value}
        self._facts |= news
        return news

    def _recorded(self, events: list[Event]) -> list[Event]:
        """``events``, which the recorder has got then; a disk that refuses ends the recording and is told."""
        if self._recorder is None:
            return events
        kept = [event for event in events if not isinstance(event, PromptKeys)]
        error = self._recorder.write(kept, self._facts) if kept else self._recorder.news()
        return [*events, *self._refused(error)]

    def _refused(self, error: str) -> list[Event]:
        if not error:
            return []
        self.recording_error = error
        return [Notice(t_ns=self._now_ns(), text=error, level="error")]

    def _manifest(self) -> dict[str, Any]:
        from kvtop.results.manifest import content_hash

        started = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        shown = [address.shown for address in self.spec.servers]
        return {
            "run_id": content_hash([started, os.getpid(), shown]),
            "started_utc": started,
            "clock": "real",
            "executor": "attached",
            "workload": ", ".join(shown),
            "servers": shown,
            "kv_events": list(self.spec.kv_events),
            "interval_ns": int(self.spec.interval_s * 1e9),
            "keeps_tokens": self.spec.keep_tokens,
        }
