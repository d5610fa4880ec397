"""Configurations of models with latent attention, from config.json and from GGUF metadata."""

from dataclasses import replace

from tahr.errors import CorruptFile, UnsupportedModel
from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.record import MOST_MULTIPLIER, LatentConfig, ModelConfig
from tahr.models.config.rope import MOST_FACTOR, Yarn, sharpness
from tahr.models.families import ministral3
from tahr.models.families.moe.deepseek_experts import experts_gguf, experts_hf, sparse_layers
from tahr.models.families.moe.glm4_moe import main_layers
from tahr.models.files.hf import hf_rope, with_experts


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


def refine_mistral4(f: Fields, cfg: ModelConfig) -> ModelConfig:
    beta = f.part("rope_parameters").number("llama_4_scaling_beta", -1, MOST_MULTIPLIER, default=0)
    return ministral3.with_attention_scaling(refine_hf(f, cfg, version=4), beta)


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
