"""DeepSeek V2 and V3, and who took over their layers (Kimi K2, GLM 4.7 Flash, Mistral 4): latent attention, the first
layers dense, shared experts beside those that a router chooses, perhaps within its best groups."""

from functools import partial

from tahr.config import SamplingParams
from tahr.models.config.record import ModelConfig
from tahr.models.decoder import Decoder
from tahr.models.families import llama
from tahr.models.families.moe.deepseek_reading import refine_gguf, refine_hf, refine_mistral4
from tahr.models.family import Family
from tahr.models.mixers.latent import LatentAttention
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.weights import Weights


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
        heights = {f"mlp.experts.{part}_proj": cfg.moe.ffn_width for part in ("gate", "up")}
        tensors.split("mlp.experts.gate_up_proj", heights)
    return tensors


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
    Family,
    build=build,
    gguf_names=GGUF_NAMES,
    hf_names=HF_NAMES,
    hf_fields=HF_FIELDS,
    arrange=arrange,
    refine_gguf=refine_gguf,
)

DEEPSEEK_V2 = family(
    "deepseek_v2", sampling=SamplingParams(temperature=0.3, top_p=0.95), refine_hf=partial(refine_hf, version=2)
)

DEEPSEEK_V3 = family("deepseek_v3", sampling=SAMPLING, refine_hf=refine_hf, hf_defaults=V3_DEFAULTS)

GLM4_MOE_LITE = family("glm4_moe_lite", sampling=SAMPLING, refine_hf=refine_hf, hf_defaults=LITE_DEFAULTS)

STACKS = {f"experts.{part}": f"experts.{part}.weight" for part in ("gate_up_proj", "down_proj")}

MISTRAL4 = family(
    "mistral4", sampling=SamplingParams(temperature=0.15), refine_hf=refine_mistral4, hf_names=HF_NAMES | STACKS
)
