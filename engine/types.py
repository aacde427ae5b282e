"""The words of the engine: plain data shared by engine, workloads and front ends. Loads no torch.

One door to all of them; each is described where it stands:

    requests.py   what a request asks for (``SamplingParams``, ``RequestSpec``), and a ``Source`` of them
    plan.py       what a step computes, and the contract of an ``Executor``
    outputs.py    what a step did (``StepOutput``), and why not more (``Shortage``, ``Stall``)
    snapshots.py  copies of the engine's state: counters, a request, a block
    reasons.py    states and reasons by name

Times are int64 nanoseconds from one monotonic or virtual clock that starts at 0 with the run.
"""

from kvtop.engine.outputs import EvictedRun, Eviction, Shortage, Stall, StepOutput
from kvtop.engine.plan import NULL_BLOCK, Chunk, ExecuteResult, Executor, Plan, Sample
from kvtop.engine.reasons import BlockState, FinishReason, MissReason, RequestState, ResetResult, WaitReason
from kvtop.engine.requests import GREEDY_BELOW, MAX_BRANCHES, ExtraKey, RequestSpec, SamplingParams, Source
from kvtop.engine.snapshots import BlockView, KVCounters, RequestTimes, RequestView

__all__ = [
    "GREEDY_BELOW", "MAX_BRANCHES", "NULL_BLOCK", "BlockState", "BlockView", "Chunk", "EvictedRun", "Eviction",
    "ExecuteResult", "Executor", "ExtraKey", "FinishReason", "KVCounters", "MissReason", "Plan", "RequestSpec",
    "RequestState", "RequestTimes", "RequestView", "ResetResult", "Sample", "SamplingParams", "Shortage", "Source",
    "Stall", "StepOutput", "WaitReason",
]  # fmt: skip
