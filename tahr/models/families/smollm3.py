"""SmolLM3: llama without rope in every fourth layer."""

from collections.abc import Sequence
from dataclasses import replace

from tahr.config import SamplingParams
from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.config.rope import MOST_CONTEXT, NO_ROPE
from tahr.models.families import llama
from tahr.models.family import Family
from tahr.models.files.hf import with_windows

INTERVAL = 4


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    interval = f.count("no_rope_layer_interval", limits.MOST_LAYERS, default=INTERVAL)
    rotated = f.items("no_rope_layers", cfg.n_layers) or rotated_layers(cfg, interval)
    window = f.count("sliding_window", MOST_CONTEXT, default=4096) if f.flag("use_sliding_window") else 0
    return without_rope(with_windows(f, cfg, window, sliding=lambda i: not rotated[i]), rotated)


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return without_rope(replace(cfg, rope_style="pairs"), rotated_layers(cfg, INTERVAL))


def rotated_layers(cfg: ModelConfig, interval: int) -> list[bool]:
    return [(i + 1) % interval != 0 for i in range(cfg.n_layers)]


def without_rope(cfg: ModelConfig, rotated: Sequence[object]) -> ModelConfig:
    """`cfg` with rope only in the layers that `rotated` picks."""
    kinds = zip(cfg.kinds, rotated, strict=True)
    return replace(cfg, kinds=tuple(kind if turns else replace(kind, rope=NO_ROPE) for kind, turns in kinds))


SMOLLM3 = Family(
    "smollm3",
    llama.build,
    SamplingParams(temperature=0.6, top_p=0.95),
    refine_hf,
    refine_gguf,
    hf_defaults={"rope_theta": 2e6, "tie_word_embeddings": True},
)
