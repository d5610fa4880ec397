"""MiniCPM 1, 2 and 4: Granite, whose factors follow from depth and width and are told by other names."""

from dataclasses import replace

from tahr.errors import UnsupportedModel
from tahr.models.config.fields import Fields
from tahr.models.config.record import MOST_MULTIPLIER, MOST_WIDTH, ModelConfig
from tahr.models.families import llama
from tahr.models.family import Family

# Numbers of the released sizes, which their older GGUF files leave out.
EMBED_SCALE = 12.0
DEPTH_SCALE = 1.4
BASE_WIDTH = 256


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    for name in ("sparse_config", "num_experts"):
        if f.get(name):
            raise UnsupportedModel(f"This MiniCPM has a {name}, and Tahr runs those without; choose another.")
    embed = f.number("scale_emb", 0, MOST_MULTIPLIER, default=1)
    depth = f.number("scale_depth", 0, MOST_MULTIPLIER, default=1)
    base = f.count("dim_model_base", MOST_WIDTH, default=1)
    return scaled(cfg, embed, depth / cfg.n_layers**0.5, cfg.width / base)


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    embed = f.number("embedding_scale", 0, MOST_MULTIPLIER, default=EMBED_SCALE)
    residual = f.number("residual_scale", 0, MOST_MULTIPLIER, default=DEPTH_SCALE / cfg.n_layers**0.5)
    logits = f.number("logit_scale", 0, MOST_MULTIPLIER, default=cfg.width / BASE_WIDTH)
    return scaled(llama.refine_gguf(f, cfg), embed, residual, logits)


def scaled(cfg: ModelConfig, embed: float, residual: float, logits: float) -> ModelConfig:
    return replace(cfg, embed_scale=embed, residual_scale=residual, logit_scale=1 / logits)


MINICPM = Family(
    "minicpm", llama.build, refine_hf=refine_hf, refine_gguf=refine_gguf, hf_defaults={"tie_word_embeddings": True}
)
