"""StarCoder 2: llama with layer norms, biases everywhere, an MLP without a gate and, in some sizes, a window."""

from dataclasses import replace

from tahr.config import SamplingParams
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.families import llama
from tahr.models.families.gpt import gpt2
from tahr.models.family import Family


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    bias = f.flag("use_bias", True)
    cfg = replace(gpt2.layer_normed(cfg), qkv_bias=bias, out_bias=bias, mlp_bias=bias)
    return llama.refine_mistral(f, cfg)


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return replace(llama.refine_gguf(f, gpt2.layer_normed(cfg)), activation="gelu_tanh", rope_style="halves")


STARCODER2 = Family(
    "starcoder2",
    gpt2.build,
    SamplingParams(temperature=0.2, top_p=0.95),
    refine_hf,
    refine_gguf,
    hf_defaults={"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True},
    hf_fields={"rms_norm_eps": "norm_epsilon"},
    hf_names={"c_fc": "up_proj", "c_proj": "down_proj"},
)
