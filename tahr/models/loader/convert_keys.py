"""A model's numbers as GGUF metadata, and a check that reading them back says the same."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tahr.errors import UnsupportedModel
from tahr.models.config.record import LayerKind, ModelConfig
from tahr.models.config.rope import LinearScaling, Llama3, RopeConfig, Yarn, sharpness
from tahr.models.families.gemma3 import PATTERN
from tahr.models.files.gguf_rope import ROPE_DIVISORS
from tahr.models.loader.registry import from_gguf
from tahr.weights.gguf_write import Part
from tahr.weights.tensor import HostTensor

# Family -> what GGUF files call it.
ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "granite": "granite",
    "gemma3": "gemma3",
}
PAIRED = ("llama", "mistral", "granite")  # families whose GGUFs hold queries and keys in pairs order
LOCAL_THETA = 10000.0  # the base of windowed layers where nothing is said
# Fields that a GGUF expresses by the order or the values of its tensors rather than by a number.
TOLD_OTHERWISE = {"family", "rope_style", "norm_offset", "kinds", "guess"}


def describe(cfg: ModelConfig, name: str) -> dict[str, Any]:
    """The metadata of a GGUF of this model, save for its tokenizer."""
    arch = ARCHITECTURES[cfg.family]
    keys = common(cfg) | rope_keys(cfg) | window_keys(cfg) | expert_keys(cfg) | scale_keys(cfg)
    return {"general.architecture": arch, "general.type": "model", "general.name": name} | {
        f"{arch}.{key}": value for key, value in keys.items()
    }


def common(cfg: ModelConfig) -> dict[str, Any]:
    return {
        "block_count": cfg.n_layers,
        "context_length": cfg.max_context,
        "embedding_length": cfg.width,
        "feed_forward_length": cfg.ffn_width,
        "vocab_size": cfg.n_vocab,
        "attention.head_count": cfg.n_heads,
        "attention.head_count_kv": cfg.n_kv_heads,
        "attention.key_length": cfg.head_dim,
        "attention.value_length": cfg.head_dim,
        "attention.layer_norm_rms_epsilon": cfg.norm_eps,
    }


def global_rope(cfg: ModelConfig) -> RopeConfig:
    """The rope of layers that see everything, or of the first layer where none does."""
    return next((kind.rope for kind in cfg.kinds if not kind.window), cfg.kinds[0].rope)


def rope_keys(cfg: ModelConfig) -> dict[str, Any]:
    rope = global_rope(cfg)
    keys: dict[str, Any] = {"rope.freq_base": rope.theta, "rope.dimension_count": rope.n_dims}
    local = {kind.rope.theta for kind in cfg.kinds if kind.window and kind.rope != rope} - {LOCAL_THETA}
    if local:
        keys["rope.freq_base_swa"] = min(local)
    if rope.scaling is None:
        return keys
    if type(rope.scaling) not in SCALINGS:
        raise UnsupportedModel(f"GGUF files have no words for the rope scaling {type(rope.scaling).__name__}.")
    return keys | SCALINGS[type(rope.scaling)](rope.scaling)


def linear_keys(scaling: Any) -> dict[str, Any]:
    return {"rope.scaling.type": "linear", "rope.scaling.factor": scaling.factor}


def yarn_keys(scaling: Any) -> dict[str, Any]:
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": scaling.factor,
        "rope.scaling.original_context_length": scaling.old_context,
        "rope.scaling.yarn_beta_fast": scaling.fast,
        "rope.scaling.yarn_beta_slow": scaling.slow,
        "rope.scaling.attn_factor": scaling.attention / sharpness(scaling.factor),
    }


SCALINGS: dict[type[Any], Callable[[Any], dict[str, Any]]] = {
    LinearScaling: linear_keys,
    Yarn: yarn_keys,
    Llama3: lambda scaling: {},  # told by a tensor of divisors
}


def rope_divisors(cfg: ModelConfig) -> NDArray[np.float32] | None:
    """How much slower each pair turns, for the scaling that GGUF tells that way."""
    rope = global_rope(cfg)
    if not isinstance(rope.scaling, Llama3):
        return None
    plain = RopeConfig(rope.theta, rope.n_dims).frequencies()[0]
    return (plain / rope.frequencies()[0]).astype(np.float32)


def window_keys(cfg: ModelConfig) -> dict[str, Any]:
    windows = {kind.window for kind in cfg.kinds if kind.window}
    if not windows:
        return {}
    keys: dict[str, Any] = {"attention.sliding_window": min(windows)}
    local = [bool(kind.window) for kind in cfg.kinds]
    if cfg.family == "gemma3" and local != [(i + 1) % PATTERN != 0 for i in range(cfg.n_layers)]:
        keys["attention.sliding_window_pattern"] = local
    return keys


def expert_keys(cfg: ModelConfig) -> dict[str, Any]:
    if cfg.moe is None:
        return {}
    if not cfg.moe.renormalise:
        raise UnsupportedModel(
            "This model does not rescale the weights of its chosen experts, and programs that read its GGUF would; "
            "run the checkpoint as it is."
        )
    return {
        "expert_count": cfg.moe.n_experts,
        "expert_used_count": cfg.moe.n_active,
        "expert_feed_forward_length": cfg.moe.ffn_width,
    }


def scale_keys(cfg: ModelConfig) -> dict[str, Any]:
    factors = {"residual_scale": cfg.residual_scale, "logit_scale": 1 / cfg.logit_scale}
    if cfg.family == "granite":
        return {**factors, "embedding_scale": cfg.embed_scale, "attention.scale": cfg.attn_scale}
    keys: dict[str, Any] = {"attention.scale": cfg.attn_scale} if cfg.attn_scale != cfg.head_dim**-0.5 else {}
    return keys | ({"final_logit_softcapping": cfg.logit_softcap} if cfg.logit_softcap else {})


def check_told(cfg: ModelConfig, metadata: dict[str, Any], parts: Sequence[Part]) -> None:
    """Refuse a model whose GGUF, read again, would be another one."""
    told = from_gguf(metadata, {part.name: shape_only(part) for part in parts})
    lost = [f.name for f in fields(cfg) if f.name not in TOLD_OTHERWISE and differs(cfg, told, f.name)]
    if not all(same_kind(ours, theirs) for ours, theirs in zip(cfg.kinds, told.kinds, strict=True)):
        lost.append("kinds of layers")
    if cfg.family in PAIRED and global_rope(cfg).n_dims != cfg.head_dim:
        lost.append("partly rotated heads")
    if lost:
        raise UnsupportedModel(
            f"A GGUF of this {cfg.family} model would lose its {', '.join(lost)}: the format has no words for it. "
            "Run the checkpoint as it is."
        )


def differs(ours: ModelConfig, theirs: ModelConfig, name: str) -> bool:
    mine = getattr(ours, name)
    other = getattr(theirs, name)
    return abs(mine - other) > 1e-6 * abs(mine) if isinstance(mine, float) else bool(mine != other)


def same_kind(ours: LayerKind, theirs: LayerKind) -> bool:
    """Whether two layers see equally far and turn equally fast."""
    if (ours.window, ours.sparse) != (theirs.window, theirs.sparse):
        return False
    (mine, my_scale) = ours.rope.frequencies()
    (other, other_scale) = theirs.rope.frequencies()
    return mine.shape == other.shape and np.allclose(mine, other, 1e-5, 0) and abs(my_scale - other_scale) < 1e-6


def shape_only(part: Part) -> HostTensor:
    if part.name == ROPE_DIVISORS:
        return part.make()
    return HostTensor(part.name, part.format, part.shape, np.empty(0, np.uint8))
