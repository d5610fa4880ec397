"""Gemma: llama with a GELU gate, scaled embeddings and norm gains stored less one. Gemma 2: Gemma 3 without head norms,
but with capped scores and a window on every other layer."""

from dataclasses import replace
from functools import partial

from tahr.config import SamplingParams
from tahr.models.config.fields import Fields
from tahr.models.config.record import MOST_MULTIPLIER, ModelConfig
from tahr.models.config.rope import MOST_CONTEXT
from tahr.models.families import gemma3, llama
from tahr.models.family import Family
from tahr.models.files.gguf import with_local_layers
from tahr.models.files.hf import activation, with_windows

N_LAYERS_27B = 46


def refine_first(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return replace(scaled(cfg), norm_offset=1.0, activation=activation(f, "hidden_activation"))


def refine_first_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return replace(scaled(cfg), activation="gelu_tanh")


def scaled(cfg: ModelConfig) -> ModelConfig:
    return replace(cfg, embed_scale=cfg.width**0.5)


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    window = f.count("sliding_window", MOST_CONTEXT)
    cfg = with_windows(f, refine_first(f, cfg), window, sliding=lambda i: i % 2 == 0)
    cfg = replace(cfg, attn_scale=f.number("query_pre_attn_scalar", 0, MOST_MULTIPLIER) ** -0.5)
    return capped(f, cfg, "attn_logit_softcapping", "final_logit_softcapping")


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    cfg = with_local_layers(f, refine_first_gguf(f, cfg), period=2)
    # The heads of one size are narrower than their share.
    share = cfg.width / cfg.n_heads if cfg.n_layers == N_LAYERS_27B else cfg.head_dim
    scale = f.number("attention.scale", 0, MOST_MULTIPLIER, default=share**-0.5)
    cfg = replace(cfg, attn_scale=scale)
    return capped(f, cfg, "attn_logit_softcapping", "final_logit_softcapping")


def capped(f: Fields, cfg: ModelConfig, scores: str, logits: str) -> ModelConfig:
    cap = partial(f.number, low=-1, high=MOST_MULTIPLIER, default=0)
    return replace(cfg, attn_softcap=cap(scores), logit_softcap=cap(logits))


SAMPLING = SamplingParams(temperature=1.0, top_k=64, top_p=0.95)
DEFAULTS = {"head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
GEMMA = Family("gemma", llama.build, SAMPLING, refine_first, refine_first_gguf, DEFAULTS)
GEMMA2 = Family(
    "gemma2",
    partial(gemma3.build, qk_norm=""),
    SAMPLING,
    refine_hf,
    refine_gguf,
    hf_defaults={
        **DEFAULTS,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    gguf_names=gemma3.GGUF_NAMES,
)
