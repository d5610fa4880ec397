"""Qwen3-Next and Qwen3.5: three of four layers are recurrent (the gated delta rule), the fourth attends with a gate;
experts with a gated shared one, or dense layers. Norm gains are stored less one."""

from dataclasses import replace
from functools import partial

from tahr.config import SamplingParams
from tahr.errors import UnsupportedModel
from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.record import DeltaConfig, ModelConfig
from tahr.models.decoder import Decoder
from tahr.models.families import llama
from tahr.models.families.hybrid.layers import MOST_TAPS, by_interval, with_recurrence
from tahr.models.families.moe.glm4_moe import main_layers
from tahr.models.family import Family
from tahr.models.files.gguf import gguf_experts
from tahr.models.files.hf import hf_experts, with_experts
from tahr.models.mixers.delta_net import DeltaMixer
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.attention import Attention
from tahr.models.parts.sublayers import Mixer
from tahr.models.parts.weights import Weights

INTERVAL = 4


def build(cfg: ModelConfig, w: Weights) -> Decoder:
    def mixer(i: int, at: Weights) -> Mixer:
        if cfg.kinds[i].recurrent:
            return DeltaMixer(cfg, i, at.at("linear_attn"))
        return Attention(cfg, i, at.at("self_attn"), "heads")

    return llama.build_with(cfg, w, mixer)


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    assert cfg.delta is not None
    delta = cfg.delta
    share = cfg.delta.n_v_heads // cfg.delta.n_k_heads
    tensors.rename(r"(model\.layers\.\d+\.self_attn)\.q_proj\.(\w+)", r"\1.qg_proj.\2")
    heights = {"self_attn.q_proj": cfg.head_dim, "self_attn.g_proj": cfg.head_dim}
    tensors.split("self_attn.qg_proj", heights, n_groups=cfg.n_heads)
    parts = {"q": delta.k_dim, "k": delta.k_dim, "v": share * delta.v_dim, "z": share * delta.v_dim}
    tensors.split(
        "linear_attn.in_proj_qkvz", {f"linear_attn.in_proj_{p}": n for p, n in parts.items()}, delta.n_k_heads
    )
    tensors.join_rows([f"linear_attn.in_proj_{part}" for part in "qkv"], "linear_attn.in_proj_qkv")
    pairs = {"linear_attn.in_proj_b": share, "linear_attn.in_proj_a": share}
    tensors.split("linear_attn.in_proj_ba", pairs, n_groups=delta.n_k_heads)
    tensors.as_matrix("mlp.shared_expert_gate")
    return tensors


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    delta = DeltaConfig(
        n_k_heads=f.count("linear_num_key_heads", limits.MOST_HEADS, default=16),
        n_v_heads=f.count("linear_num_value_heads", limits.MOST_HEADS, default=32),
        k_dim=f.count("linear_key_head_dim", limits.MOST_HEAD_DIM, default=128),
        v_dim=f.count("linear_value_head_dim", limits.MOST_HEAD_DIM, default=128),
        kernel=f.count("linear_conv_kernel_dim", MOST_TAPS, default=4, least=2),
    )
    cfg = replace(cfg, delta=delta, norm_offset=1.0)
    types = f.items("layer_types", cfg.n_layers)
    if any(kind not in ("linear_attention", "full_attention") for kind in types):
        raise UnsupportedModel(f"{f.where} has layers of types that a {cfg.family} does not have.")
    recurrent = [kind == "linear_attention" for kind in types] or by_interval(cfg, INTERVAL)
    return with_recurrence(cfg, recurrent)


def refine_moe_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    shared = f.count("shared_expert_intermediate_size", limits.MOST_FFN, default=512, least=0)
    name = "num_experts" if f.get("num_local_experts") is None else "num_local_experts"
    moe = hf_experts(
        f,
        name,
        "moe_intermediate_size",
        renormalise=f.flag("norm_topk_prob", True),
        shared_width=shared,
        shared_gate=shared > 0,
    )
    every = f.count("decoder_sparse_step", limits.MOST_LAYERS, default=1)
    dense = f.items("mlp_only_layers")
    sparse = [i not in dense and (i + 1) % every == 0 for i in range(cfg.n_layers)]
    return with_experts(refine_hf(f, cfg), moe, sparse)


def refine_gguf(f: Fields, cfg: ModelConfig, tiled: bool = True) -> ModelConfig:
    n_v_heads = f.count("ssm.time_step_rank", limits.MOST_HEADS)
    delta = DeltaConfig(
        n_k_heads=f.count("ssm.group_count", limits.MOST_HEADS),
        n_v_heads=n_v_heads,
        k_dim=f.count("ssm.state_size", limits.MOST_HEAD_DIM),
        v_dim=f.count("ssm.inner_size", limits.MOST_WIDTH) // n_v_heads,
        kernel=f.count("ssm.conv_kernel", MOST_TAPS, least=2),
        tiled=tiled,
    )
    cfg = replace(main_layers(f, cfg), delta=delta)
    return with_recurrence(
        cfg, by_interval(cfg, f.count("full_attention_interval", limits.MOST_LAYERS, default=INTERVAL))
    )


def refine_moe_gguf(f: Fields, cfg: ModelConfig, tiled: bool = True) -> ModelConfig:
    shared = f.count("expert_shared_feed_forward_length", limits.MOST_FFN, default=0, least=0)
    return with_experts(refine_gguf(f, cfg, tiled), gguf_experts(f, shared_width=shared, shared_gate=shared > 0))


def refine_next_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return refine_moe_gguf(f, cfg, tiled=False)


SAMPLING = SamplingParams(temperature=0.7, top_k=20, top_p=0.8)
DEFAULTS = {"head_dim": 256, "partial_rotary_factor": 0.25}
HF_NAMES = {"dt_bias": "dt.bias", "mlp.shared_expert": "mlp.shared_experts"}
GGUF_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_dt": "linear_attn.dt",
    "ssm_a": "linear_attn.A",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
family = partial(Family, build=build, sampling=SAMPLING, gguf_names=GGUF_NAMES, hf_names=HF_NAMES, arrange=arrange)

QWEN3_NEXT = family(
    "qwen3_next",
    refine_hf=refine_moe_hf,
    refine_gguf=refine_next_gguf,
    hf_defaults={**DEFAULTS, "num_experts_per_tok": 10},
)
QWEN3_5 = family("qwen3_5", refine_hf=refine_hf, refine_gguf=refine_gguf, hf_defaults=DEFAULTS)
QWEN3_5_MOE = family(
    "qwen3_5_moe",
    refine_hf=refine_moe_hf,
    refine_gguf=refine_moe_gguf,
    hf_defaults={**DEFAULTS, "num_experts_per_tok": 8},
)
