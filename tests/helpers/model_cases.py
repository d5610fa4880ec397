"""Tiny random models, one or more per family: their configs, and weights that any machine can make again."""

import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from family_cases import BASE, MORE_CASES

Config = dict[str, Any]
Arrays = dict[str, NDArray[np.float32]]
N_TOKENS = 24

LLAMA = {**BASE, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
MISTRAL = {**BASE, "model_type": "mistral", "architectures": ["MistralForCausalLM"]}
QWEN2 = {**BASE, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "rope_theta": 1e6}
QWEN3 = {**BASE, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 24, "rope_theta": 1e6}
QWEN3_MOE = {
    **QWEN3,
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
GRANITE = {
    **BASE,
    "model_type": "granite",
    "architectures": ["GraniteForCausalLM"],
    "tie_word_embeddings": True,
    "embedding_multiplier": 6.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.1,
    "logits_scaling": 4.0,
}
GEMMA3 = {
    **BASE,
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    "num_hidden_layers": 7,  # the sixth is global
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 5,
    "rope_theta": 1e6,
    "rope_local_base_freq": 10000.0,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

CASES: dict[str, Config] = {
    "llama": LLAMA,
    "llama_llama3": {**LLAMA, "rope_theta": 500000.0, "rope_scaling": LLAMA3_ROPE},
    "llama_linear": {**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "llama_yarn": {**LLAMA, "rope_scaling": YARN_ROPE},
    "llama_biased": {**LLAMA, "attention_bias": True, "mlp_bias": True, "head_dim": 24, "tie_word_embeddings": True},
    "mistral": {**MISTRAL, "sliding_window": 7},
    "qwen2": QWEN2,
    "qwen2_window": {**QWEN2, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3_MOE,
    "qwen3_moe_mixed": {**QWEN3_MOE, "norm_topk_prob": False, "mlp_only_layers": [1]},
    "granite": GRANITE,
    "gemma3": GEMMA3,
    "gemma3_global": {
        **GEMMA3,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "query_pre_attn_scalar": 16,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "final_logit_softcapping": 2.0,
    },
    **MORE_CASES,
}
# What GGUF metadata has no words for.
NO_GGUF = {"qwen2_window", "qwen3_moe_mixed", "ministral", "granite4", "llama4_chunks", "bitnet", "falcon_rw"}
NO_GGUF |= {"gpt_bigcode_heads"}
# The plainest case of each family.
FAMILY_CASES = ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "granite", "gemma3", *MORE_CASES]
# Norm gains are stored less one.
OFFSET = ("gemma", "gemma2", "gemma3_text", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
SHAPES = Path(__file__).parents[1] / "fixtures" / "models" / "shapes.json"


def token_ids() -> list[int]:
    """The text every case reads."""
    return [1 + (i * i * 7 + 3 * i) % 120 for i in range(N_TOKENS)]


def make_weights(config: Config) -> Arrays:
    """The same numbers on every machine: each tensor's values depend on its name and shape alone."""
    return {name: values(name, shape, config) for name, shape in shapes(config).items()}


def values(name: str, shape: tuple[int, ...], config: Config) -> NDArray[np.float32]:
    # RandomState's streams are frozen for good, unlike those of newer generators.
    draws = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if re.search(r"(norm|ln_\w+)\.weight$", name):
        whole = config["model_type"] not in OFFSET or name.endswith("linear_attn.norm.weight")
        # Where scores are not scaled, sharp ones would magnify every rounding.
        soft = 0.3 if config["model_type"] == "gemma4_text" and name.endswith("q_norm.weight") else 1.0
        return (soft * (draws * 0.2 + whole)).astype(np.float32)
    if name.endswith("layer_scalar"):
        return (draws * 0.1 + 1).astype(np.float32)
    scale = 0.1 if len(shape) == 1 else shape[-1] ** -0.5
    return (draws * scale).astype(np.float32)


def recorded_shapes() -> dict[str, dict[str, tuple[int, ...]]]:
    """By case, for the families whose tensors are listed rather than worked out."""
    stored: dict[str, dict[str, list[int]]] = json.loads(SHAPES.read_text()) if SHAPES.is_file() else {}
    return {case: {name: tuple(shape) for name, shape in found.items()} for case, found in stored.items()}


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    case = next((case for case in MORE_CASES if MORE_CASES[case] == config), None)
    if case:
        return recorded_shapes()[case]
    width, vocab = config["hidden_size"], config["vocab_size"]
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, width), "model.norm.weight": (width,)}
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = (vocab, width)
    for i in range(config["num_hidden_layers"]):
        parts = attention_shapes(config) | norm_shapes(config) | ffn_shapes(config, i)
        found |= {f"model.layers.{i}.{name}": shape for name, shape in parts.items()}
    return found


def attention_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    width, n_heads, n_kv = (config[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    head_dim = config.get("head_dim", width // n_heads)
    rows = {"q_proj": n_heads * head_dim, "k_proj": n_kv * head_dim, "v_proj": n_kv * head_dim}
    found: dict[str, tuple[int, ...]] = {f"self_attn.{name}.weight": (n, width) for name, n in rows.items()}
    found["self_attn.o_proj.weight"] = (width, n_heads * head_dim)
    if config.get("attention_bias") or config["model_type"] == "qwen2":
        found |= {f"self_attn.{name}.bias": (n,) for name, n in rows.items()}
    if config.get("attention_bias"):
        found["self_attn.o_proj.bias"] = (width,)
    if config["model_type"] in ("qwen3", "qwen3_moe", "gemma3_text"):
        found |= {f"self_attn.{name}.weight": (head_dim,) for name in ("q_norm", "k_norm")}
    return found


def norm_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    names = ["input_layernorm", "post_attention_layernorm"]
    if config["model_type"] == "gemma3_text":
        names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    return {f"{name}.weight": (config["hidden_size"],) for name in names}


def ffn_shapes(config: Config, layer: int) -> dict[str, tuple[int, ...]]:
    width = config["hidden_size"]
    if config["model_type"] != "qwen3_moe" or layer in config.get("mlp_only_layers", []):
        found = gated_shapes("mlp", width, config["intermediate_size"])
        if config.get("mlp_bias"):
            found |= {name.replace("weight", "bias"): (shape[0],) for name, shape in found.items()}
        return found
    found = {"mlp.gate.weight": (config["num_experts"], width)}
    for e in range(config["num_experts"]):
        found |= gated_shapes(f"mlp.experts.{e}", width, config["moe_intermediate_size"])
    return found


def gated_shapes(prefix: str, width: int, inner: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.gate_proj.weight": (inner, width),
        f"{prefix}.up_proj.weight": (inner, width),
        f"{prefix}.down_proj.weight": (width, inner),
    }
