"""OLMo 2: llama with norms after each half only, and norms over all query and all key heads together. OLMo 3 has a
window on three of four layers, which are not stretched."""

from dataclasses import replace

from tahr.config import SamplingParams
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.config.rope import MOST_CONTEXT, RopeConfig
from tahr.models.decoder import Decoder, decoder_of
from tahr.models.family import Family
from tahr.models.files.gguf import with_local_layers
from tahr.models.files.hf import hf_rope, with_windows
from tahr.models.parts.attention import Attention
from tahr.models.parts.mlp import GatedMLP
from tahr.models.parts.sublayers import DecoderLayer
from tahr.models.parts.weights import Weights

PERIOD = 4


def build(cfg: ModelConfig, w: Weights) -> Decoder:
    def layer(i: int, at: Weights) -> DecoderLayer:
        return DecoderLayer(
            attention=Attention(cfg, i, at.at("self_attn"), qk_norm="rows"),
            ffn=GatedMLP(cfg, at.at("mlp")),
            after=at.pick("post_attention_layernorm", "post_feedforward_layernorm"),
        )

    return decoder_of(cfg, w, layer)


def refine_3(f: Fields, cfg: ModelConfig) -> ModelConfig:
    window = f.count("sliding_window", MOST_CONTEXT)
    cfg = with_windows(f, cfg, window, sliding=lambda i: (i + 1) % PERIOD != 0)
    told = "sliding_attention" in f.part("rope_parameters").values
    return unstretched(cfg, hf_rope(f, cfg.head_dim, "sliding_attention") if told else None)


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    has_windows = f.count("attention.sliding_window", MOST_CONTEXT, default=0, least=0)
    return unstretched(with_local_layers(f, cfg, PERIOD)) if has_windows else cfg


def unstretched(cfg: ModelConfig, local: RopeConfig | None = None) -> ModelConfig:
    """`cfg` whose windowed layers have the rope `local`, or the plain one."""
    plain = local or RopeConfig(cfg.kinds[0].rope.theta, cfg.kinds[0].rope.n_dims)
    return replace(cfg, kinds=tuple(replace(kind, rope=plain) if kind.window else kind for kind in cfg.kinds))


SAMPLING = SamplingParams(temperature=0.6, top_p=0.95)
GGUF_NAMES = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
OLMO2 = Family("olmo2", build, SAMPLING, refine_gguf=refine_gguf, gguf_names=GGUF_NAMES)
OLMO3 = Family(
    "olmo3",
    build,
    SAMPLING,
    refine_3,
    refine_gguf,
    hf_defaults={"rope_theta": 500000.0, "sliding_window": 4096},
    gguf_names=GGUF_NAMES,
)
