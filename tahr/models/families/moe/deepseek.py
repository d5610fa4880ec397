"""DeepSeek V2 and V3, and who took over their layers (Kimi K2, GLM 4.7 Flash, Mistral 4): latent attention, the first
layers dense, shared experts beside those that a router chooses, perhaps within its best groups."""

from dataclasses import replace
from functools import partial

from tahr.config import SamplingParams
from tahr.errors import CorruptFile, UnsupportedModel
from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.record import MOST_MULTIPLIER, LatentConfig, ModelConfig, MoeConfig
from tahr.models.config.rope import MOST_FACTOR, Yarn, sharpness
from tahr.models.decoder import Decoder
from tahr.models.families import llama, ministral3
from tahr.models.families.moe.glm4_moe import in_groups, main_layers, routed_gguf, routed_hf
from tahr.models.family import Family
from tahr.models.files.hf import hf_rope, with_experts
from tahr.models.mixers.latent import LatentAttention
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.weights import Weights

# gating functions, by their numbers in GGUFs
SOFTMAX = 1
SIGMOID = 2
GLM_LAYERS = (47, 48)  # layers of GLM 4.7 Flash, whose first GGUFs do not say how experts are chosen


def build(cfg: ModelConfig, w: Weights) -> Decoder:
    return llama.build_with(cfg, w, lambda i, at: LatentAttention(cfg, i, at.at("self_attn")))


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    assert cfg.latent is not None
    latent = cfg.latent
    n = cfg.n_heads
    queries = {"self_attn.q_nope_proj": latent.nope_dim, "self_attn.q_rope_proj": latent.rope_dim}
    tensors.split("self_attn.q_b_proj" if latent.q_rank else "self_attn.q_proj", queries, n)
    whole = {"self_attn.kv_a_proj": latent.rank, "self_attn.k_rope_proj": latent.rope_dim}
    tensors.split("self_attn.kv_a_proj_with_mqa", whole)
    tensors.split("self_attn.kv_b_proj", {"self_attn.k_up": latent.nope_dim, "self_attn.v_b_proj": latent.value_dim}, n)
    for part in ("self_attn.k_up", "self_attn.v_b_proj"):
        tensors.as_stack(part, n)
    tensors.transpose({"self_attn.k_up": "self_attn.k_b_proj"})
    if cfg.moe:
        halves = {f"mlp.experts.{part}_proj": cfg.moe.ffn_width for part in ("gate", "up")}
        tensors.split("mlp.experts.gate_up_proj", halves)
    return tensors


# ---- from config.json ---------------------------------------------------------------------------------------


def refine_hf(f: Fields, cfg: ModelConfig, version: int = 3) -> ModelConfig:
    if cfg.qkv_bias:
        raise UnsupportedModel("This model's latent attention has biases, which Tahr does not read; choose another.")
    dims = {name: f.count(f"{name}_head_dim", limits.MOST_HEAD_DIM) for name in ("qk_nope", "qk_rope", "v")}
    latent = LatentConfig(
        q_rank=f.count("q_lora_rank", limits.MOST_WIDTH, default=0, least=0),
        rank=f.count("kv_lora_rank", limits.MOST_HEAD_DIM),
        nope_dim=dims["qk_nope"],
        rope_dim=dims["qk_rope"],
        value_dim=dims["v"],
    )
    scaling = f.part("rope_parameters") if f.get("rope_parameters") else f.part("rope_scaling")
    weight = scaling.number("mscale_all_dim", -1, MOST_FACTOR, default=0)
    cfg = with_latent(replace(cfg, rope_style="pairs" if f.flag("rope_interleave", True) else "halves"), latent)
    # A partial_rotary_factor is the part that these numbers are of a whole head: all of them are rotated.
    rope = replace(hf_rope(f, latent.rope_dim, "full_attention"), n_dims=latent.rope_dim)
    cfg = sharpened(replace(cfg, kinds=tuple(replace(kind, rope=rope) for kind in cfg.kinds)), weight)
    return with_experts(cfg, experts_hf(f, version), sparse_layers(f, cfg))


def with_latent(cfg: ModelConfig, latent: LatentConfig) -> ModelConfig:
    scale = (latent.nope_dim + latent.rope_dim) ** -0.5
    return replace(cfg, latent=latent, n_kv_heads=1, head_dim=latent.rope_dim + latent.rank, attn_scale=scale)


def sharpened(cfg: ModelConfig, weight: float) -> ModelConfig:
    """YaRN multiplies scores here, where others have cos and sin multiplied."""
    scaling = cfg.kinds[0].rope.scaling
    factor = sharpness(scaling.factor, weight) if isinstance(scaling, Yarn) else 1.0
    return replace(cfg, attn_scale=cfg.attn_scale * factor**2)


def sparse_layers(f: Fields, cfg: ModelConfig) -> list[bool]:
    n_dense = f.count("first_k_dense_replace", limits.MOST_LAYERS, default=1, least=0)
    types = f.items("mlp_layer_types", cfg.n_layers)
    return [kind == "sparse" for kind in types] or [i >= n_dense for i in range(cfg.n_layers)]


def experts_hf(f: Fields, version: int) -> MoeConfig:
    """V3 chooses by sigmoids and a bias, V2 and Mistral 4 by a softmax; V2 judges groups by their best expert alone."""
    moe = routed_hf(f, version != 2 and f.flag("norm_topk_prob", True), sigmoid=version == 3)
    n_groups = f.count("n_group", moe.n_experts, default=1)
    in_all = version == 2 and f.text("topk_method", "greedy") == "greedy"
    return moe if in_all else in_groups(moe, n_groups, f.count("topk_group", n_groups, default=1), min(version, 3) - 1)


def refine_mistral4(f: Fields, cfg: ModelConfig) -> ModelConfig:
    beta = f.part("rope_parameters").number("llama_4_scaling_beta", -1, MOST_MULTIPLIER, default=0)
    return ministral3.with_attention_scaling(refine_hf(f, cfg, version=4), beta)


# ---- from GGUF metadata -------------------------------------------------------------------------------------


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    rope_dim = cfg.kinds[0].rope.n_dims
    key = "attention.key_length"
    both = f.count("attention.key_length_mla", limits.MOST_HEAD_DIM, default=f.count(key, limits.MOST_HEAD_DIM))
    if both <= rope_dim:
        raise CorruptFile(f"The GGUF says that {rope_dim} of a query's {both} numbers are rotated; fetch it again.")
    latent = LatentConfig(
        q_rank=f.count("attention.q_lora_rank", limits.MOST_WIDTH, default=0, least=0),
        rank=f.count("attention.kv_lora_rank", limits.MOST_HEAD_DIM),
        nope_dim=both - rope_dim,
        rope_dim=rope_dim,
        value_dim=f.count(value_length(f), limits.MOST_HEAD_DIM),
    )
    cfg = with_latent(replace(main_layers(f, cfg), rope_style="pairs"), latent)
    # Stored is a tenth of the weight that config.json has.
    weight = 10 * f.number("rope.scaling.yarn_log_multiplier", -1, MOST_FACTOR, default=0)
    n_dense = f.count("leading_dense_block_count", limits.MOST_LAYERS, default=1, least=0)
    cfg = sharpened(with_plain_yarn(cfg), weight)
    beta = f.number("attention.temperature_scale", -1, MOST_MULTIPLIER, default=0)
    sparse = [i >= n_dense for i in range(cfg.n_layers)]
    return ministral3.with_attention_scaling(with_experts(cfg, experts_gguf(f, cfg), sparse), beta)


def value_length(f: Fields) -> str:
    mla = "attention.value_length_mla"
    return "attention.value_length" if f.get(mla) is None else mla


def with_plain_yarn(cfg: ModelConfig) -> ModelConfig:
    """cos and sin are not multiplied: their factor is that of `sharpened`, divided by itself."""
    rope = cfg.kinds[0].rope
    if isinstance(rope.scaling, Yarn):
        rope = replace(rope, scaling=replace(rope.scaling, attention=1.0))
    return replace(cfg, kinds=tuple(replace(kind, rope=rope) for kind in cfg.kinds))


def experts_gguf(f: Fields, cfg: ModelConfig) -> MoeConfig:
    unsaid = SIGMOID if cfg.n_layers in GLM_LAYERS else SOFTMAX
    sigmoid = f.count("expert_gating_func", 3, default=unsaid) == SIGMOID
    moe = routed_gguf(f, f.flag("expert_weights_norm", False), sigmoid)
    n_groups = f.count("expert_group_count", moe.n_experts, default=1)
    top = 1 if not sigmoid and not moe.renormalise else 2
    return in_groups(moe, n_groups, f.count("expert_group_used_count", n_groups, default=1), top)


GGUF_NAMES = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
}
HF_NAMES = {"e_score_correction_bias": "e_score_correction.bias"}
V3_DEFAULTS = {"num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3}
LITE_DEFAULTS = {"num_experts_per_tok": 4, "first_k_dense_replace": 1}
HF_FIELDS = {"head_dim": "qk_rope_head_dim"}  # the part of a head that rope turns
SAMPLING = SamplingParams(temperature=0.6, top_p=0.95)
family = partial(
    Family, build=build, gguf_names=GGUF_NAMES, hf_names=HF_NAMES, hf_fields=HF_FIELDS, arrange=arrange,
    refine_gguf=refine_gguf,
)  # fmt: skip

DEEPSEEK_V2 = family(
    "deepseek_v2", sampling=SamplingParams(temperature=0.3, top_p=0.95), refine_hf=partial(refine_hf, version=2)
)
DEEPSEEK_V3 = family("deepseek_v3", sampling=SAMPLING, refine_hf=refine_hf, hf_defaults=V3_DEFAULTS)
GLM4_MOE_LITE = family("glm4_moe_lite", sampling=SAMPLING, refine_hf=refine_hf, hf_defaults=LITE_DEFAULTS)
STACKS = {f"experts.{part}": f"experts.{part}.weight" for part in ("gate_up_proj", "down_proj")}
MISTRAL4 = family(
    "mistral4", sampling=SamplingParams(temperature=0.15), refine_hf=refine_mistral4, hf_names=HF_NAMES | STACKS
)
