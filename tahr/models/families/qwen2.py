"""Qwen2 and Qwen2.5: llama with biases on queries, keys and values."""

from dataclasses import replace

from tahr.config import SamplingParams
from tahr.models import config as limits
from tahr.models.config import ModelConfig
from tahr.models.families import llama
from tahr.models.family import Family
from tahr.models.fields import Fields
from tahr.models.hf import with_windows
from tahr.models.rope import MOST_CONTEXT


def windows(f: Fields, cfg: ModelConfig) -> ModelConfig:
    """The window is off unless `use_sliding_window` says otherwise, and then begins at layer `max_window_layers`."""
    window = f.count("sliding_window", MOST_CONTEXT, default=4096) if f.flag("use_sliding_window") else 0
    first = f.count("max_window_layers", limits.MOST_LAYERS, default=28, least=0)
    return with_windows(f, cfg, window, sliding=lambda i: i >= first)


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return replace(windows(f, cfg), qkv_bias=True)


QWEN2 = Family("qwen2", llama.build, SamplingParams(temperature=0.7, top_k=20, top_p=0.8), refine_hf=refine_hf)
