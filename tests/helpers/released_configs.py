"""Configs of released models, as far as shapes depend on them."""

from typing import Any

from model_cases import Config

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}
LINEAR = {"rope_type": "linear", "factor": 8.0}
QWEN3 = {"rope_theta": 1e6, "head_dim": 128, "max_position_embeddings": 40960}
MOE = {"num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True}
GRANITE = {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.0078125}
GRANITE |= {"logits_scaling": 16.0, "rope_theta": 1e7, "max_position_embeddings": 131072}
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "rope_theta": 1e6, "rope_local_base_freq": 10000.0}


def released(kind: str, sizes: str, n_billion: float, **more: Any) -> tuple[Config, float]:
    """A config and its parameters in billions; `sizes`: width, ffn, layers, heads, KV heads, vocabulary."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers")
    names += ("num_attention_heads", "num_key_value_heads", "vocab_size")
    config = dict(zip(names, map(int, sizes.split()), strict=True))
    base = {"model_type": kind, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "max_position_embeddings": 131072}
    return {**base, **config, **more}, n_billion


RELEASED = {
    "llama-3.1-8b": released(
        "llama", "4096 14336 32 32 8 128256", 8.03, rope_theta=500000.0, rope_scaling=LLAMA3
    ),
    "llama-3.1-70b": released(
        "llama", "8192 28672 80 64 8 128256", 70.6, rope_theta=500000.0, rope_scaling=LLAMA3
    ),
    "llama-3.1-405b": released(
        "llama", "16384 53248 126 128 8 128256", 405.9, rope_theta=500000.0, rope_scaling=LLAMA3
    ),
    "qwen2.5-7b-1m": released("qwen2", "3584 18944 28 28 4 152064", 7.62, max_position_embeddings=1010000),
    "qwen3-0.6b": released("qwen3", "1024 3072 28 16 8 151936", 0.596, **QWEN3, tie_word_embeddings=True),
    "qwen3-8b": released("qwen3", "4096 12288 36 32 8 151936", 8.19, **QWEN3),
    "qwen3-32b": released("qwen3", "5120 25600 64 64 8 151936", 32.8, **QWEN3),
    "qwen3-30b-a3b": released(
        "qwen3_moe", "2048 6144 48 32 4 151936", 30.5, **QWEN3, **MOE, moe_intermediate_size=768
    ),
    "qwen3-235b-a22b": released(
        "qwen3_moe", "4096 12288 94 64 4 151936", 235.1, **QWEN3, **MOE, moe_intermediate_size=1536
    ),
    "gemma3-1b": released(
        *("gemma3_text", "1152 6912 26 4 1 262144", 1.0), **GEMMA, head_dim=256, query_pre_attn_scalar=256,
        sliding_window=512, tie_word_embeddings=True,
    ),
    "gemma3-27b": released(
        *("gemma3_text", "5376 21504 62 32 16 262208", 27.0), **GEMMA, head_dim=128, query_pre_attn_scalar=168,
        sliding_window=1024, rope_scaling=LINEAR, tie_word_embeddings=True,
    ),
    "granite-3.3-8b": released("granite", "4096 12800 40 32 8 49159", 8.17, **GRANITE, tie_word_embeddings=True),
    "mistral-7b-v0.3": released("mistral", "4096 14336 32 32 8 32768", 7.25, rope_theta=1e6, sliding_window=None),
    "mistral-small-24b": released(
        "mistral", "5120 32768 40 32 8 131072", 23.6, rope_theta=1e8, head_dim=128, sliding_window=None
    ),
}  # fmt: skip
