"""``kvtop models``: what can be run, and what ``kvtop calc`` and simulated runs know by name."""

from __future__ import annotations

import argparse
import json

from kvtop.cli.run_options import add_json
from kvtop.cli.text import format_bytes, listing, table
from kvtop.engine.executors.models import list_models
from kvtop.presets import GPUS, MODELS

DESCRIPTION = "List the models that can be run (-m) and the presets of `kvtop calc` and `--executor sim`."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    if args.json:
        print(json.dumps(_as_json(), indent=2))
        return 0
    print(f"to run (-m), besides any Hugging Face directory or GGUF file:\n{listing(_runnable())}\n")
    rows = [
        [
            f"  {name}",
            f"{preset.num_params / 1e9:.2f} B",
            str(preset.num_layers),
            str(preset.num_kv_heads),
            str(preset.head_dim),
            f"{preset.max_model_len:,}",
            f"{preset.sliding_window:,} in {preset.num_sliding_layers}" if preset.sliding_window else "",
        ]
        for name, preset in MODELS.items()
    ]
    header = ["  for calc, and simulated", "params", "layers", "KV heads", "head dim", "max length", "window in layers"]
    print(table(rows, header=header))
    gpus = {name: format_bytes(gpu.memory_bytes) for name, gpu in GPUS.items()}
    print(f"\nGPUs for calc, and simulated (--gpu), with the memory that the driver reports:\n{listing(gpus)}")
    return 0


def _runnable() -> dict[str, str]:
    """Name -> one line, saying so where the model's package is missing."""
    return {name: text if here else f"{text} (not installed)" for name, text, here in list_models()}


def _as_json() -> dict[str, object]:
    from dataclasses import asdict

    return {
        "runnable": _runnable(),
        "calc_models": {name: asdict(preset) for name, preset in MODELS.items()},
        "gpus": {name: asdict(preset) for name, preset in GPUS.items()},
    }
