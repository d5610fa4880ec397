"""GLM 4.5 and later with experts: head norms in some sizes, rope on half of each head, the first layers dense, a shared
expert beside those that a sigmoid router chooses."""

from dataclasses import replace

from tahr.config import SamplingParams
from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.record import MOST_MULTIPLIER, ModelConfig, MoeConfig
from tahr.models.decoder import Decoder
from tahr.models.families import llama
from tahr.models.family import Family
from tahr.models.files.gguf import gguf_experts
from tahr.models.files.hf import hf_experts, with_experts
from tahr.models.parts.attention import Attention
from tahr.models.parts.weights import Weights


def build(cfg: ModelConfig, w: Weights) -> Decoder:
    def attention(i: int, at: Weights) -> Attention:
        return Attention(cfg, i, at.at("self_attn"), "heads" if at.has("self_attn.q_norm.weight") else "")

    return llama.build_with(cfg, w, attention)


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    n_dense = f.count("first_k_dense_replace", limits.MOST_LAYERS, default=1, least=0)
    return after(n_dense, replace(cfg, out_bias=False), sigmoid_experts_hf(f))


def sigmoid_experts_hf(f: Fields) -> MoeConfig:
    """Experts chosen by the sigmoids of their scores and a bias, perhaps within the best groups."""
    n_groups = f.count("n_group", limits.MOST_EXPERTS, default=1)
    moe = routed_hf(f, f.flag("norm_topk_prob", True), sigmoid=True)
    return in_groups(moe, n_groups, f.count("topk_group", n_groups, default=1), top=2)


def routed_hf(f: Fields, renormalise: bool, sigmoid: bool) -> MoeConfig:
    """Experts that a router chooses, by sigmoids and a bias or by a softmax, and shared ones as one wide expert."""
    width = f.count("moe_intermediate_size", limits.MOST_FFN)
    return hf_experts(
        f,
        "n_routed_experts",
        "moe_intermediate_size",
        renormalise=renormalise,
        shared_width=width * f.count("n_shared_experts", limits.MOST_EXPERTS, default=1, least=0),
        scale=f.number("routed_scaling_factor", 0, MOST_MULTIPLIER, default=1),
        sigmoid=sigmoid,
        choice_bias=sigmoid,
    )


def in_groups(moe: MoeConfig, n_groups: int, n_best: int, top: int) -> MoeConfig:
    return replace(moe, n_groups=n_groups, n_best_groups=n_best, group_top=top) if n_groups > n_best else moe


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    cfg = replace(main_layers(f, cfg), out_bias=False)
    n_dense = f.count("leading_dense_block_count", limits.MOST_LAYERS, default=1, least=0)
    return after(n_dense, cfg, sigmoid_experts_gguf(f))


def main_layers(f: Fields, cfg: ModelConfig) -> ModelConfig:
    """`cfg` without the last layers of a file, where they are there to guess tokens ahead."""
    n_layers = cfg.n_layers - f.count("nextn_predict_layers", cfg.n_layers - 1, default=0, least=0)
    return replace(cfg, n_layers=n_layers, kinds=cfg.kinds[:n_layers])


def sigmoid_experts_gguf(f: Fields) -> MoeConfig:
    n_groups = f.count("expert_group_count", limits.MOST_EXPERTS, default=1)
    moe = routed_gguf(f, f.flag("expert_weights_norm", True), sigmoid=True)
    return in_groups(moe, n_groups, f.count("expert_group_used_count", n_groups, default=1), top=2)


def routed_gguf(f: Fields, renormalise: bool, sigmoid: bool) -> MoeConfig:
    width = f.count("expert_feed_forward_length", limits.MOST_FFN)
    return gguf_experts(
        f,
        renormalise=renormalise,
        shared_width=width * f.count("expert_shared_count", limits.MOST_EXPERTS, default=0, least=0),
        scale=f.number("expert_weights_scale", 0, MOST_MULTIPLIER, default=1),
        sigmoid=sigmoid,
        choice_bias=sigmoid,
    )


def after(n_dense: int, cfg: ModelConfig, moe: MoeConfig) -> ModelConfig:
    """`cfg` with experts in all but the first layers."""
    return with_experts(cfg, moe, [i >= n_dense for i in range(cfg.n_layers)])


GLM4_MOE = Family(
    "glm4_moe",
    build,
    SamplingParams(temperature=0.6, top_p=0.95),
    refine_hf,
    refine_gguf,
    hf_defaults={"partial_rotary_factor": 0.5, "num_experts_per_tok": 8},
    gguf_names={"post_attention_norm": "post_attention_layernorm"},
    hf_names={"e_score_correction_bias": "e_score_correction.bias"},
)
