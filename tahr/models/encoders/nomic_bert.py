"""Nomic BERT: BERT with rope, gated MLPs and no biases."""

from dataclasses import replace

from tahr.errors import UnsupportedModel
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.decoder import Decoder
from tahr.models.encoders.layers import TABLE, add_type, encoder, post_norm_encoder
from tahr.models.families.gpt.gpt2 import split_qkv
from tahr.models.family import Family
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.mlp import GatedMLP
from tahr.models.parts.weights import Weights


def build(cfg: ModelConfig, w: Weights) -> Decoder:
    return post_norm_encoder(cfg, w, GatedMLP)


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    add_type(tensors, TABLE)
    return split_qkv(cfg, tensors)


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    """Released files have the words of GPT-2 and switches; those that transformers saves have neither."""
    odd = [name for name in ("prenorm", "qkv_proj_bias", "mlp_fc1_bias", "rotary_emb_interleaved") if f.flag(name)]
    if odd or f.get("num_experts") or f.text("activation_function", "swiglu") != "swiglu":
        raise UnsupportedModel(
            f"This Nomic BERT has {', '.join(odd) or 'experts or another activation'}; Tahr runs version 1 and 1.5."
        )
    return shaped(cfg)


def shaped(cfg: ModelConfig) -> ModelConfig:
    return replace(encoder(cfg, n_labels=0), final_norm=False, activation="silu")


NOMIC_BERT = Family(
    "nomic_bert",
    build,
    refine_hf=refine_hf,
    refine_gguf=lambda f, cfg: shaped(cfg),
    hf_defaults={"vocab_size": 30528},
    hf_fields={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        # Longer texts would need frequencies that change with the length.
        "max_position_embeddings": lambda config: (
            config.get("max_trained_positions") or config.get("n_positions", 2048)
        ),
        "rms_norm_eps": lambda config: config.get("layer_norm_eps") or config.get("layer_norm_epsilon", 1e-12),
        "rope_theta": lambda config: config.get("rotary_emb_base", 1000.0),
        "partial_rotary_factor": "rotary_emb_fraction",
    },
    gguf_names={"attn_output_norm": "attention_norm", "layer_output_norm": "output_norm"},
    hf_names={
        "encoder.layers": "model.layers",
        "embeddings.word_embeddings": "model.embed_tokens",
        "embeddings.token_type_embeddings": "model.embed_types",
        "embeddings.LayerNorm": "model.embed_norm",
        "emb_ln": "model.embed_norm",
        "attn.Wqkv": "self_attn.qkv_proj",
        "attn.out_proj": "self_attn.o_proj",
        "fc11": "up_proj",
        "fc12": "gate_proj",
        "fc2": "down_proj",
        "norm1": "attention_norm",
        "norm2": "output_norm",
        "post_attention_layernorm": "attention_norm",
        "post_mlp_layernorm": "output_norm",
    },
    arrange=arrange,
)
