"""The embedded model: a tiny Llama whose weights come from a seed, the same everywhere."""

from __future__ import annotations

from typing import Any

SEED = 20_240_817
VOCAB_SIZE = 1024
MAX_MODEL_LEN = 8192


def tiny_llama(**from_config: Any) -> Any:
    """Build the model (fp32, CPU): 4 layers, 6 heads over 2 KV heads of size 32, 1024 tokens, no end token.

    The weights are drawn with NumPy's PCG64, whose stream does not depend on the machine; scaled so that attention
    matters and the two best logits rarely tie. ``from_config`` goes to ``AutoModelForCausalLM.from_config``.
    """
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_MODEL_LEN,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):  # construction draws from the global generator
        model = AutoModelForCausalLM.from_config(config, **from_config)
    stream = np.random.Generator(np.random.PCG64(SEED))
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if weight.ndim == 1:
                weight.fill_(1.0)
                continue
            scale = 1.0 if "embed_tokens" in name else 1.5 * weight.shape[1] ** -0.5
            weight.copy_(torch.from_numpy(stream.standard_normal(tuple(weight.shape), dtype=np.float32) * scale))
    return model
