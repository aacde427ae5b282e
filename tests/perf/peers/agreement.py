"""Whether the peers gave the same answers, and how near a tie it was where they did not."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM


def agreement(requests: list[dict], answers: dict[str, list[list[int]]], model_dir: str) -> str:
    """A line a peer: answers equal to ``generate``'s token for token, and at the others' first difference the gap.

    Without ``generate`` they are held against the first peer's.

    The gap is between the logits of the two tokens, computed once more without batch or padding in fp64. A gap at the
    size of fp32's rounding is a tie that any order of summation decides.
    """
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float64).eval()
    reference = "generate" if "generate" in answers else next(iter(answers))
    lines = [""]
    for name, mine in answers.items():
        if name == reference:
            continue
        gaps = []
        for request, ours, theirs in zip(requests, mine, answers[reference], strict=True):
            if ours != theirs:
                gaps.append(_gap(model, request["prompt"], ours, theirs))
        text = f"{name}: {len(mine) - len(gaps)} of {len(mine)} answers equal {reference}'s, token for token"
        if gaps:
            text += f"; largest gap of logits at a first difference {max(gaps):.2g}"
        lines.append(text)
    return "\n".join(lines)


def _gap(model, prompt: list[int], ours: list[int], theirs: list[int]) -> float:
    at = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + theirs[:at]]), logits_to_keep=1).logits[0, -1]
    return abs(float(logits[ours[at]] - logits[theirs[at]]))
