"""Requests that come in from outside while a run goes on, and what is answered to them, piece by piece.

Lives in the engine's process, where the tokenizer is. Answers go to the parent beside the event stream, not in it: they
hold text, which no recording and no screen is to see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvtop.engine.engine import Engine
from kvtop.engine.errors import InvalidRequest, KvtopError, QueueFull, RequestTooLong
from kvtop.engine.events import Answered, AnswerEnd, AnswerPart, Event, RequestEvent, Submit
from kvtop.engine.text import Detokenizer
from kvtop.engine.types import FinishReason, RequestSpec, SamplingParams, StepOutput
from kvtop.run.served_trace import ServedTrace

Send = Callable[[list[Event]], None]

BYTES = 256
NO_TOKENIZER = (
    "there is no tokenizer: a prompt that is text is taken as one token a byte, an answer shows the ids of its tokens"
)


class Text:
    """Between text and tokens: the model's tokenizer, or a stand-in where it has none (``stands_in``).

    The stand-in takes a byte of UTF-8 for a token, and shows a token as its id: ``<1000> <1001>``.
    """

    def __init__(self, tokenizer: Any, decode: Callable[[list[int]], str] | None, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self.stands_in = tokenizer is None
        self.decode = decode if decode is not None and tokenizer is not None else _ids

    def encode(self, text: str) -> list[int]:
        """Tokens of a prompt, with those that the tokenizer puts at its beginning."""
        if self.stands_in:
            return [byte % self._vocab_size for byte in text.encode()]
        return list(self._tokenizer(text)["input_ids"])

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Tokens of a conversation up to where the assistant speaks.

        Raises:
            InvalidRequest: the model has no chat template, or its template refuses these messages.
        """
        if self.stands_in:
            return self.encode("".join(f"{each['role']}: {each['content']}\n" for each in messages) + "assistant: ")
        if not getattr(self._tokenizer, "chat_template", None):
            raise InvalidRequest("messages: the model has no chat template; use /v1/completions")
        try:
            encoded = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        except Exception as error:  # a template is a program of the model's author
            raise InvalidRequest(f"messages: the model's chat template refuses them: {_one_line(error)}") from None
        return list(encoded["input_ids"])


class Answers:
    """Submits requests of ``Submit`` commands and sends what becomes of them. One a run.

    ``send`` hands events to the parent. A ``trace`` remembers what came in. Costs a step nothing while none of its
    requests is live.
    """

    def __init__(self, engine: Engine, text: Text, send: Send, trace: ServedTrace | None = None) -> None:
        self._engine, self._text, self._send, self._trace = engine, text, send, trace
        self._live: dict[str, dict[str, Detokenizer]] = {}  # request -> its branches
        self._own_text: set[str] = set()  # requests whose text the engine makes, because of their stop strings
        self._accepted: list[tuple[str, int]] = []
        self._parts: list[AnswerPart] = []
        self._ends: list[AnswerEnd] = []

    def submit(self, command: Submit) -> None:
        """Tokenize, and hand it to the engine. Whatever is wrong with it is its answer."""
        engine, request_id = self._engine, command.request_id
        try:
            spec = self._spec(command)
            engine.submit_spec(spec)
        except KvtopError as error:
            self._refuse(request_id, _kind(error), str(error))
        except Exception as error:  # a tokenizer given hostile text may raise anything; the run goes on
            self._refuse(request_id, "failed", f"{type(error).__name__}: {_one_line(error)}")
        else:
            self._live[request_id] = {}
            if spec.params.stop:
                self._own_text.add(request_id)
            self._accepted.append((request_id, len(spec.prompt)))
            if self._trace is not None:
                self._trace.arrived(request_id, engine.clock.now_ns(), spec)
        self.flush()

    def _spec(self, command: Submit) -> RequestSpec:
        text, prompt = self._text, command.prompt
        if prompt is None:
            tokens = text.encode_chat(command.messages)
        else:
            tokens = text.encode(prompt) if isinstance(prompt, str) else prompt
        params = dict(command.params)
        if "max_tokens" not in params:  # as many as there is room for
            room = self._engine.config.effective_len - len(tokens)
            params["max_tokens"] = max(1, room, params.get("min_tokens", 0))
        return RequestSpec(
            prompt=tokens,
            params=SamplingParams(**params),
            request_id=command.request_id,
            priority=command.priority,
            tenant=command.tenant,
        )

    def _refuse(self, request_id: str, kind: str, error: str) -> None:
        self._ends.append(AnswerEnd(request_id, kind=kind, error=error))

    def stepped(self, output: StepOutput) -> None:
        """Tokens of a step."""
        if not self._live:
            return
        texts = output.texts
        for seq_id, tokens in output.tokens.items():
            request_id = seq_id.partition("#")[0]
            branches = self._live.get(request_id)
            if branches is None:
                continue
            reason = output.finished.get(seq_id)
            if request_id in self._own_text:
                text = texts.get(seq_id, "")
            else:
                text = self._decoded(branches, seq_id, tokens, reason)
            if self._trace is not None:
                self._trace.emitted(request_id, len(tokens))
            self._parts.append(AnswerPart(seq_id, text, len(tokens), None if reason is None else str(reason)))
        for seq_id, reason in output.finished.items():  # those that ended without a token in this step
            if seq_id not in output.tokens and seq_id.partition("#")[0] in self._live:
                self._parts.append(AnswerPart(seq_id, self._rest(seq_id, texts), 0, str(reason)))

    def _decoded(
        self, branches: dict[str, Detokenizer], seq_id: str, tokens: list[int], reason: FinishReason | None
    ) -> str:
        characters = branches.get(seq_id)
        if characters is None:
            characters = branches[seq_id] = Detokenizer(self._text.decode)
        stopped = reason is FinishReason.STOP  # the token that ends an answer is no part of its text
        text = "".join(map(characters.push, tokens[:-1] if stopped else tokens))
        return text if reason is None else text + characters.flush()

    def _rest(self, seq_id: str, texts: dict[str, str]) -> str:
        request_id = seq_id.partition("#")[0]
        if request_id in self._own_text:
            return texts.get(seq_id, "")
        characters = self._live[request_id].get(seq_id)
        return "" if characters is None else characters.flush()

    def ended(self, event: RequestEvent) -> None:
        """A request is over, for whatever reason."""
        if self._live.pop(event.request_id, None) is None:
            return
        self._own_text.discard(event.request_id)
        if self._trace is not None:
            self._trace.ended(event.request_id)
        kind = {"failed": "failed", "aborted": "aborted"}.get(event.finish_reason or "failed", "")
        cached = (event.hit_tokens or 0) + event.host_hit_tokens
        self._ends.append(AnswerEnd(event.request_id, event.prompt_tokens, cached, kind, event.error))

    def flush(self) -> None:
        """Send what has come together: at once, so that a token waits for no frame."""
        if self._accepted or self._parts or self._ends:
            event = Answered(
                t_ns=self._engine.clock.now_ns(), accepted=self._accepted, parts=self._parts, ended=self._ends
            )
            self._accepted, self._parts, self._ends = [], [], []
            self._send([event])


def _ids(tokens: list[int]) -> str:
    return "".join(f"<{token}> " for token in tokens)


def _kind(error: KvtopError) -> str:
    if isinstance(error, RequestTooLong):
        return "too_long"
    return "queue_full" if isinstance(error, QueueFull) else "invalid"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
