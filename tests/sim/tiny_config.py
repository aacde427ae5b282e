"""The embedded tiny model's config.json, as a user would have it."""

TINY = {
    "model_type": "llama",
    "vocab_size": 1024,
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
