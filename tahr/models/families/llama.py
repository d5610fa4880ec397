"""Llama, and Mistral, which is llama with a sliding window."""

from dataclasses import replace

from tahr.config import SamplingParams
from tahr.errors import UnsupportedModel
from tahr.models import config as limits
from tahr.models.blocks import Attention, DecoderLayer, GatedMLP
from tahr.models.config import ModelConfig
from tahr.models.decoder import Decoder
from tahr.models.family import Family
from tahr.models.fields import Fields
from tahr.models.hf import with_windows
from tahr.models.rope import MOST_CONTEXT
from tahr.models.weights import Weights


def build(cfg: ModelConfig, w: Weights) -> Decoder:
    def layer(i: int) -> DecoderLayer:
        at = w.at(f"model.layers.{i}")
        return DecoderLayer(
            mix=Attention(cfg, i, at.at("self_attn")),
            ffn=GatedMLP(cfg, at.at("mlp")),
            norms=at.pick("input_layernorm", "post_attention_layernorm"),
        )

    return Decoder(cfg, w, [layer(i) for i in range(cfg.n_layers)])


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    """GGUF files of this architecture hold queries and keys in pairs order, and mixtures of experts as well."""
    if f.count("expert_count", limits.MOST_EXPERTS, default=0, least=0):
        raise UnsupportedModel("This GGUF is a Mixtral (a llama with experts), which Tahr does not run yet.")
    window = f.count("attention.sliding_window", MOST_CONTEXT, default=0, least=0)
    return replace(cfg, rope_style="pairs", kinds=tuple(replace(kind, window=window) for kind in cfg.kinds))


def refine_mistral(f: Fields, cfg: ModelConfig) -> ModelConfig:
    window = f.count("sliding_window", MOST_CONTEXT, default=0, least=0)
    return with_windows(f, cfg, window, sliding=lambda i: True)


SAMPLING = SamplingParams(temperature=0.6, top_p=0.9)
LLAMA = Family("llama", build, SAMPLING, refine_gguf=refine_gguf)
# A Mistral config that does not mention the window means the first release's; an explicit null means none.
MISTRAL = Family("mistral", build, SAMPLING, refine_mistral, refine_gguf, hf_defaults={"sliding_window": 4096})
