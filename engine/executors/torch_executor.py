"""The executor that runs a real model: one packed forward pass a step, over paged K and V."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import kvtop.engine.executors.omp  # noqa: F401

# isort: split
import torch
from torch import Tensor

from kvtop.engine.config import KV_DTYPES
from kvtop.engine.errors import InvariantError, ModelError, UnknownName
from kvtop.engine.executors import cpu_rewrite, torch_load
from kvtop.engine.executors.attention_paths import PATHS, check_attention, choose_attention
from kvtop.engine.executors.gpu_graphs import Capture, CudaCapture, DecodeGraphs, capture_decodes
from kvtop.engine.executors.models import ModelInfo, resolve
from kvtop.engine.executors.prompt_scores import prompt_scores, scored_rows
from kvtop.engine.executors.sampling import NO_TOKEN, SampleSpec, best, sample
from kvtop.engine.executors.torch_batch import PagedBatch, Row
from kvtop.engine.executors.torch_layout import ModelGroups, model_groups
from kvtop.engine.executors.torch_pool import KVPool, LayerShape, bytes_per_block, check_fits, free_memory_bytes
from kvtop.engine.executors.torch_probe import check_against_own, forward, own_logits, probe_layers
from kvtop.engine.types import Chunk, ExecuteResult, Plan, Sample
from kvtop.engine.windows import Windows
from kvtop.kernels.cpu import jit


class TorchExecutor:
    """Computes plans with a transformers model. ``load`` it, ``allocate`` its KV pool once, then ``execute``.

    ``kv_dtype`` is how K and V are stored: auto (as they are computed), int8 or fp8. ``attention`` is what reads and
    writes them: auto, triton, cpu or torch (see ``attention_paths``). ``make_capture`` makes what captures decode-only
    steps, once a pool; None: they are launched as any other step.
    """

    name = "torch"
    scores_prompts = True

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        info: ModelInfo,
        layers: list[LayerShape],
        kv_dtype: str = "auto",
        attention: str = "auto",
    ) -> None:
        self.tokenizer, self.eos_token_ids = tokenizer, info.eos_token_ids
        self._model: Any = model
        self._layers = layers
        self.kv_dtype, self._asked = kv_dtype, attention
        self.attention = choose_attention(attention, model.device, model.dtype, layers, kv_dtype)
        self.info = replace(info, attention=PATHS[self.attention])
        captures = self.attention == "triton" and model.device.type == "cuda"
        self.make_capture: Callable[[], Capture] | None = CudaCapture if captures else None
        self._graphs: DecodeGraphs | None = None
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
        attention: str = "auto",
        progress: torch_load.Progress | None = None,
    ) -> TorchExecutor:
        """Load a model by name or path, and see that paged attention reproduces it.

        ``progress(text, fraction)`` is called now and then; the fraction is None where it is not known.

        Raises:
            ModelError: not found, broken, or not supported.
            ConfigError: a device or dtype that is not there, or attention that cannot be had on it, with the reason.
            UnknownName: no such KV dtype or attention.
        """
        check_kv_dtype(kv_dtype)
        check_attention(attention)
        report = progress or (lambda text, fraction: None)
        resolved, target = resolve(model), torch_load.choose_device(device)
        choose_attention(attention, target, torch.float32, (), kv_dtype)  # before anything is loaded
        if target.type == "cpu":
            jit.prepare()
        loaded = torch_load.load(resolved, target, dtype, report)
        layers = probe_layers(loaded.model, resolved.name)
        own = own_logits(loaded.model, loaded.text_config.vocab_size)
        described = torch_load.describe(resolved, loaded, layers)
        modules = cpu_rewrite.rewrite(loaded.model, loaded.notices)
        info = replace(described, modules=modules, notices=tuple(loaded.notices))
        check_against_own(loaded.model, layers, info.vocab_size, own, resolved.name, attention)
        return cls(loaded.model, loaded.tokenizer, info, layers, "auto", attention).with_kv_dtype(kv_dtype)

    def with_kv_dtype(self, kv_dtype: str, attention: str | None = None) -> TorchExecutor:
        """Another executor of the same weights, without a pool yet, that stores K and V as ``kv_dtype``.

        ``attention`` None: what was asked for of this one.

        Raises:
            UnknownName: no such KV dtype.
            ConfigError: the attention that was asked for does not read it.
        """
        check_kv_dtype(kv_dtype)
        per_token = bytes_per_block(self._layers, 1, self._model.dtype, kv_dtype)
        info = replace(self.info, kv_bytes_per_token=per_token)
        return TorchExecutor(self._model, self.tokenizer, info, self._layers, kv_dtype, attention or self._asked)

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

    def allocate(
        self,
        num_blocks: int,
        block_size: int,
        host_blocks: int = 0,
        kv_groups: Windows = (None,),
        max_num_seqs: int | None = None,
    ) -> None:
        """Allocate the KV pool, and ``host_blocks`` more in host memory for preemption by swap and evicted prefixes.

        ``kv_groups`` are the engine's: every layer reads the block table of its group. With ``max_num_seqs``, and where
        there is what captures, decode-only steps of up to so many sequences are captured and replayed. An earlier pool
        is given back first.

        Raises:
            ConfigError: not enough memory, with the numbers and what would fit; other groups than the model's.
        """
        self._pool = self._host = self._graphs = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # what an earlier pool gave back is free for this one
        self._pool = self._new_pool(num_blocks, block_size, self.device, kv_groups)
        if host_blocks:
            self._host = self._new_pool(host_blocks, block_size, torch.device("cpu"), kv_groups)
        said = ""
        if max_num_seqs and self.make_capture:
            self._graphs, said = capture_decodes(self._model, self._pool, self.make_capture(), max_num_seqs)
        self.info = replace(self.info, attention=PATHS[self.attention] + said)

    def _new_pool(self, num_blocks: int, block_size: int, device: torch.device, kv_groups: Windows) -> KVPool:
        need = num_blocks * self.kv_bytes_per_block(block_size, kv_groups)
        check_fits(need, free_memory_bytes(device), num_blocks, block_size, device)
        layout, swapped = self.groups.layout(kv_groups), device != self.device
        attention = "torch" if swapped else self.attention
        shape = (self._layers, num_blocks, block_size, self._model.dtype, device, layout, self.kv_dtype)
        return KVPool(*shape, attention=attention, pinned=swapped)

    def prepare(self) -> None:
        """Do now what the first steps would have to wait for: capture decode steps of every size."""
        if self._graphs:
            with torch.inference_mode():
                self._graphs.capture_all()

    @property
    def graph_bytes(self) -> int:
        """Device memory that captured steps take at the most."""
        return self._graphs.bytes if self._graphs else 0

    def execute(self, plan: Plan) -> ExecuteResult:
        """Move and copy blocks, compute every chunk in one forward pass, sample; ``device_ns`` is the time it took.

        On CUDA a step that samples nothing is not waited for: the next one that does takes the time of both.

        Raises:
            ModelError: the model produced NaN.
        """
        begin_ns = time.perf_counter_ns()
        with torch.inference_mode():
            self._move_blocks(plan)
            samples, scores = self._compute(plan.chunks) if plan.chunks else ({}, {})
        return ExecuteResult(samples, time.perf_counter_ns() - begin_ns, scores)

    def _move_blocks(self, plan: Plan) -> None:
        if plan.swap_out or plan.swap_in:
            if self._host is None:
                raise InvariantError("a plan swaps blocks, but no host blocks are allocated")
            self.pool.swap_to(self._host, plan.swap_out)
            self.pool.copy(plan.copies)
            self._host.swap_to(self.pool, plan.swap_in)
        else:
            self.pool.copy(plan.copies)
        plan.moved = True

    def _compute(self, chunks: list[Chunk]) -> tuple[dict[str, Sample], dict[str, list[float]]]:
        """What the chunks sample, and the log-probabilities of prompt tokens that they ask for."""
        rows = [Row(i, c.tokens, c.start, *_tables(c)) for i, c in enumerate(chunks)]
        if self._graphs and self._graphs.fits(rows) and all(c.num_samples and not c.scored for c in chunks):
            logits, order = self._graphs.logits(rows)
            return self._sample(logits, [chunks[i] for i in order]), {}
        batch = PagedBatch(self.pool, rows)
        keep, order = batch.last_rows({i for i, c in enumerate(chunks) if c.num_samples})
        asked = scored_rows(batch.rows, chunks)
        if asked:
            keep = torch.cat([keep, torch.tensor(asked, device=keep.device)])
        logits = forward(self._model, batch, batch.input_ids, batch.position_ids, keep)
        if batch.layers_seen != len(self._layers):
            raise InvariantError(f"attention ran {batch.layers_seen} times, the model has {len(self._layers)} layers")
        scores = prompt_scores(logits[len(order) :], chunks) if asked else {}
        return self._sample(logits[: len(order)], [chunks[i] for i in order]), scores

    def _sample(self, logits: Tensor, sampled: list[Chunk]) -> dict[str, Sample]:
        if not sampled:
            return {}
        specs = [_spec(c) for c in sampled]
        tokens = sample(logits, specs, self.eos_token_ids)
        if broken := [c.request_id for c, drawn in zip(sampled, tokens, strict=True) if NO_TOKEN in drawn]:
            raise ModelError(f"the model produced NaN logits for {', '.join(broken)}")
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
        self._pool = self._host = self._graphs = self._model = None


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
