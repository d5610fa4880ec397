"""Phi 3, 3.5 and 4: llama whose queries, keys and values are one matrix, gate and up another; long rope in some."""

from dataclasses import replace

from tahr.config import SamplingParams
from tahr.models.config.fields import Fields
from tahr.models.config.longer import longer_rope
from tahr.models.config.record import ModelConfig
from tahr.models.config.rope import MOST_CONTEXT
from tahr.models.families import llama
from tahr.models.family import Family
from tahr.models.parts.arrange import Tensors


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    tensors.split("self_attn.qkv_proj", qkv_heights(cfg))
    tensors.split("mlp.gate_up_proj", {"mlp.gate_proj": cfg.ffn_width, "mlp.up_proj": cfg.ffn_width})
    return tensors


def qkv_heights(cfg: ModelConfig) -> dict[str, int]:
    """The rows of queries, keys and values in a matrix that holds them one after the other."""
    q = cfg.n_heads * cfg.head_dim
    kv = cfg.n_kv_heads * cfg.head_dim
    return {"self_attn.q_proj": q, "self_attn.k_proj": kv, "self_attn.v_proj": kv}


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return windowed(cfg, f.count("sliding_window", MOST_CONTEXT, default=0, least=0))


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return windowed(cfg, f.count("attention.sliding_window", MOST_CONTEXT, default=0, least=0))


def windowed(cfg: ModelConfig, window: int) -> ModelConfig:
    """`cfg` with a window on every layer; one as wide as the context changes nothing."""
    longer = longer_rope(cfg)
    window = window if window < (longer.context if longer else cfg.max_context) else 0
    return replace(cfg, kinds=tuple(replace(kind, window=window) for kind in cfg.kinds))


PHI3 = Family(
    "phi3",
    llama.build,
    SamplingParams(temperature=0.8, top_k=50, top_p=0.95),
    refine_hf,
    refine_gguf,
    hf_defaults={"original_max_position_embeddings": 4096, "max_position_embeddings": 4096},
    gguf_names={"ffn_up": "mlp.gate_up_proj"},
    arrange=arrange,
)
