"""Falcon: GPT-NeoX with few or one key head and, in some sizes, one norm for both sublayers; ALiBi in the rw sizes."""

from dataclasses import replace

from tahr.models.config.fields import Fields
from tahr.models.config.record import MOST_HEADS, ModelConfig
from tahr.models.families.gpt import gpt2
from tahr.models.families.gpt.bloom import STEEPEST
from tahr.models.family import Family
from tahr.models.files.hf import activation, times
from tahr.models.parts.arrange import Tensors


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    bias = f.flag("bias")
    cfg = replace(gpt2.layer_normed(cfg), qkv_bias=bias, out_bias=bias, mlp_bias=bias, parallel=parallel(f))
    if f.flag("alibi"):
        cfg = replace(gpt2.unrotated(cfg), alibi=STEEPEST, alibi_scaled=True)
    return replace(cfg, n_kv_heads=n_kv_heads(f, cfg), activation=activation(f, "activation"))


def parallel(f: Fields) -> bool:
    return f.flag("new_decoder_architecture") or f.flag("parallel_attn", True)


def n_kv_heads(f: Fields, cfg: ModelConfig) -> int:
    if f.flag("new_decoder_architecture"):
        return f.count("num_kv_heads", MOST_HEADS, default=f.get("n_head_kv") or cfg.n_heads)
    return 1 if f.flag("multi_query", True) else cfg.n_heads


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return replace(gpt2.layer_normed(cfg), activation="gelu", parallel=True)


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    """Where both sublayers have a norm, GGUF files call the attention's the second."""
    if "model.layers.0.attn_norm_2.weight" in tensors:
        tensors.rename(r"(model\.layers\.\d+)\.input_layernorm\.(\w+)", r"\1.post_attention_layernorm.\2")
        tensors.rename(r"(model\.layers\.\d+)\.attn_norm_2\.(\w+)", r"\1.input_layernorm.\2")
    return gpt2.split_by_head(cfg, tensors)


FALCON = Family(
    "falcon",
    gpt2.build,
    refine_hf=refine_hf,
    refine_gguf=refine_gguf,
    hf_defaults={"activation": "gelu", "tie_word_embeddings": True, "max_position_embeddings": 2048},
    hf_fields={
        **gpt2.FIELDS,
        "intermediate_size": lambda config: config.get("ffn_hidden_size") or times("hidden_size", 4)(config),
    },
    gguf_names={"attn_norm_2": "attn_norm_2"},
    hf_names={
        "transformer.h": "model.layers",
        "transformer.word_embeddings": "model.embed_tokens",
        "transformer.ln_f": "model.norm",
        "ln_attn": "input_layernorm",
        "ln_mlp": "post_attention_layernorm",
        **gpt2.BY_HEAD,
    },
    arrange=arrange,
)
