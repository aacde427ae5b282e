"""Whether the peers gave the same answers, and how near a tie it was where they did not."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM


def agreement(requests: list[dict], answers: dict[str, list[list[list[int]]]], model_dir: str) -> str:
    """A line a peer: answers equal to ``generate``'s token for token, and at the others' first difference the gap.

    ``answers``: of each peer the token ids of every request, run by run; the first runs are held against each other,
    and a peer's later ones against its first. Without ``generate`` the reference is the first peer.

    The gap is between the logits of the two tokens, computed once more without batch or padding in fp64. A gap at the
    size of fp32's rounding is a tie that any order of summation decides.
    """
    reference = "generate" if "generate" in answers else next(iter(answers), "")
    model = None
    lines = [""]
    for name, (mine, *later) in answers.items():
        text = f"{name}: "
        if name != reference:
            theirs = answers[reference][0]
            unequal = [i for i in range(len(requests)) if mine[i] != theirs[i]]
            text += f"{len(mine) - len(unequal)} of {len(mine)} answers equal {reference}'s, token for token"
            if unequal:
                model = model or AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float64).eval()
                gaps = [_gap(model, requests[i]["prompt"], mine[i], theirs[i]) for i in unequal]
                text += f"; largest gap of logits at a first difference {max(gaps):.2g}"
        else:
            text += "the reference"
        moved = sum(any(run[i] != first for run in later) for i, first in enumerate(mine))
        lines.append(text + (f"; {moved} answers differ between its own runs" if moved else ""))
    return "\n".join(lines)


def _gap(model, prompt: list[int], ours: list[int], theirs: list[int]) -> float:
    at = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + theirs[:at]]), logits_to_keep=1).logits[0, -1]
    return abs(float(logits[ours[at]] - logits[theirs[at]]))
