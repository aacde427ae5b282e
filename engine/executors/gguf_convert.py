"""GGUF files: config and tokenizer through transformers, weights dequantised to fp32 with the gguf package.

transformers reads the weights too, but only with accelerate installed; these few lines need nothing more, and can say
how far they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvtop.engine.errors import ModelError
from kvtop.engine.executors.quiet import one_line

Progress = Callable[[str, float | None], None]

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3")


@dataclass(slots=True)
class ConvertedModel:
    """A GGUF's content in transformers' terms; the weights are fp32."""

    config: Any
    tokenizer: Any
    state: dict[str, torch.Tensor]

    def write(self, folder: Path) -> None:
        """Save as a Hugging Face directory."""
        from safetensors.torch import save_file

        self.config.save_pretrained(folder)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)
        save_file(self.state, folder / "model.safetensors", metadata={"format": "pt"})


def convert(path: Path, progress: Progress) -> ConvertedModel:
    """Read a GGUF file whole: 10 to 20 s for 135M parameters, most of it parsing the vocabulary.

    Raises:
        ModelError: not readable, or an architecture that is not supported.
    """
    from gguf import GGUFReader
    from transformers import AutoConfig, AutoTokenizer
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    text = f"converting {path.name}, once"
    progress(text, 0.0)
    try:
        reader = GGUFReader(path)
        architecture = _text_field(reader, "general.architecture")
        if architecture not in ARCHITECTURES:
            raise ModelError(
                f"{path}: GGUF architecture {architecture!r} is not supported (supported: {', '.join(ARCHITECTURES)})"
            )
        progress(text, 0.2)
        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
        model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        config.architectures = [model_class.__name__]
        progress(text, 0.4)
        tokenizer = None
        if "tokenizer.ggml.tokens" in reader.fields:
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
        progress(text, 0.6)
        state: dict[str, torch.Tensor] = {}
        total, done = sum(int(t.n_bytes) for t in reader.tensors), 0
        names = _weight_names(architecture, config)
        for tensor in reader.tensors:
            state.update(_weight(tensor, names, architecture, config))
            done += int(tensor.n_bytes)
            progress(text, 0.6 + 0.3 * done / max(total, 1))
    except ModelError:
        raise
    except Exception as error:  # the readers raise anything on a damaged file
        raise ModelError(f"{path}: cannot read this GGUF file: {one_line(error)}") from error
    return ConvertedModel(config, tokenizer, state)


def _text_field(reader: Any, key: str) -> str:
    field = reader.fields.get(key)
    return "" if field is None else bytes(field.parts[field.data[0]]).decode("utf-8", "replace")


def _weight_names(architecture: str, config: Any) -> dict[str, str]:
    """GGUF tensor name -> transformers parameter name, from a weightless copy of the model."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
    from transformers import AutoModelForCausalLM

    arch = next(key for key, name in MODEL_ARCH_NAMES.items() if name == architecture)
    table = get_tensor_name_map(arch, config.num_hidden_layers)
    with torch.device("meta"):
        parameters = list(AutoModelForCausalLM.from_config(config).state_dict())
    names = {}
    for parameter in parameters:
        stem, _, suffix = parameter.rpartition(".")
        gguf_name = table.get_name(stem)
        if gguf_name:
            names[f"{gguf_name}.{suffix}"] = parameter
    return names


def _weight(tensor: Any, names: dict[str, str], architecture: str, config: Any) -> Iterator[tuple[str, torch.Tensor]]:
    from gguf import dequantize

    name = names.get(tensor.name)
    if name is None:  # e.g. rope_freqs, which transformers derives from the config
        return
    values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    if architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        values = _rotate_half_order(values, heads)
    elif architecture.startswith("gemma") and name.endswith("norm.weight"):
        values = values - 1  # GGUF stores 1 + weight
    yield name, torch.from_numpy(np.ascontiguousarray(values))


def _rotate_half_order(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of a head from rotated pairs (0, 1), (2, 3), ... to halves, the order transformers' rope expects."""
    half = values.shape[0] // num_heads // 2
    return values.reshape(num_heads, half, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
