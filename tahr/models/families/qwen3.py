"""Qwen3: llama with norms on each query and key head; some sizes use experts."""

from tahr.config import SamplingParams
from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig, MoeConfig
from tahr.models.config.rope import MOST_CONTEXT
from tahr.models.decoder import Decoder
from tahr.models.families import llama, qwen2
from tahr.models.family import Family
from tahr.models.files.gguf import gguf_experts
from tahr.models.files.hf import with_experts, with_windows
from tahr.models.parts.attention import Attention
from tahr.models.parts.weights import Weights


def build(cfg: ModelConfig, w: Weights) -> Decoder:
    return llama.build_with(cfg, w, lambda i, at: Attention(cfg, i, at.at("self_attn"), qk_norm="heads"))


def refine_moe_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    # transformers 5 saves the count under the name other families use.
    name = "num_experts" if f.get("num_local_experts") is None else "num_local_experts"
    n_experts = f.count(name, limits.MOST_EXPERTS, default=128)
    moe = MoeConfig(
        n_experts=n_experts,
        n_active=f.count("num_experts_per_tok", n_experts, default=8),
        ffn_width=f.count("moe_intermediate_size", limits.MOST_FFN, default=768),
        renormalise=f.flag("norm_topk_prob"),
    )
    every = f.count("decoder_sparse_step", limits.MOST_LAYERS, default=1)
    dense = f.items("mlp_only_layers")
    sparse = [i not in dense and (i + 1) % every == 0 for i in range(cfg.n_layers)]
    window = f.count("sliding_window", MOST_CONTEXT, default=4096) if f.flag("use_sliding_window") else 0
    return with_windows(f, with_experts(cfg, moe, sparse), window, sliding=lambda i: True)


def refine_moe_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return with_experts(cfg, gguf_experts(f, renormalise=f.flag("expert_weights_norm", True)))


SAMPLING = SamplingParams(temperature=0.6, top_k=20, top_p=0.95)
QWEN3 = Family("qwen3", build, SAMPLING, refine_hf=qwen2.windows, hf_defaults={"head_dim": 128})
QWEN3_MOE = Family("qwen3_moe", build, SAMPLING, refine_hf=refine_moe_hf, refine_gguf=refine_moe_gguf)
