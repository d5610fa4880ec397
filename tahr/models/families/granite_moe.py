"""Granite with experts, in some sizes with a shared one: gate and up of all experts are one stack. Granite 4 without
Mamba layers is the same, or dense: then the shared expert is all there is."""

from dataclasses import replace

from tahr.errors import UnsupportedModel
from tahr.models import config as limits
from tahr.models.arrange import Tensors
from tahr.models.config import ModelConfig
from tahr.models.families import granite, llama
from tahr.models.family import Family
from tahr.models.fields import Fields
from tahr.models.gguf import gguf_experts
from tahr.models.hf import hf_experts, with_experts
from tahr.models.rope import NO_ROPE


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    shared = f.count("shared_intermediate_size", limits.MOST_FFN, default=0, least=0)
    moe = hf_experts(f, "num_local_experts", "intermediate_size", shared_width=shared)
    return with_experts(granite.refine_hf(f, cfg), moe)


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    shared = f.count("expert_shared_feed_forward_length", limits.MOST_FFN, default=0, least=0)
    return with_experts(granite.refine_gguf(f, cfg), gguf_experts(f, shared_width=shared))


def refine_4(f: Fields, cfg: ModelConfig) -> ModelConfig:
    if any(kind not in ("attention", "full_attention") for kind in f.items("layer_types", cfg.n_layers) or ["mamba"]):
        raise UnsupportedModel(
            "This Granite 4 has Mamba layers (the H sizes), which Tahr does not run yet; choose one without, such as "
            "granite-4.0-micro."
        )
    if f.get("position_embedding_type") != "rope":
        cfg = replace(cfg, kinds=tuple(replace(kind, rope=NO_ROPE) for kind in cfg.kinds))
    if f.count("num_local_experts", limits.MOST_EXPERTS, default=0, least=0):
        return refine_hf(f, cfg)
    return replace(granite.refine_hf(f, cfg), ffn_width=f.count("shared_intermediate_size", limits.MOST_FFN))


def arrange_4(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    if cfg.moe:
        return arrange(cfg, tensors)
    tensors.rename(r"(model\.layers\.\d+\.mlp)\.shared_experts\.(.+)", r"\1.\2")
    tensors.split("mlp.gate_up_proj", {"mlp.gate_proj": cfg.ffn_width, "mlp.up_proj": cfg.ffn_width})
    return tensors


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    assert cfg.moe is not None
    for part, width in (("mlp.experts", cfg.moe.ffn_width), ("mlp.shared_experts", cfg.moe.shared_width)):
        tensors.split(f"{part}.gate_up_proj", {f"{part}.gate_proj": width, f"{part}.up_proj": width})
    return tensors


HF_NAMES = {
    "block_sparse_moe.input_linear": "mlp.experts.gate_up_proj",
    "block_sparse_moe.output_linear": "mlp.experts.down_proj",
    "block_sparse_moe.router.layer": "mlp.gate",
    "shared_mlp.input_linear": "mlp.shared_experts.gate_up_proj",
    "shared_mlp.output_linear": "mlp.shared_experts.down_proj",
}
GRANITE_MOE = Family(
    *("granitemoe", llama.build),
    refine_hf=refine_hf,
    refine_gguf=refine_gguf,
    hf_names=HF_NAMES,
    arrange=arrange,
)
# Their GGUFs without Mamba layers say granite or granitemoe.
GRANITE_4 = Family("granitemoehybrid", llama.build, refine_hf=refine_4, hf_names=HF_NAMES, arrange=arrange_4)
