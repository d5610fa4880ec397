"""Granite with experts, in some sizes with a shared one: gate and up of all experts are one stack."""

from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.families import granite, llama
from tahr.models.family import Family
from tahr.models.files.gguf import gguf_experts
from tahr.models.files.hf import hf_experts, with_experts
from tahr.models.parts.arrange import Tensors


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    shared = f.count("shared_intermediate_size", limits.MOST_FFN, default=0, least=0)
    moe = hf_experts(f, "num_local_experts", "intermediate_size", shared_width=shared)
    return with_experts(granite.refine_hf(f, cfg), moe)


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    shared = f.count("expert_shared_feed_forward_length", limits.MOST_FFN, default=0, least=0)
    return with_experts(granite.refine_gguf(f, cfg), gguf_experts(f, shared_width=shared))


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
    "granitemoe",
    llama.build,
    refine_hf=refine_hf,
    refine_gguf=refine_gguf,
    hf_names=HF_NAMES,
    arrange=arrange,
)
