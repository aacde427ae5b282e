"""Commands to the engine's process, on the pipe beside the one of the events. Loads no torch."""

from __future__ import annotations

from typing import Any

import msgspec


class Command(msgspec.Struct, frozen=True, tag_field="c", omit_defaults=True):
    """Base of all commands."""


class Pause(Command, frozen=True, tag="pause"):
    pass


class Resume(Command, frozen=True, tag="resume"):
    pass


class Step(Command, frozen=True, tag="step"):
    """Run ``count`` steps while paused."""

    count: int = 1


class SetBreakpoints(Command, frozen=True, tag="breakpoints"):
    """Pause when one of these is met (``kvtop.run.breakpoints`` reads them), in place of those set before."""

    breakpoints: list[str]


class RunUntil(Command, frozen=True, tag="until"):
    """Go on, and pause when one of these is met, or a breakpoint."""

    breakpoints: list[str]


class SetConfig(Command, frozen=True, tag="config"):
    """Change ``policy`` (a name), ``arrival_rate`` (a factor) or ``num_blocks`` (those of the pool that may be used).

    It happens between two steps; a ``ConfigChanged`` follows.
    """

    changes: dict[str, Any]


class Abort(Command, frozen=True, tag="abort"):
    request_id: str


class Submit(Command, frozen=True, tag="submit", kw_only=True):
    """A request from outside, with what is to be done with its prompt left to the engine's process.

    ``prompt`` is text or token ids; None: ``messages`` (role, content) go through the model's chat template.
    ``params`` are SamplingParams by name; without ``max_tokens`` it may go on to the longest length there is.
    """

    request_id: str
    prompt: str | list[int] | None = None
    messages: list[dict[str, str]] = []
    params: dict[str, Any] = {}
    priority: int = 0
    tenant: str = ""


class FindPrompt(Command, frozen=True, tag="find", kw_only=True):
    """Say under which keys the whole blocks of a prompt would be cached; a ``PromptKeys`` follows.

    ``tokens`` None: ``text`` goes through the model's tokenizer. Nothing is submitted, and neither is kept.
    """

    text: str = ""
    tokens: list[int] | None = None


class RequestKeyframe(Command, frozen=True, tag="keyframe"):
    pass


class Stop(Command, frozen=True, tag="stop"):
    """End the run: rows finished so far are kept, status is ``interrupted``."""


AnyCommand = (
    Pause | Resume | Step | SetBreakpoints | RunUntil | SetConfig | Abort | Submit | FindPrompt | RequestKeyframe | Stop
)
decode_command = msgspec.msgpack.Decoder(AnyCommand).decode
