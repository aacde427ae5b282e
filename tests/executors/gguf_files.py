"""Small GGUF files with random weights, made with the gguf package's writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB = 2, 64, 4, 2, 96, 96
HEAD = HIDDEN // HEADS


def weights(architecture: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Tensors under their GGUF names, in GGUF's own order of rows."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for i in range(LAYERS):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (HIDDEN,),
            f"blk.{i}.attn_q.weight": (HIDDEN, HIDDEN),
            f"blk.{i}.attn_k.weight": (KV_HEADS * HEAD, HIDDEN),
            f"blk.{i}.attn_v.weight": (KV_HEADS * HEAD, HIDDEN),
            f"blk.{i}.attn_output.weight": (HIDDEN, HIDDEN),
            f"blk.{i}.ffn_norm.weight": (HIDDEN,),
            f"blk.{i}.ffn_gate.weight": (FFN, HIDDEN),
            f"blk.{i}.ffn_up.weight": (FFN, HIDDEN),
            f"blk.{i}.ffn_down.weight": (HIDDEN, FFN),
        }
        if architecture == "qwen2":
            for name, size in (("q", HIDDEN), ("k", KV_HEADS * HEAD), ("v", KV_HEADS * HEAD)):
                shapes[f"blk.{i}.attn_{name}.bias"] = (size,)
    return {name: rng.standard_normal(shape, dtype=np.float32) * 0.3 for name, shape in shapes.items()}


def write_gguf(
    path: Path, architecture: str = "llama", *, quantised: bool = False, with_tokenizer: bool = False
) -> None:
    import gguf

    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_name("made for a test")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(VOCAB)
    if with_tokenizer:
        _add_tokenizer(writer)
    for name, values in weights(architecture).items():
        if quantised and values.ndim == 2:
            kind: Any = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: Any) -> None:
    tokens = ["<unk>", "<s>", "</s>", "ab", *(chr(33 + i) for i in range(VOCAB - 4))]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * (VOCAB - 3)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}!")
