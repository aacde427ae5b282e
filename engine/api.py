"""The public API: everything an example or a test needs from the engine."""

from kvtop.engine.clock import Clock, RealClock, VirtualClock
from kvtop.engine.config import EngineConfig
from kvtop.engine.engine import Engine
from kvtop.engine.errors import (
    ConfigError,
    EngineStalled,
    InvalidRequest,
    InvariantError,
    KvtopError,
    QueueFull,
    RequestTooLong,
    UnknownName,
)
from kvtop.engine.executors.null import NullExecutor
from kvtop.engine.recorder import NullRecorder, Recorder
from kvtop.engine.types import (
    BlockState,
    BlockView,
    Chunk,
    Eviction,
    ExecuteResult,
    Executor,
    FinishReason,
    KVCounters,
    MissReason,
    Plan,
    RequestSpec,
    RequestState,
    RequestView,
    ResetResult,
    Sample,
    SamplingParams,
    Shortage,
    Stall,
    StepOutput,
    WaitReason,
)

__all__ = [
    "BlockState", "BlockView", "Chunk", "Clock", "ConfigError", "Engine", "EngineConfig", "EngineStalled", "Eviction",
    "ExecuteResult", "Executor", "FinishReason", "InvalidRequest", "InvariantError", "KVCounters", "KvtopError",
    "MissReason", "NullExecutor", "NullRecorder", "Plan", "QueueFull", "RealClock", "Recorder", "RequestSpec",
    "RequestState", "RequestTooLong", "RequestView", "ResetResult", "Sample", "SamplingParams", "Shortage", "Stall",
    "StepOutput", "UnknownName", "VirtualClock", "WaitReason",
]  # fmt: skip
