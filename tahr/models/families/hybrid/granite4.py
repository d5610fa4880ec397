"""Granite 4: in the H sizes most layers are recurrent (Mamba-2) and the others attend without rope; experts with a
shared one, or the shared one alone, which is then a dense layer. The other sizes attend in all layers."""

from dataclasses import replace

from tahr.backends.api import StateSpaceSizes
from tahr.errors import UnsupportedModel
from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.config.rope import NO_ROPE
from tahr.models.decoder import Decoder
from tahr.models.families import granite, granite_moe, llama
from tahr.models.families.hybrid.layers import MOST_TAPS, with_recurrence
from tahr.models.family import Family
from tahr.models.mixers.mamba import MambaMixer
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.attention import Attention
from tahr.models.parts.sublayers import Mixer
from tahr.models.parts.weights import Weights

LAYER_TYPES = {"mamba": True, "linear_attention": True, "attention": False, "full_attention": False}


def build(cfg: ModelConfig, w: Weights) -> Decoder:
    def mixer(i: int, at: Weights) -> Mixer:
        return MambaMixer(cfg, i, at.at("mamba")) if cfg.kinds[i].recurrent else Attention(cfg, i, at.at("self_attn"))

    return llama.build_with(cfg, w, mixer)


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    if cfg.mamba:
        split_mamba(tensors, "mamba", cfg.mamba)
    if cfg.moe:
        return granite_moe.arrange(cfg, tensors)
    tensors.rename(r"(model\.layers\.\d+\.mlp)\.shared_experts\.(.+)", r"\1.\2")
    tensors.split("mlp.gate_up_proj", {"mlp.gate_proj": cfg.ffn_width, "mlp.up_proj": cfg.ffn_width})
    return tensors


def split_mamba(tensors: Tensors, part: str, mamba: StateSpaceSizes) -> None:
    """Gate, channels of the convolution and time steps, which files have as one matrix."""
    heights = {"z_proj": mamba.width, "xbc_proj": mamba.channels, "dt_proj": mamba.n_heads}
    tensors.split(f"{part}.in_proj", {f"{part}.{name}": height for name, height in heights.items()})


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    types = f.items("layer_types", cfg.n_layers) or ["mamba"] * cfg.n_layers
    if any(not isinstance(kind, str) or kind not in LAYER_TYPES for kind in types):
        raise UnsupportedModel(f"{f.where} has layers of types that a {cfg.family} does not have.")
    cfg = with_recurrence(cfg, [LAYER_TYPES[kind] for kind in types])
    cfg = cfg if f.get("position_embedding_type") == "rope" else without_rope(cfg)
    if any(kind.recurrent for kind in cfg.kinds):
        cfg = replace(cfg, mamba=mamba_hf(f, cfg))
    if f.count("num_local_experts", limits.MOST_EXPERTS, default=0, least=0):
        return granite_moe.refine_hf(f, cfg)
    return replace(granite.refine_hf(f, cfg), ffn_width=f.count("shared_intermediate_size", limits.MOST_FFN))


def mamba_hf(f: Fields, cfg: ModelConfig) -> StateSpaceSizes:
    n_heads = f.count("mamba_n_heads", limits.MOST_HEADS, default=128)
    width = f.count("mamba_expand", 8, default=2)
    width *= cfg.width
    head_dim = width // n_heads
    if width % n_heads or (f.get("mamba_d_head") != "auto" and f.count("mamba_d_head", width, head_dim) != head_dim):
        raise f.wrong("mamba_d_head", f"{width} / {n_heads}, as the other fields say")
    n_groups = f.count("mamba_n_groups", n_heads, default=1)
    return StateSpaceSizes(
        n_heads=n_heads,
        head_dim=head_dim,
        n_groups=n_groups,
        state_dim=f.count("mamba_d_state", limits.MOST_HEAD_DIM, default=256),
        kernel=f.count("mamba_d_conv", MOST_TAPS, default=4, least=2),
        n_norm_groups=n_groups,
    )


def without_rope(cfg: ModelConfig) -> ModelConfig:
    return replace(cfg, kinds=tuple(replace(kind, rope=NO_ROPE) for kind in cfg.kinds))


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    cfg = with_recurrence(cfg, [n == 0 for n in f.items("attention.head_count_kv", cfg.n_layers)])
    cfg = replace(cfg if f.flag("rope.scaling.finetuned", True) else without_rope(cfg), mamba=mamba_gguf(f))
    has_experts = f.count("expert_count", limits.MOST_EXPERTS, default=0, least=0) > 0
    return granite_moe.refine_gguf(f, cfg) if has_experts else granite.refine_gguf(f, cfg)


def mamba_gguf(f: Fields) -> StateSpaceSizes:
    n_heads = f.count("ssm.time_step_rank", limits.MOST_HEADS)
    n_groups = f.count("ssm.group_count", n_heads)
    return StateSpaceSizes(
        n_heads=n_heads,
        head_dim=f.count("ssm.inner_size", limits.MOST_WIDTH) // n_heads,
        n_groups=n_groups,
        state_dim=f.count("ssm.state_size", limits.MOST_HEAD_DIM),
        kernel=f.count("ssm.conv_kernel", MOST_TAPS, least=2),
        n_norm_groups=n_groups,
    )


# Layers that only attend are those of granite and granitemoe in GGUFs.
GRANITE_4 = Family(
    "granitemoehybrid",
    build,
    refine_hf=refine_hf,
    refine_gguf=refine_gguf,
    hf_names={**granite_moe.HF_NAMES, "dt_bias": "dt.bias"},
    gguf_names={
        "ssm_in": "mamba.in_proj",
        "ssm_conv1d": "mamba.conv1d",
        "ssm_dt": "mamba.dt",
        "ssm_a": "mamba.A",
        "ssm_d": "mamba.D",
        "ssm_norm": "mamba.norm",
        "ssm_out": "mamba.out_proj",
    },
    per_layer=("attention.head_count_kv",),
    arrange=arrange,
)
