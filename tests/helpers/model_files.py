"""Writes the tiny models as a Hugging Face directory and as a GGUF, the way released files have them."""

import json
import math
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from gguf_forms import gguf_forms
from gguf_maker import Gguf, Stored, Typed, safetensors
from model_cases import OFFSET, Arrays, Config

A = gguf.MODEL_ARCH
ARCHITECTURES = {
    "llama": A.LLAMA,
    "mistral": A.LLAMA,
    "mixtral": A.LLAMA,
    "ministral3": A.MISTRAL3,
    "smollm3": A.SMOLLM3,
    "olmo2": A.OLMO2,
    "olmo3": A.OLMO2,
    "phi3": A.PHI3,
    "phimoe": A.PHIMOE,
    "bitnet": A.BITNET,
    "glm": A.CHATGLM,
    "glm4": A.GLM4,
    "qwen2": A.QWEN2,
    "qwen3": A.QWEN3,
    "qwen3_moe": A.QWEN3MOE,
    "granite": A.GRANITE,
    "granitemoe": A.GRANITE_MOE,
    "granitemoeshared": A.GRANITE_MOE,
    "gemma": A.GEMMA,
    "gemma2": A.GEMMA2,
    "gemma3_text": A.GEMMA3,
    "gpt_oss": A.GPT_OSS,
    "glm4_moe": A.GLM4_MOE,
    "granitemoehybrid": A.GRANITE_HYBRID,
    "llama4_text": A.LLAMA4,
    "deepseek_v2": A.DEEPSEEK2,
    "deepseek_v3": A.DEEPSEEK2,
    "glm4_moe_lite": A.DEEPSEEK2,
    "mistral4": A.MISTRAL4,
    "qwen3_next": A.QWEN3NEXT,
    "qwen3_5_text": A.QWEN35,
    "qwen3_5_moe_text": A.QWEN35MOE,
    "gemma4_text": A.GEMMA4,
    "qwen2_moe": A.QWEN2MOE,
    "cohere": A.COMMAND_R,
    "cohere2": A.COHERE2,
    "stablelm": A.STABLELM,
    "starcoder2": A.STARCODER2,
    "gpt2": A.GPT2,
    "gpt_neox": A.GPTNEOX,
    "falcon": A.FALCON,
    "bloom": A.BLOOM,
    "mpt": A.MPT,
    "phi": A.PHI2,
    "gpt_bigcode": A.STARCODER,
    "internlm3": A.LLAMA,
    "minicpm": A.MINICPM,
    "qwen2_vl_text": A.QWEN2VL,
    "qwen2_5_vl_text": A.QWEN2VL,
    "qwen3_vl_text": A.QWEN3VL,
    "qwen3_vl_moe_text": A.QWEN3VLMOE,
}
# Families whose GGUFs hold queries and keys in pairs order.
PAIRED = ("llama", "mistral", "mixtral", "ministral3", "smollm3", "granite", "granitemoe", "granitemoeshared")
PAIRED += ("granitemoehybrid", "internlm3", "minicpm")

KEYS = {
    "num_hidden_layers": ("block_count", "u32"),
    "max_position_embeddings": ("context_length", "u32"),
    "hidden_size": ("embedding_length", "u32"),
    "intermediate_size": ("feed_forward_length", "u32"),
    "num_attention_heads": ("attention.head_count", "u32"),
    "num_key_value_heads": ("attention.head_count_kv", "u32"),
    "rms_norm_eps": ("attention.layer_norm_rms_epsilon", "f32"),
    "rope_theta": ("rope.freq_base", "f32"),
    "sliding_window": ("attention.sliding_window", "u32"),
    "num_experts": ("expert_count", "u32"),
    "num_experts_per_tok": ("expert_used_count", "u32"),
    "top_k_experts": ("expert_used_count", "u32"),
    "moe_intermediate_size": ("expert_feed_forward_length", "u32"),
    "embedding_multiplier": ("embedding_scale", "f32"),
    "residual_multiplier": ("residual_scale", "f32"),
    "attention_multiplier": ("attention.scale", "f32"),
    "logits_scaling": ("logit_scale", "f32"),
    "final_logit_softcapping": ("final_logit_softcapping", "f32"),
    "attn_logit_softcapping": ("attn_logit_softcapping", "f32"),
    "num_local_experts": ("expert_count", "u32"),
    "shared_expert_intermediate_size": ("expert_shared_feed_forward_length", "u32"),
    "linear_num_key_heads": ("ssm.group_count", "u32"),
    "linear_num_value_heads": ("ssm.time_step_rank", "u32"),
    "linear_key_head_dim": ("ssm.state_size", "u32"),
    "inner_size": ("ssm.inner_size", "u32"),
    "linear_conv_kernel_dim": ("ssm.conv_kernel", "u32"),
    "n_routed_experts": ("expert_count", "u32"),
    "n_shared_experts": ("expert_shared_count", "u32"),
    "first_k_dense_replace": ("leading_dense_block_count", "u32"),
    "interleave_moe_layer_step": ("interleave_moe_layer_step", "u32"),
    "n_group": ("expert_group_count", "u32"),
    "topk_group": ("expert_group_used_count", "u32"),
    "kv_lora_rank": ("attention.kv_lora_rank", "u32"),
    "q_lora_rank": ("attention.q_lora_rank", "u32"),
    "qk_rope_head_dim": ("rope.dimension_count", "u32"),
    "routed_scaling_factor": ("expert_weights_scale", "f32"),
    "norm_topk_prob": ("expert_weights_norm", "bool"),
    "layer_norm_epsilon": ("attention.layer_norm_epsilon", "f32"),
    "use_parallel_residual": ("use_parallel_residual", "bool"),
    "clip_qkv": ("attention.clamp_kqv", "f32"),
    "alibi_bias_max": ("attention.max_alibi_bias", "f32"),
    "logit_scale": ("logit_scale", "f32"),
    "shared_intermediate_size": ("expert_shared_feed_forward_length", "u32"),
}


def write_hf(directory: Path, config: Config, arrays: Arrays, dtype: str = "F32") -> Path:
    """A directory with config.json and model.safetensors."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").write_bytes(safetensors(STORED[dtype](arrays), {"format": "pt"}))
    return directory


def write_sharded(directory: Path, config: Config, arrays: Arrays) -> Path:
    """The same in two shards and their index."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    names = sorted(arrays)
    where: dict[str, str] = {}
    for i, part in enumerate((names[::2], names[1::2]), start=1):
        shard = f"model-0000{i}-of-00002.safetensors"
        (directory / shard).write_bytes(safetensors(stored_hf({n: arrays[n] for n in part})))
        where |= dict.fromkeys(part, shard)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return directory


def stored_hf(arrays: Arrays) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: ("F32", a.shape, a.tobytes()) for name, a in arrays.items()}


def stored_bf16(arrays: Arrays) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Cut, not rounded: the values are what they are."""
    return {name: ("BF16", a.shape, (a.view(np.uint32) >> 16).astype("<u2").tobytes()) for name, a in arrays.items()}


def stored_f16(arrays: Arrays) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: ("F16", a.shape, a.astype("<f2").tobytes()) for name, a in arrays.items()}


STORED = {"F32": stored_hf, "BF16": stored_bf16, "F16": stored_f16}


def to_gguf(config: Config, arrays: Arrays) -> bytes:
    """A GGUF of the model, tensors named and ordered as converters write them."""
    return Gguf(*to_gguf_parts(config, arrays)).to_bytes()


def to_gguf_parts(config: Config, arrays: Arrays) -> tuple[dict[str, Typed], list[Stored]]:
    """Metadata and tensors of the same."""
    metadata = {"general.architecture": Typed("str", gguf.MODEL_ARCH_NAMES[ARCHITECTURES[config["model_type"]]])}
    prefix = metadata["general.architecture"].value
    metadata |= {f"{prefix}.{key}": value for key, value in gguf_keys(config).items()}
    tensors = gguf_arrays(config, arrays)
    return metadata, [Stored(n, a.shape[::-1], 0, a.tobytes()) for n, a in tensors.items()]


def gguf_keys(config: Config) -> dict[str, Typed]:
    config = common_words(config)
    keys = {key: Typed(kind, config[name]) for name, (key, kind) in KEYS.items() if config.get(name) is not None}
    if "head_dim" in config:
        keys |= {f"attention.{side}_length": Typed("u32", config["head_dim"]) for side in ("key", "value")}
    if "head_dim" in config and config["model_type"] in PAIRED:
        keys["rope.dimension_count"] = Typed("u32", config["head_dim"])
    if config.get("query_pre_attn_scalar", config.get("head_dim")) != config.get("head_dim"):
        keys["attention.scale"] = Typed("f32", config["query_pre_attn_scalar"] ** -0.5)
    if "partial_rotary_factor" in config:
        head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
        keys["rope.dimension_count"] = Typed("u32", int(head_dim * config["partial_rotary_factor"]))
    if "layer_types" in config:
        local = [kind == "sliding_attention" for kind in config["layer_types"]]
        keys["attention.sliding_window_pattern"] = Typed("[bool]", local)
    if config["model_type"] == "gemma4_text":
        return keys | gemma4_keys(config)
    if "mamba_n_heads" in config:
        return keys | mamba_keys(config)
    if "kv_lora_rank" in config:
        return keys | latent_keys(config)
    return keys | gguf_rope_keys(config.get("rope_scaling") or config.get("rope_parameters") or {}) | long_keys(config)


def common_words(config: Config) -> Config:
    """The numbers of older configs under the names of newer ones."""
    out = {OLD_WORDS.get(name, name): value for name, value in config.items()}
    if config["model_type"] in ("gpt2", "bloom", "falcon", "mpt", "gpt_bigcode"):
        out = {"intermediate_size": 4 * out["hidden_size"], "max_position_embeddings": 2048, **out}
    if config["model_type"] == "falcon" or config.get("multi_query", config["model_type"] == "gpt_bigcode"):
        out = {"num_key_value_heads": 1, **out}
    if "linear_num_value_heads" in config:
        out["inner_size"] = config["linear_num_value_heads"] * config["linear_value_head_dim"]
        rope = config.get("rope_parameters", config)
        out["partial_rotary_factor"] = rope["partial_rotary_factor"]
    if "attn_config" in config:
        out |= config["attn_config"]
    if "intermediate_size_mlp" in config:
        widths = {"moe_intermediate_size": "intermediate_size", "intermediate_size": "intermediate_size_mlp"}
        out |= {name: config[other] for name, other in widths.items()}
    return out


OLD_WORDS = {
    "n_embd": "hidden_size",
    "d_model": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_layers": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "n_positions": "max_position_embeddings",
    "max_seq_len": "max_position_embeddings",
    "layer_norm_eps": "layer_norm_epsilon",
    "norm_epsilon": "layer_norm_epsilon",
    "rotary_pct": "partial_rotary_factor",
}


def gemma4_keys(config: Config) -> dict[str, Typed]:
    """What differs from layer to layer, and between the two kinds of layers."""
    local = [kind == "sliding_attention" for kind in config["layer_types"]]
    n_shared, n_layers = config.get("num_kv_shared_layers", 0), config["num_hidden_layers"]
    keys = {"attention.shared_kv_layers": n_shared, "attention.key_length_swa": config["head_dim"]}
    keys |= {"rope.dimension_count": config["global_head_dim"], "rope.dimension_count_swa": config["head_dim"]}
    keys |= {f"attention.{side}_length": config["global_head_dim"] for side in ("key", "value")}
    keys |= {"attention.value_length_swa": config["head_dim"]}
    keys["embedding_length_per_layer_input"] = config["hidden_size_per_layer_input"]
    n_global = config.get("num_global_key_value_heads") or config["num_key_value_heads"]
    n_kv = [config["num_key_value_heads"] if is_local else n_global for is_local in local]
    ffn, factor = config["intermediate_size"], 2 if config.get("use_double_wide_mlp") else 1
    widths = [ffn * (factor if i >= n_layers - n_shared else 1) for i in range(n_layers)]
    return {name: Typed("u32", value) for name, value in keys.items()} | {
        "rope.freq_base": Typed("f32", config["rope_parameters"]["full_attention"]["rope_theta"]),
        "rope.freq_base_swa": Typed("f32", config["rope_parameters"]["sliding_attention"]["rope_theta"]),
        "attention.head_count_kv": Typed("[u32]", n_kv),
        "feed_forward_length": Typed("[u32]", widths),
    }


def mamba_keys(config: Config) -> dict[str, Typed]:
    """The state space, and which layers have keys and values at all."""
    names = {"n_heads": "time_step_rank", "n_groups": "group_count", "d_state": "state_size", "d_conv": "conv_kernel"}
    keys = {f"ssm.{key}": Typed("u32", config[f"mamba_{name}"]) for name, key in names.items()}
    keys["ssm.inner_size"] = Typed("u32", config["mamba_n_heads"] * config["mamba_d_head"])
    n_kv = [config["num_key_value_heads"] if kind == "attention" else 0 for kind in config["layer_types"]]
    return keys | {"attention.head_count_kv": Typed("[u32]", n_kv), "rope.scaling.finetuned": Typed("bool", False)}


def latent_keys(config: Config) -> dict[str, Typed]:
    """Sizes of the compressed key, and of the heads it stands for; older files have the latter alone."""
    rope, rank = config["qk_rope_head_dim"], config["kv_lora_rank"]
    heads = {"key_length": config["qk_nope_head_dim"] + rope, "value_length": config["v_head_dim"]}
    keys = {f"attention.{name}": Typed("u32", n) for name, n in heads.items()}
    if config["model_type"] != "deepseek_v2":
        keys = {f"{name}_mla": value for name, value in keys.items()}
        sizes = {"key_length": rank + rope, "value_length": rank, "head_count_kv": 1}
        keys |= {f"attention.{name}": Typed("u32", n) for name, n in sizes.items()}
    if "scoring_func" in config:
        keys["expert_gating_func"] = Typed("u32", 2)
    scaling = gguf_rope_keys(config.get("rope_parameters") or {})
    if "mscale_all_dim" in config.get("rope_parameters", {}):
        scaling["rope.scaling.yarn_log_multiplier"] = Typed("f32", 0.1 * config["rope_parameters"]["mscale_all_dim"])
    return keys | scaling


def long_keys(config: Config) -> dict[str, Typed]:
    """What converters write beside the factors of long rope."""
    if "original_max_position_embeddings" not in config:
        return {}
    old, context = config["original_max_position_embeddings"], config["max_position_embeddings"]
    attention = math.sqrt(1 + math.log(context / old) / math.log(old))
    keys = {"original_context_length": Typed("u32", old), "attn_factor": Typed("f32", attention)}
    return {f"rope.scaling.{key}": value for key, value in keys.items()}


def gguf_rope_keys(scaling: dict[str, Any]) -> dict[str, Typed]:
    kind = scaling.get("rope_type") or scaling.get("type")
    if kind not in ("linear", "yarn"):
        return {"rope.freq_base": Typed("f32", scaling["rope_theta"])} if "rope_theta" in scaling else {}
    keys = {"rope.scaling.type": Typed("str", kind), "rope.scaling.factor": Typed("f32", scaling["factor"])}
    if kind == "yarn":
        keys["rope.scaling.original_context_length"] = Typed("u32", scaling["original_max_position_embeddings"])
    if "rope_theta" in scaling:
        keys["rope.freq_base"] = Typed("f32", scaling["rope_theta"])
    if "llama_4_scaling_beta" in scaling:
        keys["attention.temperature_scale"] = Typed("f32", scaling["llama_4_scaling_beta"])
        keys["rope.scaling.yarn_log_multiplier"] = Typed("f32", scaling["mscale_all_dim"])
    return keys


def gguf_arrays(config: Config, arrays: Arrays) -> Arrays:
    n_layers = common_words(config)["num_hidden_layers"]
    names = gguf.get_tensor_name_map(ARCHITECTURES[config["model_type"]], n_layers)
    out: Arrays = {}
    for name, values in stacked(gguf_forms(config, arrays)).items():
        stored = name if name.startswith("blk.") else names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        out[stored] = gguf_values(config, name, values)
    if "global_head_dim" in config:
        n_pairs, n_turning = config["global_head_dim"] // 2, config["global_head_dim"] // 8
        out["rope_freqs.weight"] = np.array([1.0] * n_turning + [1e30] * (n_pairs - n_turning), np.float32)
    if "short_factor" in (config.get("rope_scaling") or {}):
        for kind in ("short", "long"):
            out[f"rope_factors_{kind}.weight"] = np.array(config["rope_scaling"][f"{kind}_factor"], np.float32)
    if (config.get("rope_scaling") or {}).get("rope_type") == "llama3":
        out["rope_freqs.weight"] = llama3_divisors(config)
    return out


def stacked(arrays: Arrays) -> Arrays:
    """One tensor for all experts of a layer."""
    out: Arrays = {}
    for name, values in arrays.items():
        joined = re.sub(r"experts\.\d+\.", "experts.", name)
        out[joined] = values if joined == name else np.concatenate([out.get(joined, values[None][:0]), values[None]])
    return out


def gguf_values(config: Config, name: str, values: np.ndarray) -> np.ndarray:
    if config["model_type"] in OFFSET and name.endswith("norm.weight") and "linear_attn" not in name:
        return values + np.float32(1)
    n_heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    part = name.split(".")[-2]
    return paired(values, config[n_heads[part]]) if part in n_heads and config["model_type"] in PAIRED else values


def paired(values: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows of each head from halves order (0, d/2) to pairs order (0, 1)."""
    halves = values.reshape(n_heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def llama3_divisors(config: Config) -> np.ndarray:
    """What converters store instead of the recipe."""
    rope, head_dim = config["rope_scaling"], config["hidden_size"] // config["num_attention_heads"]
    old = rope["original_max_position_embeddings"]
    out = []
    for i in range(0, head_dim, 2):
        length = 2 * math.pi * config["rope_theta"] ** (i / head_dim)
        if length < old / rope["high_freq_factor"]:
            out.append(1.0)
        elif length > old / rope["low_freq_factor"]:
            out.append(rope["factor"])
        else:
            smooth = (old / length - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
            out.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(out, np.float32)
