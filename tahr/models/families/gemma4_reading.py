"""Configurations of Gemma 4: two kinds of heads, shared keys, embeddings of a layer's own."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tahr.errors import CorruptFile, UnsupportedModel
from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.record import LayerKind, ModelConfig
from tahr.models.config.rope import MOST_CONTEXT, RopeConfig
from tahr.models.files.gguf import gguf_experts, with_local_layers
from tahr.models.files.hf import MOST_THETA, activation, hf_experts, hf_rope, with_windows

PERIOD = 6


class Heads(NamedTuple):
    """The heads of some layers."""

    rope: RopeConfig
    head_dim: int
    n_kv_heads: int


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    if f.get("use_bidirectional_attention") == "all":
        raise UnsupportedModel("This Gemma reads texts in both directions; Tahr does not run such models yet.")
    window = f.count("sliding_window", MOST_CONTEXT)
    cfg = with_windows(f, cfg, window, sliding=lambda i: (i + 1) % PERIOD != 0)
    cfg = replace(
        cfg,
        activation=activation(f, "hidden_activation"),
        n_kv_shared=shared_layers(f, "num_kv_shared_layers", cfg),
    )
    local = Heads(hf_rope(f, cfg.head_dim, "sliding_attention"), cfg.head_dim, cfg.n_kv_heads)
    wide = global_heads(f, cfg)
    kinds = [
        kind_of(kind, cfg, width, local if kind.window else wide)
        for kind, width in zip(cfg.kinds, ffn_widths(f, cfg), strict=True)
    ]
    own = f.count("hidden_size_per_layer_input", limits.MOST_WIDTH, default=0, least=0)
    if f.flag("enable_moe_block"):
        cfg = replace(cfg, moe=hf_experts(f, "num_experts", "moe_intermediate_size"))
    return shaped(f, cfg, kinds, max(wide.head_dim, cfg.head_dim), own)


def global_heads(f: Fields, cfg: ModelConfig) -> Heads:
    """The heads of layers without windows."""
    told = [part for part in f.part("per_layer_config").values.values() if isinstance(part, dict)]
    part = Fields(told[0] if told else {}, f"{f.where}, per_layer_config")
    wide = f.count("global_head_dim", limits.MOST_HEAD_DIM, default=512)
    wide = part.count("head_dim", limits.MOST_HEAD_DIM, wide)
    n_kv = f.count("num_global_key_value_heads", cfg.n_heads, default=cfg.n_kv_heads)
    n_kv = n_kv if f.flag("attention_k_eq_v") else cfg.n_kv_heads
    n_kv = part.count("num_key_value_heads", cfg.n_heads, default=n_kv)
    return Heads(hf_rope(f, wide, "full_attention"), wide, n_kv)


def ffn_widths(f: Fields, cfg: ModelConfig) -> list[int]:
    """The width of each layer's MLP: twice as much, in some sizes, where keys are shared."""
    factor = 2 if f.flag("use_double_wide_mlp") else 1
    n_own = cfg.n_layers - cfg.n_kv_shared
    return [cfg.ffn_width] * n_own + [cfg.ffn_width * factor] * cfg.n_kv_shared


def shared_layers(f: Fields, name: str, cfg: ModelConfig) -> int:
    return f.count(name, cfg.n_layers - 1, default=0, least=0)


def kind_of(kind: LayerKind, cfg: ModelConfig, ffn_width: int, heads: Heads) -> LayerKind:
    if cfg.n_heads % heads.n_kv_heads:
        raise CorruptFile(
            f"{cfg.n_heads} query heads cannot share {heads.n_kv_heads} key heads evenly; fetch the model again."
        )
    return replace(kind, ffn_width=ffn_width, **heads._asdict())


def shaped(f: Fields, cfg: ModelConfig, kinds: list[LayerKind], head_dim: int, own: int) -> ModelConfig:
    """Fill in the facts that both kinds of file leave out; `own` is the width of embeddings of a layer's own."""
    n_own = cfg.n_layers - cfg.n_kv_shared
    if {bool(kind.window) for kind in kinds[n_own:]} - {bool(kind.window) for kind in kinds[:n_own]}:
        raise CorruptFile("Layers of the model share keys that no layer has; fetch the model again.")
    return replace(
        cfg,
        head_dim=head_dim,
        kinds=tuple(kinds),
        per_layer_width=own,
        logit_softcap=f.number("final_logit_softcapping", -1, limits.MOST_MULTIPLIER, default=0),
        attn_scale=1.0,
        embed_scale=cfg.width**0.5,
    )


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    cfg = replace(with_local_layers(f, cfg, PERIOD), activation="gelu_tanh")
    cfg = replace(cfg, n_kv_shared=shared_layers(f, "attention.shared_kv_layers", cfg))
    narrow = f.count("attention.key_length_swa", limits.MOST_HEAD_DIM, default=cfg.head_dim)
    n_dims = f.count("rope.dimension_count_swa", narrow, default=narrow)
    local = RopeConfig(f.number("rope.freq_base_swa", 1, MOST_THETA, default=10000), n_dims)
    n_kv = per_layer(f, "attention.head_count_kv", cfg, cfg.n_kv_heads, cfg.n_heads)
    widths = per_layer(f, "feed_forward_length", cfg, cfg.ffn_width, limits.MOST_FFN)
    kinds: list[LayerKind] = []
    for kind, n, width in zip(cfg.kinds, n_kv, widths, strict=True):
        heads = Heads(local, narrow, n) if kind.window else Heads(kind.rope, cfg.head_dim, n)
        kinds.append(kind_of(kind, cfg, width, heads))
    own = f.count("embedding_length_per_layer_input", limits.MOST_WIDTH, default=0, least=0)
    if f.count("expert_count", limits.MOST_EXPERTS, default=0, least=0):
        cfg = replace(cfg, moe=gguf_experts(f))
    return shaped(f, cfg, kinds, max(narrow, cfg.head_dim), own)


def per_layer(f: Fields, name: str, cfg: ModelConfig, default: int, most: int) -> list[int]:
    """A number of every layer: a list in some files."""
    if isinstance(f.get(name), int | None):
        return [default] * cfg.n_layers
    found = f.items(name, cfg.n_layers)
    if not all(isinstance(n, int | np.integer) and 0 < n <= most for n in found):
        raise f.wrong(name, f"a list of whole numbers from 1 to {most}")
    return [int(n) for n in found]
