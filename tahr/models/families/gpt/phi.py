"""Phi 1, 1.5 and 2: GPT-NeoX whose queries, keys and values are apart, with one norm a layer and a bias in the head."""

from dataclasses import replace

from tahr.errors import UnsupportedModel
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.families.gpt import gpt2
from tahr.models.family import Family


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    if f.flag("qk_layernorm"):
        raise UnsupportedModel("This Phi norms queries and keys, which no released one does; choose another model.")
    return replace(gpt2.layer_normed(cfg), qkv_bias=True, out_bias=True, mlp_bias=True, parallel=True)


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return replace(gpt2.layer_normed(cfg), activation="gelu_tanh", parallel=True)


PHI = Family(
    "phi",
    gpt2.build,
    refine_hf=refine_hf,
    refine_gguf=refine_gguf,
    hf_defaults={"hidden_act": "gelu_new", "partial_rotary_factor": 0.5},
    hf_fields={"rms_norm_eps": "layer_norm_eps"},
    hf_names={"final_layernorm": "norm", "dense": "o_proj", "fc1": "up_proj", "fc2": "down_proj"},
    arrange=gpt2.split_qkv,
)
