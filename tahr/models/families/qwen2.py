"""Qwen2 and Qwen2.5: llama with biases on queries, keys and values; some sizes use experts and a gated shared one."""

from dataclasses import replace

from tahr.config import SamplingParams
from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.config.rope import MOST_CONTEXT
from tahr.models.families import llama
from tahr.models.family import Family
from tahr.models.files.gguf import gguf_experts
from tahr.models.files.hf import hf_experts, with_experts, with_windows
from tahr.models.parts.arrange import Tensors


def windows(f: Fields, cfg: ModelConfig) -> ModelConfig:
    """The window is off unless `use_sliding_window` says otherwise, and then begins at layer `max_window_layers`."""
    window = f.count("sliding_window", MOST_CONTEXT, default=4096) if f.flag("use_sliding_window") else 0
    first = f.count("max_window_layers", limits.MOST_LAYERS, default=28, least=0)
    return with_windows(f, cfg, window, sliding=lambda i: i >= first)


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return replace(windows(f, cfg), qkv_bias=True)


QWEN2 = Family("qwen2", llama.build, SamplingParams(temperature=0.7, top_k=20, top_p=0.8), refine_hf=refine_hf)


def refine_moe_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    shared = f.count("shared_expert_intermediate_size", limits.MOST_FFN)
    name = "num_experts" if f.get("num_local_experts") is None else "num_local_experts"
    moe = hf_experts(
        f,
        name,
        "moe_intermediate_size",
        renormalise=f.flag("norm_topk_prob"),
        shared_width=shared,
        shared_gate=True,
    )
    every = f.count("decoder_sparse_step", limits.MOST_LAYERS, default=1)
    dense = f.items("mlp_only_layers")
    sparse = [i not in dense and (i + 1) % every == 0 for i in range(cfg.n_layers)]
    window = f.count("sliding_window", MOST_CONTEXT, default=4096) if f.flag("use_sliding_window") else 0
    last = f.count("max_window_layers", limits.MOST_LAYERS, default=28, least=0)
    cfg = with_windows(f, cfg, window, sliding=lambda i: i % 2 == 0 and i < last)
    return with_experts(replace(cfg, qkv_bias=f.flag("qkv_bias", True)), moe, sparse)


def refine_moe_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    shared = f.count("expert_shared_feed_forward_length", limits.MOST_FFN)
    return with_experts(cfg, gguf_experts(f, renormalise=False, shared_width=shared, shared_gate=True))


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    tensors.as_matrix("mlp.shared_expert_gate")
    return tensors


QWEN2_MOE = Family(
    "qwen2_moe",
    llama.build,
    QWEN2.sampling,
    refine_moe_hf,
    refine_moe_gguf,
    hf_defaults={"num_experts": 60, "num_experts_per_tok": 4},
    gguf_names={"ffn_gate_inp_shexp": "mlp.shared_expert_gate"},
    hf_names={"mlp.shared_expert": "mlp.shared_experts"},
    arrange=arrange,
)
