"""BitNet: llama with norms before the output and down projections, a squared ReLU, and weights of -1, 0 and 1 times one
number per matrix. Activations are not rounded to 8 bits by token, as training did: rounding less does no harm."""

from dataclasses import replace

from tahr.errors import UnsupportedModel
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.families import llama
from tahr.models.family import Family
from tahr.models.parts.arrange import Tensors


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    if any(name.endswith(".scale") for name in tensors):
        raise UnsupportedModel(
            "This BitNet GGUF keeps the factors of its matrices apart, which Tahr does not read; choose one in TQ1_0 "
            "or TQ2_0, or the safetensors checkpoint."
        )
    return tensors


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    """The first BitNets, whose GGUFs have a name of their own, have another activation."""
    return replace(cfg, activation="silu" if f.prefix == "bitnet." else "relu2")


BITNET = Family(
    "bitnet",
    llama.build,
    refine_gguf=refine_gguf,
    hf_defaults={"hidden_act": "relu2", "rope_theta": 500000.0},
    gguf_names={"attn_sub_norm": "self_attn.attn_sub_norm", "ffn_sub_norm": "mlp.ffn_sub_norm"},
    arrange=arrange,
)
