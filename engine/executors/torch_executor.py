"""The executor that runs a real model: one packed forward pass a step, over paged K and V."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import kvtop.engine.executors.omp  # noqa: F401

# isort: split
import torch
from torch import Tensor

from kvtop.engine.config import KV_DTYPES
from kvtop.engine.errors import InvariantError, ModelError, UnknownName
from kvtop.engine.executors import cpu_rewrite, torch_load
from kvtop.engine.executors.models import ModelInfo, ResolvedModel, resolve
from kvtop.engine.executors.sampling import SampleSpec, best, sample
from kvtop.engine.executors.torch_batch import PagedBatch, Row
from kvtop.engine.executors.torch_layout import ModelGroups, model_groups
from kvtop.engine.executors.torch_pool import KVPool, LayerShape, bytes_per_block, check_fits, free_memory_bytes
from kvtop.engine.executors.torch_probe import check_against_own, forward, own_logits, probe_layers
from kvtop.engine.types import Chunk, ExecuteResult, Plan, Sample
from kvtop.engine.windows import Windows
from kvtop.kernels.cpu import jit


class TorchExecutor:
    """Computes plans with a transformers model. ``load`` it, ``allocate`` its KV pool once, then ``execute``.

    ``kv_dtype`` is how K and V are stored: auto (as they are computed), int8 or fp8.
    """

    name = "torch"

    def __init__(
        self, model: Any, tokenizer: Any, info: ModelInfo, layers: list[LayerShape], kv_dtype: str = "auto"
    ) -> None:
        self.info, self.tokenizer, self.eos_token_ids = info, tokenizer, info.eos_token_ids
        self._model: Any = model
        self._layers = layers
        self.kv_dtype = kv_dtype
        self.groups: ModelGroups = model_groups(layers)
        self._pool: KVPool | None = None
        self._host: KVPool | None = None

    @classmethod
    def load(
        cls,
        model: str,
        *,
        device: str = "auto",
        dtype: str | None = None,
        kv_dtype: str = "auto",
        progress: torch_load.Progress | None = None,
    ) -> TorchExecutor:
        """Load a model by name or path, and see that paged attention reproduces it.

        ``progress(text, fraction)`` is called now and then; the fraction is None where it is not known.

        Raises:
            ModelError: not found, broken, or not supported.
            ConfigError: a device or dtype that is not there.
            UnknownName: no such KV dtype.
        """
        check_kv_dtype(kv_dtype)
        report = progress or (lambda text, fraction: None)
        resolved, target = resolve(model), torch_load.choose_device(device)
        if target.type == "cpu":
            jit.prepare()
        loaded = torch_load.load(resolved, target, dtype, report)
        layers = probe_layers(loaded.model, resolved.name)
        own = own_logits(loaded.model, loaded.text_config.vocab_size)
        info = _describe(resolved, loaded, layers, cpu_rewrite.rewrite(loaded.model))
        check_against_own(loaded.model, layers, info.vocab_size, own, resolved.name)
        return cls(loaded.model, loaded.tokenizer, info, layers).with_kv_dtype(kv_dtype)

    def with_kv_dtype(self, kv_dtype: str) -> TorchExecutor:
        """Another executor of the same weights, without a pool yet, that stores K and V as ``kv_dtype``.

        Raises:
            UnknownName: no such KV dtype.
        """
        check_kv_dtype(kv_dtype)
        per_token = bytes_per_block(self._layers, 1, self._model.dtype, kv_dtype)
        info = replace(self.info, kv_bytes_per_token=per_token)
        return TorchExecutor(self._model, self.tokenizer, info, self._layers, kv_dtype)

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return self.info.vocab_size

    @property
    def device(self) -> torch.device:
        return self._model.device

    @property
    def stored_dtype(self) -> str:
        """What K and V are stored as, "auto" resolved to the model's own precision."""
        return self.info.dtype if self.kv_dtype == "auto" else self.kv_dtype

    @property
    def pool(self) -> KVPool:
        """The KV memory; an error before ``allocate``."""
        if self._pool is None:
            raise InvariantError("the executor's KV pool is not allocated")
        return self._pool

    def kv_bytes_per_block(self, block_size: int, kv_groups: Windows = (None,)) -> int:
        """Exact bytes of one block of ``block_size`` tokens: K and V of all layers, or of the slots of one KV group.

        Scales, and slots that a smaller group leaves empty, are counted. Raises ConfigError: other groups than the
        model's.
        """
        return bytes_per_block(self.groups.layout(kv_groups).slots, block_size, self._model.dtype, self.kv_dtype)

    def free_memory_bytes(self) -> int:
        """Memory left for blocks on the model's device."""
        return free_memory_bytes(self.device)

    def allocate(self, num_blocks: int, block_size: int, host_blocks: int = 0, kv_groups: Windows = (None,)) -> None:
        """Allocate the KV pool, and ``host_blocks`` more in host memory for preemption by swap.

        ``kv_groups`` are the engine's: every layer reads the block table of its group. An earlier pool is given back
        first.

        Raises:
            ConfigError: not enough memory, with the numbers and what would fit; other groups than the model's.
        """
        self._pool = self._host = None
        self._pool = self._new_pool(num_blocks, block_size, self.device, kv_groups)
        if host_blocks:
            self._host = self._new_pool(host_blocks, block_size, torch.device("cpu"), kv_groups)

    def _new_pool(self, num_blocks: int, block_size: int, device: torch.device, kv_groups: Windows) -> KVPool:
        need = num_blocks * self.kv_bytes_per_block(block_size, kv_groups)
        check_fits(need, free_memory_bytes(device), num_blocks, block_size, device)
        layout = self.groups.layout(kv_groups)
        return KVPool(self._layers, num_blocks, block_size, self._model.dtype, device, layout, self.kv_dtype)

    def execute(self, plan: Plan) -> ExecuteResult:
        """Move and copy blocks, compute every chunk in one forward pass, sample; ``device_ns`` is the time it took.

        Raises:
            ModelError: the model produced NaN.
        """
        begin_ns = time.perf_counter_ns()
        with torch.inference_mode():
            self._move_blocks(plan)
            samples = self._compute(plan.chunks) if plan.chunks else {}
        return ExecuteResult(samples, time.perf_counter_ns() - begin_ns)

    def _move_blocks(self, plan: Plan) -> None:
        if plan.swap_out or plan.swap_in:
            if self._host is None:
                raise InvariantError("a plan swaps blocks, but no host blocks are allocated")
            self.pool.swap_to(self._host, plan.swap_out)
            self.pool.copy(plan.copies)
            self._host.swap_to(self.pool, plan.swap_in)
        else:
            self.pool.copy(plan.copies)

    def _compute(self, chunks: list[Chunk]) -> dict[str, Sample]:
        rows = [Row(i, c.tokens, c.start, *_tables(c)) for i, c in enumerate(chunks)]
        batch = PagedBatch(self.pool, rows)
        keep, order = batch.last_rows({i for i, c in enumerate(chunks) if c.num_samples})
        logits = forward(self._model, batch, batch.input_ids, batch.position_ids, keep)
        if batch.layers_seen != len(self._layers):
            raise InvariantError(f"attention ran {batch.layers_seen} times, the model has {len(self._layers)} layers")
        if not order:
            return {}
        sampled = [chunks[i] for i in order]
        _check_finite(logits, sampled)
        specs = [_spec(c) for c in sampled]
        tokens = sample(logits, specs, self.eos_token_ids)
        samples = {c.request_id: Sample(t) for c, t in zip(sampled, tokens, strict=True)}
        beams = [i for i, c in enumerate(sampled) if c.num_top]
        if beams:
            num_top = [sampled[i].num_top for i in beams]
            tops = best(logits[beams], [specs[i] for i in beams], num_top, self.eos_token_ids)
            samples |= {sampled[i].request_id: Sample((), top) for i, top in zip(beams, tops, strict=True)}
        return samples

    def encode_chat(self, text: str) -> list[int]:
        """Token ids of one user message through the model's chat template, ready for the answer.

        Raises:
            ModelError: the model has no tokenizer.
        """
        if self.tokenizer is None:
            raise ModelError(f"{self.info.name} has no tokenizer: it takes token ids only")
        if not getattr(self.tokenizer, "chat_template", None):
            return list(self.tokenizer(text)["input_ids"])
        message = [{"role": "user", "content": text}]
        encoded = self.tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)
        return list(encoded["input_ids"])

    def decode(self, ids: list[int]) -> str:
        """Text of token ids, special tokens left out; without a tokenizer the ids themselves: ``<5> <17>``."""
        if self.tokenizer is None:
            return " ".join(f"<{token}>" for token in ids)
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def close(self) -> None:
        """Give the memory back; the executor cannot be used afterwards."""
        self._pool = self._host = self._model = None


def check_kv_dtype(kv_dtype: str) -> None:
    """Raises UnknownName, with the nearest: neither auto, int8 nor fp8."""
    if kv_dtype not in KV_DTYPES:
        raise UnknownName("KV dtype", kv_dtype, KV_DTYPES)


def _tables(chunk: Chunk) -> tuple[list[int], list[list[int]]]:
    first, *others = chunk.sequence.block_tables
    return first, others


def _spec(chunk: Chunk) -> SampleSpec:
    sequence = chunk.sequence
    return SampleSpec(
        sequence.params, sequence.request.submission, sequence.branch, sequence.num_output, chunk.num_samples
    )


def _check_finite(logits: Tensor, chunks: list[Chunk]) -> None:
    """NaN anywhere in a row shows in its maximum."""
    broken = logits.amax(-1).isnan()
    if broken.any():
        names = [c.request_id for c, bad in zip(chunks, broken.tolist(), strict=True) if bad]
        raise ModelError(f"the model produced NaN logits for {', '.join(names)}")


def _describe(
    resolved: ResolvedModel, loaded: torch_load.LoadedModel, layers: list[LayerShape], computed_by: str
) -> ModelInfo:
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
        dtype=torch_load.DTYPE_NAMES.get(dtype, str(dtype)),
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
        computed_by=computed_by,
    )
