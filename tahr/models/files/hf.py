"""The fields every Hugging Face config.json shares."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tahr.backends.api import Activation
from tahr.errors import CorruptFile, QuantError, UnsupportedModel
from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.record import LayerKind, ModelConfig, MoeConfig
from tahr.models.config.rope import MOST_CONTEXT, LongRope, Proportional, RopeConfig, Yarn, hf_scaling
from tahr.models.family import Family
from tahr.models.files.schemes import Scheme, scheme_of

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "quick_gelu": "quick_gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu2": "relu2",
}
MOST_THETA = 1e12
# Ends of an architecture's name where a classifier replaces the head of the language model.
CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification", "RewardModel")


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a multimodal config, or all of it."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, Mapping) else config


def read_hf(config: Mapping[str, Any], family: Family) -> ModelConfig:
    """The numbers in a config.json of that family."""
    quant_scheme(config, family)
    f = Fields(with_common_names({**family.hf_defaults, **text_part(config)}, family), "config.json")
    cfg = family.refine_hf(f, common(f, family.name))
    refuse_classifier(f, cfg)
    return cfg if cfg.bidirectional or f.flag("is_causal", True) else both_ways(cfg)


def refuse_classifier(f: Fields, cfg: ModelConfig) -> None:
    """A decoder with a classifier in place of its head would write noise, were the embedding taken for the head."""
    kind = str(next(iter(f.items("architectures")), ""))
    if kind.endswith(CLASSIFIERS) and not cfg.n_labels and not cfg.bidirectional:
        raise UnsupportedModel(
            f"The model is a {kind[:80]}, which scores or sorts texts; Tahr runs those of BERT, RoBERTa and ModernBERT."
        )


def both_ways(cfg: ModelConfig) -> ModelConfig:
    """`cfg` of a model whose tokens see those after them too: embedding models are made of decoders in this way."""
    if any(kind.window or kind.recurrent for kind in cfg.kinds) or cfg.latent:
        raise UnsupportedModel(
            f"This {cfg.family} reads texts in both directions and has windows, states or latent attention, which Tahr "
            "runs in one direction; choose another model."
        )
    return replace(cfg, bidirectional=True)


def with_common_names(config: dict[str, Any], family: Family) -> dict[str, Any]:
    """The config with the family's own words for common fields translated."""
    for name, other in family.hf_fields.items():
        value = config.get(other) if isinstance(other, str) else other(config)
        if config.get(name) is None and value is not None:
            config[name] = value
    return config


def times(name: str, factor: Any) -> Callable[[Mapping[str, Any]], Any]:
    """A field that is a multiple of another where nothing else is said."""

    def derived(config: Mapping[str, Any]) -> int | None:
        value = config.get(name)
        return factor * value if isinstance(value, int) and isinstance(factor, int) else None

    return derived


def quant_scheme(config: Mapping[str, Any], family: Family) -> Scheme | None:
    """How the checkpoint keeps scales and packed integers beside or instead of weights, unless its family reads them
    itself; refused where Tahr has no reader, because read plainly they would be noise."""
    for key in ("quantization_config", "compression_config"):
        quant = text_part(config).get(key)
        if quant is None:
            continue
        if not isinstance(quant, Mapping):
            raise QuantError(f"config.json has a {key} that is no object; fetch the model again.")
        if quant.get("quant_method") not in family.quantised:
            return scheme_of(quant)
    return None


def common(f: Fields, family: str) -> ModelConfig:
    """The numbers that all families have."""
    n_layers = f.count("num_hidden_layers", limits.MOST_LAYERS)
    width = f.count("hidden_size", limits.MOST_WIDTH)
    n_heads = f.count("num_attention_heads", limits.MOST_HEADS)
    head_dim = f.count("head_dim", limits.MOST_HEAD_DIM, default=width // n_heads)
    rope = hf_rope(f, head_dim, "full_attention")
    bias = f.flag("attention_bias")
    return ModelConfig(
        family=family,
        n_layers=n_layers,
        width=width,
        n_heads=n_heads,
        n_kv_heads=f.count("num_key_value_heads", n_heads, default=n_heads),
        head_dim=head_dim,
        ffn_width=f.count("intermediate_size", limits.MOST_FFN),
        n_vocab=f.count("vocab_size", limits.MOST_VOCAB),
        norm_eps=f.number("rms_norm_eps", 0, 0.1, default=1e-6),
        max_context=context_of(rope, hf_context(f)),
        kinds=(LayerKind(rope),) * n_layers,
        attn_scale=head_dim**-0.5,
        activation=activation(f, "hidden_act"),
        tied=f.flag("tie_word_embeddings"),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=f.flag("mlp_bias"),
    )


def hf_context(f: Fields) -> int:
    return f.count("max_position_embeddings", MOST_CONTEXT, default=2048)


def context_of(rope: RopeConfig, context: int) -> int:
    """YaRN files may state the context before stretching; long rope is used as it is within the old context."""
    if isinstance(rope.scaling, LongRope):
        return min(context, rope.scaling.context)
    stretched = rope.scaling.factor * rope.scaling.old_context if isinstance(rope.scaling, Yarn) else 0
    return min(max(context, int(stretched)), MOST_CONTEXT)


def activation(f: Fields, name: str) -> Activation:
    requested = f.text(name, "silu")
    if requested not in ACTIVATIONS:
        raise UnsupportedModel(f"{f.where} asks for the activation {requested!r}; Tahr knows {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[requested]


def hf_rope(f: Fields, head_dim: int, kind: str) -> RopeConfig:
    """The rope of layers of that kind: newer files keep it in `rope_parameters`, perhaps one per kind of layer."""
    params, scaling = (of_kind(f.part(name), kind) for name in ("rope_parameters", "rope_scaling"))
    # `rope_scaling` counts where a file has both, as in transformers; it is only meant for full attention.
    if not scaling.values or (params.values and kind != "full_attention"):
        scaling = params
    places = (scaling, params, f)
    part = stated(places, "partial_rotary_factor", 0, 1, 1)
    theta = stated(places, "rope_theta", 1, MOST_THETA, 10000)
    scaling = inherit(f, scaling, "original_max_position_embeddings")
    if scaling.text("rope_type") == "proportional":
        return RopeConfig(theta, head_dim, Proportional(int(head_dim * part) // 2))
    return checked(RopeConfig(theta, int(head_dim * part), hf_scaling(scaling, hf_context(f))))


def of_kind(part: Fields, kind: str) -> Fields:
    return part.part(kind) if kind in part.values else part


def stated(places: Sequence[Fields], name: str, low: float, high: float, default: float) -> float:
    """The number in the first place that has one."""
    found = next((place for place in places if place.get(name) is not None), places[-1])
    return found.number(name, low, high, default)


def inherit(f: Fields, part: Fields, name: str) -> Fields:
    """`part` with what some files state one level above."""
    return replace(part, values={name: f.get(name), **part.values}) if part.values else part


def checked(rope: RopeConfig) -> RopeConfig:
    """Refuse a rope that does not have one divisor per pair."""
    scaling = rope.scaling
    while isinstance(scaling, LongRope):
        if len(scaling.divisors) != rope.n_dims // 2:
            raise CorruptFile(
                f"The model's configuration has {len(scaling.divisors)} rope factors for {rope.n_dims // 2} pairs; "
                "fetch it again."
            )
        scaling = scaling.longer
    return rope


def hf_experts(f: Fields, n_name: str, width_name: str, **more: Any) -> MoeConfig:
    """Experts whose numbers are under these names, and what their family adds."""
    n_experts = f.count(n_name, limits.MOST_EXPERTS)
    return MoeConfig(
        n_experts=n_experts,
        n_active=f.count("num_experts_per_tok", n_experts),
        ffn_width=f.count(width_name, limits.MOST_FFN),
        **{"renormalise": True, **more},
    )


def with_experts(cfg: ModelConfig, moe: MoeConfig, sparse: Sequence[bool] | None = None) -> ModelConfig:
    """`cfg` with experts in the layers that `sparse` picks, or in all."""
    which = sparse or [True] * cfg.n_layers
    kinds = tuple(replace(kind, sparse=s) for kind, s in zip(cfg.kinds, which, strict=True))
    return replace(cfg, moe=moe, kinds=kinds)


def with_windows(f: Fields, cfg: ModelConfig, window: int, sliding: Callable[[int], bool]) -> ModelConfig:
    """`cfg` with `window` on the layers that `layer_types` or, where it is absent, `sliding` picks."""
    default = ["sliding_attention" if sliding(i) else "full_attention" for i in range(cfg.n_layers)]
    types = f.items("layer_types", cfg.n_layers) or default
    windows = {"sliding_attention": window, "full_attention": 0}
    for kind in types:
        if not isinstance(kind, str) or kind not in windows:
            raise UnsupportedModel(f"{f.where} has a layer of type {kind!r}; a {cfg.family} has {', '.join(windows)}.")
    return replace(cfg, kinds=tuple(replace(k, window=windows[t]) for k, t in zip(cfg.kinds, types, strict=True)))
