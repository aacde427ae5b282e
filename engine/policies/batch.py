"""Batch policies: the order in which a step spends its token budget.

Phases: ``decodes`` (running, one token left), ``chunks`` (running, more left), ``running`` (both, in static order)
and ``admit`` (the waiting queue).
"""

from __future__ import annotations

from kvtop.engine.policies.registry import BATCH

BATCH.add("decode-first", "decodes, then unfinished chunks, then admissions: no ITL suffers for a prefill")(
    ("decodes", "chunks", "admit")
)
BATCH.add("prefill-first", "unfinished chunks and admissions, then decodes: best TTFT, decodes pause behind prefills")(
    ("chunks", "admit", "decodes")
)
BATCH.add("mixed", "running sequences in static order, then admissions: an early long prompt outranks later decodes")(
    ("running", "admit")
)
