"""What converters to GGUF do to the tensors of a family beyond giving them other names."""

from collections.abc import Callable

import numpy as np

from family_cases import Config

Arrays = dict[str, np.ndarray]


def granite_moe(config: Config, arrays: Arrays) -> Arrays:
    """Gate and up of the experts apart."""
    out: Arrays = {}
    for name, values in arrays.items():
        if not name.endswith("input_linear.weight"):
            out[name] = values
            continue
        gate, up = np.split(values, 2, axis=-2)
        home = name.split(".block_sparse_moe.")[0].split(".shared_mlp.")[0]
        kind = "shared_expert" if "shared_mlp" in name else "experts"
        out |= {f"{home}.mlp.{kind}.gate_proj.weight": gate, f"{home}.mlp.{kind}.up_proj.weight": up}
    return out


def turned(config: Config, arrays: Arrays) -> Arrays:
    """GPT-2's matrices the usual way round."""
    linears = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
    return {name: np.ascontiguousarray(a.T) if name.endswith(linears) else a for name, a in arrays.items()}


def qkv_in_order(config: Config, arrays: Arrays) -> Arrays:
    """All queries, then all keys, then all values, instead of head by head."""
    n_heads = config.get("num_attention_heads") or config["n_head"]
    n_kv = config.get("num_kv_heads") or (1 if config["model_type"] == "falcon" else n_heads)

    def ordered(values: np.ndarray) -> np.ndarray:
        per = n_heads // n_kv + 2
        heads = values.reshape(n_kv, per, -1, *values.shape[1:])
        parts = [heads[:, : per - 2], heads[:, per - 2 : per - 1], heads[:, per - 1 :]]
        return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])

    return {name: ordered(a) if "query_key_value" in name else a for name, a in arrays.items()}


def bloom(config: Config, arrays: Arrays) -> Arrays:
    return {name.removeprefix("transformer."): a for name, a in qkv_in_order(config, arrays).items()}


def gpt_oss(config: Config, arrays: Arrays) -> Arrays:
    """Gate and up of the experts apart and the usual way round; suffixes where checkpoints have none."""
    out: Arrays = {}
    for name, values in arrays.items():
        if name.endswith("sinks"):
            out[f"{name}.weight"] = values
        elif ".experts." not in name:
            out[name] = values
        else:
            kind = "bias" if name.endswith("_bias") else "weight"
            stem, rows = name.removesuffix("_bias"), values if kind == "bias" else values.swapaxes(1, 2)
            halves = {
                "gate_up_proj": {"gate_proj": rows[:, ::2], "up_proj": rows[:, 1::2]},
                "down_proj": {"down_proj": rows},
            }
            home, _, part = stem.rpartition(".")
            out |= {f"{home}.{n}.{kind}": np.ascontiguousarray(half) for n, half in halves[part].items()}
    return out


def qwen3_next(config: Config, arrays: Arrays) -> Arrays:
    """Queries, keys, values and z of all heads together; the decay itself; a convolution without its axis of one."""
    n_k, n_v = config["linear_num_key_heads"], config["linear_num_value_heads"]
    k_dim, v_dim, out = config["linear_key_head_dim"], config["linear_value_head_dim"], {}
    for name, values in arrays.items():
        home = name.rpartition(".linear_attn.")[0]
        if name.endswith("in_proj_qkvz.weight"):
            heads = values.reshape(n_k, -1, values.shape[1])
            cuts = np.cumsum([k_dim, k_dim, n_v // n_k * v_dim])
            q, k, v, z = (part.reshape(-1, values.shape[1]) for part in np.split(heads, cuts, axis=1))
            out[f"{home}.linear_attn.in_proj_qkv.weight"] = np.concatenate([q, k, v])
            out[f"{home}.linear_attn.in_proj_z.weight"] = np.ascontiguousarray(z)
        elif name.endswith("A_log"):
            out[name] = -np.exp(values)
        elif name.endswith("dt_bias"):
            out[f"{home}.linear_attn.dt_proj.bias"] = values
        else:
            out[name] = values.squeeze() if "conv1d" in name or "shared_expert_gate" in name else values
    return out


def qwen3_5(config: Config, arrays: Arrays) -> Arrays:
    """The same, with value heads in the order in which key heads repeat."""
    n_k, n_v = config["linear_num_key_heads"], config["linear_num_value_heads"]
    n_keys = 2 * n_k * config["linear_key_head_dim"]

    def tiled(values: np.ndarray, axis: int = 0) -> np.ndarray:
        shape = (*values.shape[:axis], n_k, n_v // n_k, -1, *values.shape[axis + 1 :])
        return np.ascontiguousarray(values.reshape(shape).swapaxes(axis, axis + 1).reshape(values.shape))

    def ordered(name: str, values: np.ndarray) -> np.ndarray:
        part = name.rpartition("linear_attn.")[2]
        if part in ("in_proj_qkv.weight", "conv1d.weight"):
            return np.concatenate([values[:n_keys], tiled(values[n_keys:])])
        rows = ("in_proj_z.weight", "in_proj_b.weight", "in_proj_a.weight", "A_log", "dt_proj.bias")
        return tiled(values) if part in rows else tiled(values, 1) if part == "out_proj.weight" else values

    return {name: ordered(name, values) for name, values in qwen3_next(config, arrays).items()}


def gemma4(config: Config, arrays: Arrays) -> Arrays:
    """Suffixes where checkpoints have none; the router's factors as scales of its matrix and of the experts'."""
    bare = ("layer_scalar", "experts.gate_up_proj", "experts.down_proj")
    scales = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}
    out: Arrays = {}
    for name, values in arrays.items():
        _, _, layer, part = [*name.split(".", 3), ""][:4]
        stored = f"{name}.weight" if name.endswith(bare) else name
        out[f"blk.{layer}.{scales[part]}" if part in scales else stored] = values
    return out


def qwen2_moe(config: Config, arrays: Arrays) -> Arrays:
    return {name: a.squeeze() if "shared_expert_gate" in name else a for name, a in arrays.items()}


def granite_hybrid(config: Config, arrays: Arrays) -> Arrays:
    """The decay itself; axes of one where Mamba's first version had more; experts as in Granite with experts."""
    return granite_moe(config, mamba(config, arrays))


def mamba(config: Config, arrays: Arrays) -> Arrays:
    out: Arrays = {}
    for name, values in arrays.items():
        if name.endswith("A_log"):
            out[name] = -np.exp(values)[:, None]
        elif name.endswith("mamba.D"):
            out[name] = values[:, None]
        elif name.endswith("mamba.norm.weight"):
            out[name] = values.reshape(config["mamba_n_groups"], -1)
        elif name.endswith("dt_bias"):
            out[name.replace("dt_bias", "dt_proj.bias")] = values
        else:
            out[name] = values.squeeze() if name.endswith("conv1d.weight") else values
    return out


def llama4(config: Config, arrays: Arrays) -> Arrays:
    """Gate and up of the experts apart, everything the usual way round."""
    out: Arrays = {}
    for name, values in arrays.items():
        home, _, part = name.rpartition(".")
        if part == "gate_up_proj":
            gate, up = (np.ascontiguousarray(half) for half in np.split(values.swapaxes(1, 2), 2, axis=1))
            out |= {f"{home}.gate_proj.weight": gate, f"{home}.up_proj.weight": up}
        else:
            out[f"{name}.weight" if part == "down_proj" else name] = (
                np.ascontiguousarray(values.swapaxes(1, 2)) if part == "down_proj" else values
            )
    return out


def bitnet(config: Config, arrays: Arrays) -> Arrays:
    """The names of the first release."""
    older = {"mlp.ffn_sub_norm": "mlp.ffn_layernorm", "self_attn.attn_sub_norm": "self_attn.inner_attn_ln"}
    for name, other in older.items():
        arrays = {key.replace(name, other): values for key, values in arrays.items()}
    return arrays


def latent(config: Config, arrays: Arrays) -> Arrays:
    """Keys of heads turned, values apart; files from before that have both as one."""
    n, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    out: Arrays = {}
    for name, values in arrays.items():
        if name.endswith("kv_b_proj.weight") and config["model_type"] != "deepseek_v2":
            heads = values.reshape(n, -1, values.shape[1])
            home = name.removesuffix("kv_b_proj.weight")
            out[f"{home}k_b_proj.weight"] = np.ascontiguousarray(heads[:, :nope].swapaxes(1, 2))
            out[f"{home}v_b_proj.weight"] = np.ascontiguousarray(heads[:, nope:])
        else:
            out[f"{name}.weight" if name.endswith(("experts.gate_up_proj", "experts.down_proj")) else name] = values
    return out


def stablelm(config: Config, arrays: Arrays) -> Arrays:
    """The norms of heads as one tensor."""
    marked = {name for name in arrays if "_layernorm.norms." in name}
    out = {name: values for name, values in arrays.items() if name not in marked}
    for home in {name.partition(".norms.")[0] for name in marked}:
        n = sum(name.startswith(f"{home}.norms.") for name in marked)
        out[f"{home}.weight"] = np.stack([arrays[f"{home}.norms.{i}.weight"] for i in range(n)])
    return out


FORMS: dict[str, Callable[[Config, Arrays], Arrays]] = {
    "gpt_oss": gpt_oss,
    "qwen3_next": qwen3_next,
    "qwen3_5_text": qwen3_5,
    "qwen3_5_moe_text": qwen3_5,
    "gemma4_text": gemma4,
    "qwen2_moe": qwen2_moe,
    "granitemoehybrid": granite_hybrid,
    "llama4_text": llama4,
    "qwen3_vl_moe_text": llama4,
    "bitnet": bitnet,
    "deepseek_v2": latent,
    "deepseek_v3": latent,
    "glm4_moe_lite": latent,
    "mistral4": latent,
    "gpt2": turned,
    "stablelm": stablelm,
    "gpt_neox": qkv_in_order,
    "bloom": bloom,
    "falcon": qkv_in_order,
    "granitemoe": granite_moe,
    "granitemoeshared": granite_moe,
}


def gguf_forms(config: Config, arrays: Arrays) -> Arrays:
    """The tensors as a converter names and cuts them before it looks up their GGUF names."""
    arrays = {name.replace("correction_bias", "correction.bias"): values for name, values in arrays.items()}
    return FORMS.get(config["model_type"], lambda config, arrays: arrays)(config, arrays)
