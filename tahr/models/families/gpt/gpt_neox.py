"""GPT-NeoX and Pythia: GPT-2 with rope on part of each head; the halves of a layer read the same rows."""

from dataclasses import replace

from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.families.gpt import gpt2
from tahr.models.family import Family


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    bias = f.flag("attention_bias", True)
    cfg = replace(gpt2.layer_normed(cfg), qkv_bias=bias, out_bias=bias, mlp_bias=True)
    return replace(cfg, parallel=f.flag("use_parallel_residual", True))


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return replace(gpt2.layer_normed(cfg), activation="gelu", parallel=f.flag("use_parallel_residual", True))


GPT_NEOX = Family(
    "gpt_neox",
    gpt2.build,
    refine_hf=refine_hf,
    refine_gguf=refine_gguf,
    hf_defaults={"hidden_act": "gelu", "rotary_pct": 0.25, "rotary_emb_base": 10000},
    hf_fields={
        "rms_norm_eps": "layer_norm_eps",
        "partial_rotary_factor": "rotary_pct",
        "rope_theta": "rotary_emb_base",
    },
    hf_names={
        "gpt_neox": "model",
        "embed_in": "embed_tokens",
        "embed_out": "lm_head",
        "final_layer_norm": "norm",
        "attention.query_key_value": "self_attn.qkv_by_head",
        "attention.dense": "self_attn.o_proj",
        "dense_h_to_4h": "up_proj",
        "dense_4h_to_h": "down_proj",
    },
    arrange=gpt2.split_by_head,
)
