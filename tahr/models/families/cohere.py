"""Command R: llama with layer norms and scaled logits, whose halves read the same rows and whose rope turns pairs; the
large one has a layer norm on each query and key head.
Command R7B and A have rope and a window on three of four layers, and neither on the fourth."""

from dataclasses import replace

from tahr.config import SamplingParams
from tahr.models.config.fields import Fields
from tahr.models.config.record import MOST_LAYERS, MOST_MULTIPLIER, ModelConfig
from tahr.models.config.rope import MOST_CONTEXT
from tahr.models.decoder import Decoder, decoder_of
from tahr.models.families import smollm3
from tahr.models.family import Family
from tahr.models.files.gguf import with_local_layers
from tahr.models.files.hf import with_windows
from tahr.models.parts.attention import Attention, layer_normed_heads
from tahr.models.parts.mlp import GatedMLP
from tahr.models.parts.sublayers import DecoderLayer
from tahr.models.parts.weights import Weights

PERIOD = 4


def build(cfg: ModelConfig, w: Weights) -> Decoder:
    def layer(i: int, at: Weights) -> DecoderLayer:
        norm = at.norm("input_layernorm")
        attn = at.at("self_attn")
        attention = Attention(cfg, i, attn, layer_normed_heads(cfg, attn))
        mlp = GatedMLP(cfg, at.at("mlp"))
        return DecoderLayer(attention, mlp, (norm, norm), parallel=True)

    return decoder_of(cfg, w, layer)


def refine(f: Fields, cfg: ModelConfig) -> ModelConfig:
    scale = f.number("logit_scale", 0, MOST_MULTIPLIER, default=1 / 16)
    cfg = replace(cfg, norm_kind="layer", rope_style="pairs", parallel=True, logit_scale=scale)
    return replace(cfg, qk_layer_norms=f.flag("use_qk_norm"))


def refine_2(f: Fields, cfg: ModelConfig) -> ModelConfig:
    window = f.count("sliding_window", MOST_CONTEXT)
    period = f.count("sliding_window_pattern", MOST_LAYERS, default=PERIOD)
    return local_rope(with_windows(f, refine(f, cfg), window, sliding=lambda i: (i + 1) % period != 0))


def refine_2_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return local_rope(with_local_layers(f, refine(f, cfg), PERIOD))


def local_rope(cfg: ModelConfig) -> ModelConfig:
    """`cfg` with rope in the layers with a window alone."""
    return smollm3.without_rope(cfg, cfg.windows)


SAMPLING = SamplingParams(temperature=0.3)
DEFAULTS = {"tie_word_embeddings": True, "layer_norm_eps": 1e-5, "max_position_embeddings": 8192}
COHERE = Family(
    "cohere",
    build,
    SAMPLING,
    refine,
    refine,
    DEFAULTS,
    hf_fields={"rms_norm_eps": "layer_norm_eps"},
)
COHERE2 = Family(
    "cohere2",
    build,
    SAMPLING,
    refine_2,
    refine_2_gguf,
    {**DEFAULTS, "sliding_window": 4096},
    hf_fields={"rms_norm_eps": "layer_norm_eps"},
)
