"""Llama 4, its text model: windows that begin at multiples of their size, every fourth layer without rope and with
queries that grow with the position; one expert per token, which reads its row times its share, beside a shared one."""

from collections.abc import Sequence
from dataclasses import replace

from tahr.backends.api import AttentionScaling
from tahr.config import SamplingParams
from tahr.errors import UnsupportedModel
from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.record import MOST_MULTIPLIER, ModelConfig, MoeConfig
from tahr.models.config.rope import MOST_CONTEXT, NO_ROPE
from tahr.models.decoder import Decoder
from tahr.models.families import llama
from tahr.models.family import Family
from tahr.models.files.gguf import gguf_experts
from tahr.models.files.hf import hf_experts, with_experts
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.attention import Attention
from tahr.models.parts.weights import Weights

# Chunk length, which GGUFs do not hold.
CHUNK = 8192
PERIOD = 4
ATTENTION_SCALING = AttentionScaling(0.1, 8192, 1)
WITHOUT_NORMS = 128  # experts of the size whose queries and keys are not normed


def build(cfg: ModelConfig, w: Weights) -> Decoder:
    def attention(i: int, at: Weights) -> Attention:
        # Rope keeps lengths, so that norms after it (as here) and before it are the same.
        normed = cfg.unit_norms and cfg.kinds[i].rope != NO_ROPE
        return Attention(cfg, i, at.at("self_attn"), "units" if normed else "")

    return llama.build_with(cfg, w, attention)


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    assert cfg.moe is not None
    tensors.transpose(
        {"mlp.experts.gate_up_turned": "mlp.experts.gate_up", "mlp.experts.down_turned": "mlp.experts.down_proj"}
    )
    tensors.split("mlp.experts.gate_up", {f"mlp.experts.{part}_proj": cfg.moe.ffn_width for part in ("gate", "up")})
    return tensors


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    n = cfg.n_layers
    width = f.count("intermediate_size", limits.MOST_FFN)
    period = f.count("no_rope_layer_interval", limits.MOST_LAYERS, default=PERIOD)
    ropes = [bool(flag) for flag in f.items("no_rope_layers", n)] or [(i + 1) % period != 0 for i in range(n)]
    types = f.items("layer_types", n) or ["chunked_attention" if has_rope else "full_attention" for has_rope in ropes]
    if any(kind not in ("chunked_attention", "full_attention") for kind in types):
        raise UnsupportedModel(f"{f.where} has layers of types that a {cfg.family} does not have.")
    chunk = f.count("attention_chunk_size", MOST_CONTEXT, default=0, least=0)
    chunks = [chunk if kind == "chunked_attention" else 0 for kind in types]
    attn_scaling = AttentionScaling(
        f.number("attn_scale", -1, MOST_MULTIPLIER, default=ATTENTION_SCALING.beta),
        f.count("floor_scale", MOST_CONTEXT, default=ATTENTION_SCALING.period),
        ATTENTION_SCALING.offset,
    )
    step = f.count("interleave_moe_layer_step", limits.MOST_LAYERS, default=1)
    sparse = f.items("moe_layers") if f.get("moe_layers") is not None else range(step - 1, n, step)
    cfg = replace(
        with_layers(cfg, ropes, chunks),
        ffn_width=f.count("intermediate_size_mlp", limits.MOST_FFN, default=width),
        attn_scaling=attn_scaling if f.flag("attn_temperature_tuning", True) else None,
        unit_norms=f.flag("use_qk_norm", True),
    )
    moe = told(hf_experts(f, "num_local_experts", "intermediate_size", shared_width=width))
    return with_experts(cfg, moe, [i in sparse for i in range(n)])


def with_layers(cfg: ModelConfig, ropes: Sequence[bool], chunks: Sequence[int]) -> ModelConfig:
    layers = zip(cfg.kinds, ropes, chunks, strict=True)
    kinds = [
        replace(
            kind,
            rope=kind.rope if has_rope else NO_ROPE,
            window=chunk,
            chunked=chunk > 0,
            attn_scaled=not has_rope,
        )
        for kind, has_rope, chunk in layers
    ]
    return replace(cfg, kinds=tuple(kinds), rope_style="pairs")


def told(moe: MoeConfig) -> MoeConfig:
    return replace(moe, renormalise=False, sigmoid=True, scales_input=True)


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    n = cfg.n_layers
    moe = gguf_experts(f)
    has_chunks = f.count("attention.sliding_window", MOST_CONTEXT, default=CHUNK, least=0) > 0
    ropes = [not has_chunks or (i + 1) % PERIOD != 0 for i in range(n)]
    cfg = with_layers(cfg, ropes, [CHUNK if has_chunks and has_rope else 0 for has_rope in ropes])
    cfg = replace(cfg, attn_scaling=ATTENTION_SCALING, unit_norms=moe.n_experts != WITHOUT_NORMS)
    step = f.count("interleave_moe_layer_step", limits.MOST_LAYERS, default=1)
    return with_experts(cfg, told(replace(moe, shared_width=moe.ffn_width)), [(i + 1) % step == 0 for i in range(n)])


LLAMA4 = Family(
    "llama4",
    build,
    SamplingParams(temperature=0.6, top_p=0.9),
    refine_hf,
    refine_gguf,
    hf_defaults={"num_experts_per_tok": 1, "attention_chunk_size": CHUNK, "rope_theta": 500000.0},
    hf_names={
        "feed_forward": "mlp",
        "feed_forward.router": "mlp.gate",
        "feed_forward.shared_expert": "mlp.shared_experts",
        "feed_forward.experts.gate_up_proj": "mlp.experts.gate_up_turned.weight",
        "feed_forward.experts.down_proj": "mlp.experts.down_turned.weight",
    },
    arrange=arrange,
)
