"""Tiny random drafters: their configs as two programs write them, and weights that any machine can make again."""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from gguf_maker import safetensors
from model_cases import Arrays, Config
from model_files import stored_hf

LAYERS: Config = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 96,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "max_position_embeddings": 256,
    "attention_bias": False,
    "mlp_bias": False,
}
TAPS = [1, 2, 4]


def speculators(layers: Config, **more: Any) -> Config:
    """A config.json as the speculators library writes it."""
    methods = [{"proposal_type": "greedy", "speculative_tokens": 3}]
    verifier = {"architectures": ["LlamaForCausalLM"], "name_or_path": None}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": methods,
            "verifier": verifier,
        },
        "transformer_layer_config": layers,
        "draft_vocab_size": 40,
        "eagle_aux_hidden_state_layer_ids": TAPS,
        "norm_before_residual": False,
        **more,
    }


def original(config: Config) -> Config:
    """The same drafter in the words of EAGLE's authors, who put everything side by side."""
    names = ("draft_vocab_size", "norm_before_residual", "eagle_aux_hidden_state_layer_ids")
    return {
        **config["transformer_layer_config"],
        "architectures": ["LlamaForCausalLMEagle3"],
        **{name: config[name] for name in names},
    }


CASES: dict[str, Config] = {
    "llama": speculators(LAYERS),
    "llama_normed": speculators(LAYERS, norm_before_residual=True, norm_before_fc=True),
    "qwen3": speculators(
        {**LAYERS, "model_type": "qwen3", "head_dim": 16, "num_hidden_layers": 2, "sliding_window": None},
        draft_vocab_size=96,
        fc_norm=True,
        norm_output=True,
    ),
}
N_ENTRIES = 12
N_CHAINED = 2


def make_arrays(config: Config) -> Arrays:
    """Weights of a drafter by the names of the speculators library, but for its map."""
    cfg = config["transformer_layer_config"]
    width, ffn = cfg["hidden_size"], cfg["intermediate_size"]
    q, kv = (cfg[name] * cfg["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    n_taps = len(config["eagle_aux_hidden_state_layer_ids"])
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (cfg["vocab_size"], width),
        "fc.weight": (width, n_taps * width),
        "norm.weight": (width,),
        "lm_head.weight": (config["draft_vocab_size"], width),
        "layers.0.hidden_norm.weight": (width,),
    }
    if config.get("norm_before_fc"):
        shapes["input_norm.weight"] = (n_taps * width,)
    if config.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (width,) for i in range(n_taps)}
    for i in range(cfg["num_hidden_layers"]):
        read = width if i else 2 * width
        shapes |= {
            f"layers.{i}.{name}.weight": shape
            for name, shape in {
                "self_attn.q_proj": (q, read),
                "self_attn.k_proj": (kv, read),
                "self_attn.v_proj": (kv, read),
                "self_attn.o_proj": (width, q),
                "mlp.gate_proj": (ffn, width),
                "mlp.up_proj": (ffn, width),
                "mlp.down_proj": (width, ffn),
                "input_layernorm": (width,),
                "post_attention_layernorm": (width,),
            }.items()
        }
        if cfg["model_type"] == "qwen3":
            shapes |= {f"layers.{i}.self_attn.{n}_norm.weight": (cfg["head_dim"],) for n in "qk"}
    return {name: random(name, shape) for name, shape in shapes.items()}


def random(name: str, shape: tuple[int, ...]) -> np.ndarray:
    values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)
    return 1 + 0.2 * values if len(shape) == 1 else values * np.float32(2 / shape[-1] ** 0.5)


def draft_map(config: Config) -> np.ndarray:
    """Every second token and some: differences to the tokens of the model."""
    n, n_vocab = config["draft_vocab_size"], config["transformer_layer_config"]["vocab_size"]
    tokens = np.sort(np.random.default_rng(3).permutation(n_vocab)[:n])
    return (tokens - np.arange(n)).astype(np.int64)


def inputs_of(config: Config) -> tuple[list[int], np.ndarray]:
    """Tokens of entries, and the rows of a model's layers that they read."""
    cfg, rng = config["transformer_layer_config"], np.random.default_rng(7)
    rows = rng.standard_normal((N_ENTRIES, len(TAPS) * cfg["hidden_size"])).astype(np.float32)
    return rng.integers(0, cfg["vocab_size"], N_ENTRIES).tolist(), rows


def write_drafter(directory: Path, config: Config, arrays: Arrays, apart: Any = None, authors: bool = False) -> Path:
    """A folder with a drafter in f32, with its map if it may guess some tokens only, in the words of EAGLE's authors or
    of the speculators library."""
    some = config["draft_vocab_size"] != config["transformer_layer_config"]["vocab_size"]
    apart = draft_map(config) if apart is None and some else apart
    tensors = stored_hf(arrays)
    if apart is not None:
        tensors["d2t"] = "I64", apart.shape, apart.astype("<i8").tobytes()
    if authors:
        tensors = {name.replace("layers.0.", "midlayer."): stored for name, stored in tensors.items()}
        config = original(config)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").write_bytes(safetensors(tensors, {"format": "pt"}))
    return directory
