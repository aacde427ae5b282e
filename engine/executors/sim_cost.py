"""What a step costs on a machine that is not there: a roofline with a few constants. Plain arithmetic, no torch.

    step = max(weight bytes / weight_bytes_s, flops a token x tokens / flops_s)          every layer's matrices
         + sum over chunks of max(K and V bytes / kv_bytes_s, flops / attention_flops_s)  attention
         + all-reduces + step_ns + seq_ns x chunks + ingest_ns x new requests + blocks moved

``Work`` is what one GPU of a tensor-parallel group has to do for a model; ``Machine`` what that GPU reaches, its
efficiency included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from kvtop.engine.errors import ConfigError

NS = 1e9


class Work(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes and floating-point operations of one model on one GPU of its group.

    A pair is one query token and one token it attends to, in all full (or all windowed) layers together.
    """

    weight_bytes: int  # read once a step
    flops_per_token: float  # of the matrices: 2 x parameters
    kv_bytes_per_token: int  # K and V of the layers that keep every token
    flops_per_pair: float
    sliding_window: int | None = None  # tokens the other layers look back
    window_kv_bytes_per_token: int = 0
    window_flops_per_pair: float = 0.0
    num_allreduces: int = 0  # a step
    wire_bytes_per_token: float = 0.0  # that each GPU sends in all of them

    @property
    def pool_bytes_per_token(self) -> int:
        """K and V of one token in every layer: a block keeps them whole, windowed or not."""
        return self.kv_bytes_per_token + self.window_kv_bytes_per_token


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one GPU (or CPU) reaches in practice, bytes and operations a second, and what every step costs besides.

    None: not known; a run that would need it is refused.
    """

    weight_bytes_s: float
    flops_s: float
    kv_bytes_s: float
    attention_flops_s: float
    step_ns: float = 0.0
    seq_ns: float = 0.0  # for each chunk of a step
    ingest_ns: float = 0.0  # for each request, in the first step that computes something of it
    link_bytes_s: float | None = None  # between the GPUs, one direction
    allreduce_ns: float = 0.0  # latency of one all-reduce
    host_bytes_s: float | None = None  # to and from host memory

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is None:
                continue
            rate = name.endswith("_s")
            if not (value > 0 if rate else value >= 0) or value == float("inf"):
                raise ConfigError(
                    f"cost model: {name} is {value!r}, expected a finite number {'>' if rate else '>='} 0"
                )


class CostModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Work on a machine. Equal numbers, equal ``hash``, whatever it is called.

    Raises:
        ConfigError: the work is spread over several GPUs, and the machine says nothing of the links between them.
    """

    name: str
    work: Work
    machine: Machine

    def __post_init__(self) -> None:
        if self.work.num_allreduces and self.machine.link_bytes_s is None:
            raise ConfigError("cost model: tensor parallelism needs link_bytes_s, and the machine has none")

    @property
    def hash(self) -> str:
        plain = msgspec.convert(msgspec.to_builtins(self), CostModel)  # 2000 and 2000.0 are one number
        text = msgspec.json.encode([plain.work, plain.machine], order="sorted")
        return hashlib.sha256(text).hexdigest()[:16]

    def step_ns(
        self, spans: Iterable[tuple[int, int]], *, num_new: int = 0, copied_bytes: int = 0, host_bytes: int = 0
    ) -> int:
        """Time of a step that computes ``spans``: (start position, tokens) of each chunk.

        ``num_new`` requests are computed for the first time; ``copied_bytes`` are read and written in its memory,
        ``host_bytes`` cross to or from the host before anything is computed.
        """
        machine, work = self.machine, self.work
        num_chunks = num_tokens = context = 0
        attention_s = 0.0
        windowed = work.sliding_window is not None
        for start, count in spans:
            num_chunks += 1
            num_tokens += count
            if count > 1 or windowed:
                attention_s += self.attention_s(start, count)
            else:
                context += start + 1  # a single query token costs in proportion: all of them at once
        if context:
            attention_s += context * self._context_s
        return round(
            machine.step_ns
            + machine.seq_ns * num_chunks
            + machine.ingest_ns * num_new
            + (self.matrices_s(num_tokens) + attention_s + self.allreduce_s(num_tokens)) * NS
            + self._moves_s(copied_bytes, host_bytes) * NS
        )

    def matrices_s(self, num_tokens: int) -> float:
        """Every weight is read once, whatever the number of tokens; the arithmetic grows with it."""
        work, machine = self.work, self.machine
        read_s = work.weight_bytes / machine.weight_bytes_s if num_tokens else 0.0
        return max(read_s, work.flops_per_token * num_tokens / machine.flops_s)

    def attention_s(self, start: int, count: int) -> float:
        """Attention of ``count`` query tokens from position ``start`` over everything before and among them."""
        num_bytes, flops = attention_work(self.work, start, count)
        return max(num_bytes / self.machine.kv_bytes_s, flops / self.machine.attention_flops_s)

    def allreduce_s(self, num_tokens: int) -> float:
        """Two all-reduces a layer; the wire term is that of a ring."""
        work, machine = self.work, self.machine
        if not work.num_allreduces or not num_tokens or machine.link_bytes_s is None:
            return 0.0
        wire_s = work.wire_bytes_per_token * num_tokens / machine.link_bytes_s
        return work.num_allreduces * machine.allreduce_ns / NS + wire_s

    @property
    def _context_s(self) -> float:
        """Attention of one query token for each token it attends to, without windowed layers."""
        work, machine = self.work, self.machine
        return max(work.kv_bytes_per_token / machine.kv_bytes_s, work.flops_per_pair / machine.attention_flops_s)

    def _moves_s(self, copied_bytes: int, host_bytes: int) -> float:
        moved_s = 2 * copied_bytes / self.machine.kv_bytes_s
        if host_bytes:
            if self.machine.host_bytes_s is None:
                raise ConfigError("cost model: blocks move to host memory, and the machine has no host_bytes_s")
            moved_s += host_bytes / self.machine.host_bytes_s
        return moved_s


def attention_work(work: Work, start: int, count: int) -> tuple[float, float]:
    """(bytes of K and V read, floating-point operations) of a chunk: each key is read once a chunk, causal pairs."""
    num_bytes = work.kv_bytes_per_token * (start + count)
    flops = work.flops_per_pair * num_pairs(start, count)
    if (window := work.sliding_window) is not None:
        num_bytes += work.window_kv_bytes_per_token * min(start + count, window + count - 1)
        short = min(max(0, window - start), count)  # query tokens that see less than the whole window
        pairs = num_pairs(start, short) + (count - short) * window
        flops += work.window_flops_per_pair * pairs
    return num_bytes, flops


def num_pairs(start: int, count: int) -> int:
    """Query token at position p attends to p + 1 tokens."""
    return count * start + count * (count + 1) // 2
