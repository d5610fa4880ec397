"""PhiMoE (Phi 3.5 MoE): layer norms, biases, long rope with a factor of its own; two experts, chosen one after the
other against those that are nearly as good."""

from dataclasses import replace

from tahr.config import SamplingParams
from tahr.models.config.fields import Fields
from tahr.models.config.longer import scaled_by
from tahr.models.config.record import ModelConfig, MoeConfig
from tahr.models.config.rope import MOST_FACTOR, LongRope
from tahr.models.families import llama, phi3
from tahr.models.family import Family
from tahr.models.files.gguf import gguf_experts
from tahr.models.files.hf import hf_experts, with_experts

JITTER = 0.01  # default of files that hold none


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    rope = f.part("rope_parameters") if f.get("rope_parameters") else f.part("rope_scaling")
    scaling = cfg.kinds[0].rope.scaling
    if isinstance(scaling, LongRope):
        short, long = (rope.number(f"{n}_mscale", 0, MOST_FACTOR, default=scaling.attention) for n in ("short", "long"))
        longer = replace(scaling.longer, attention=long) if scaling.longer else None
        cfg = scaled_by(cfg, replace(scaling, attention=short, longer=longer))
    jitter = f.number("router_jitter_noise", 0, 1, default=JITTER)
    return shaped(phi3.refine_hf(f, cfg), hf_experts(f, "num_local_experts", "intermediate_size", jitter=jitter))


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return shaped(phi3.refine_gguf(f, cfg), gguf_experts(f, jitter=JITTER))


def shaped(cfg: ModelConfig, moe: MoeConfig) -> ModelConfig:
    return with_experts(replace(cfg, norm_kind="layer", norm_bias=True), moe)


PHIMOE = Family(
    "phimoe",
    llama.build,
    SamplingParams(temperature=0.0),
    refine_hf,
    refine_gguf,
    hf_defaults={"num_experts_per_tok": 2, "rope_theta": 1000000.0},
    hf_names=llama.MIXTRAL.hf_names,
)
