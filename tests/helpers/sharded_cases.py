"""The families' cases that ranks share, and those that they do not."""

from model_cases import CASES

# What no rule describes yet, with words of the sentence that says so.
REFUSED = {
    "olmo2": "olmo2 models",
    "olmo3": "olmo3 models",
    "stablelm_12b": r"with a tensor model\.layers\.0\.self_attn\.\w_norm\.0",
    "falcon_rw": "falcon models with ALiBi",
    "bloom": "bloom models",
    "mpt": "mpt models",
    "qwen3_next": "qwen3_next models",
    "qwen3_5": "qwen3_5 models",
    "qwen3_5_moe": "qwen3_5_moe models",
    "gemma4": "gemma4 models",
    "gemma4_e": "gemma4 models",
    "gemma4_moe": "gemma4 models",
    "granite4": "granitemoehybrid models",
    "granite4_h": "granitemoehybrid models",
    "granite4_h_dense": "granitemoehybrid models",
    "llama4": "llama4 models",
    "llama4_chunks": "llama4 models",
    "bitnet": "bitnet models",
    "bitnet_silu": "bitnet models",
    "deepseek_v2": "deepseek_v2 models",
    "deepseek_v3": "deepseek_v3 models",
    "glm4_moe_lite": "glm4_moe_lite models",
    "mistral4": "mistral4 models",
}
SHARED = [case for case in CASES if case not in REFUSED]
