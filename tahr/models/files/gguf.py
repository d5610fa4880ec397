"""The metadata every GGUF architecture shares."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tahr.errors import CorruptFile, UnsupportedModel
from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.record import LayerKind, ModelConfig, MoeConfig
from tahr.models.config.rope import MOST_CONTEXT
from tahr.models.family import Family
from tahr.models.files.gguf_rope import gguf_context, gguf_rope
from tahr.models.files.hf import both_ways, context_of
from tahr.weights.tensor import HostTensor


def read_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, HostTensor], family: Family) -> ModelConfig:
    """The numbers in the metadata of a GGUF of that family."""
    f = Fields(metadata, "the GGUF metadata", prefix=f"{metadata['general.architecture']}.")
    one_layer = first_of(f, family.per_layer)
    cfg = family.refine_gguf(f, common(one_layer, tensors, family))
    is_causal = f.flag("attention.causal", True)
    return cfg if cfg.bidirectional or is_causal else both_ways(cfg)


def first_of(f: Fields, names: Sequence[str]) -> Fields:
    """The fields with one layer's number in place of lists: the first that is not 0."""
    lists = {f.prefix + name: first_number(f.items(name)) for name in names if not isinstance(f.get(name), int | None)}
    return replace(f, values={**f.values, **lists}) if lists else f


def first_number(items: list[Any]) -> list[Any]:
    return [item for item in items if item != 0][:1] or items[:1]


def common(f: Fields, tensors: Mapping[str, HostTensor], family: Family) -> ModelConfig:
    n_layers = f.count("block_count", limits.MOST_LAYERS)
    width = f.count("embedding_length", limits.MOST_WIDTH)
    n_heads = f.count("attention.head_count", limits.MOST_HEADS)
    head_dim = f.count("attention.key_length", limits.MOST_HEAD_DIM, default=width // n_heads)
    rope = gguf_rope(f, tensors, head_dim)
    context = gguf_context(f)
    refuse_odd_heads(f, head_dim)
    return ModelConfig(
        family=family.name,
        n_layers=n_layers,
        width=width,
        n_heads=n_heads,
        n_kv_heads=f.count("attention.head_count_kv", n_heads, default=n_heads),
        head_dim=head_dim,
        ffn_width=f.count("feed_forward_length", limits.MOST_FFN),
        n_vocab=count_vocab(tensors),
        norm_eps=gguf_epsilon(f),
        max_context=context_of(rope, context),
        kinds=(LayerKind(rope),) * n_layers,
        attn_scale=head_dim**-0.5,
        tied="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors or "blk.0.attn_qkv.bias" in tensors,
        out_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_up.bias" in tensors,
    )


def gguf_epsilon(f: Fields) -> float:
    """The epsilon of RMS norms or of layer norms."""
    rms = "attention.layer_norm_rms_epsilon"
    return f.number(rms if f.get(rms) is not None else "attention.layer_norm_epsilon", 0, 0.1)


def refuse_odd_heads(f: Fields, head_dim: int) -> None:
    value_dim = f.count("attention.value_length", limits.MOST_HEAD_DIM, default=head_dim)
    if value_dim != head_dim and f.get("attention.kv_lora_rank") is None:
        raise UnsupportedModel(
            f"The model's value heads have {value_dim} numbers and its key heads {head_dim}; Tahr needs them equal."
        )


def count_vocab(tensors: Mapping[str, HostTensor]) -> int:
    """Count tokens by the rows of the embedding: metadata may count differently, or not at all."""
    table = tensors.get("token_embd.weight")
    is_matrix = table is not None and len(table.shape) == 2
    if table is None or not is_matrix or not 0 < table.shape[0] <= limits.MOST_VOCAB:
        raise CorruptFile("The GGUF has no usable token_embd.weight, so it is no language model; choose another file.")
    return table.shape[0]


def gguf_experts(f: Fields, **more: Any) -> MoeConfig:
    """The experts of a file; `more` is what its family adds."""
    n_experts = f.count("expert_count", limits.MOST_EXPERTS)
    return MoeConfig(
        n_experts=n_experts,
        n_active=f.count("expert_used_count", n_experts),
        **{"renormalise": True, "ffn_width": gguf_expert_width(f), **more},
    )


def gguf_expert_width(f: Fields) -> int:
    """The width of an expert; without a word about it, the width of a dense layer."""
    dense = f.get("feed_forward_length")
    return f.count("expert_feed_forward_length", limits.MOST_FFN, default=dense if isinstance(dense, int) else None)


def local_layers(f: Fields, cfg: ModelConfig, period: int) -> list[bool]:
    """Which layers have a window: the pattern is a period or, in newer files, one flag per layer."""
    name = "attention.sliding_window_pattern"
    if isinstance(f.get(name), int | None):
        pattern = f.count(name, limits.MOST_LAYERS, default=period)
        return [(i + 1) % pattern != 0 for i in range(cfg.n_layers)]
    return [bool(flag) for flag in f.items(name, cfg.n_layers)]


def with_local_layers(f: Fields, cfg: ModelConfig, period: int) -> ModelConfig:
    """`cfg` with the file's window on those layers."""
    window = f.count("attention.sliding_window", MOST_CONTEXT)
    windows = [window if is_local else 0 for is_local in local_layers(f, cfg, period)]
    both = zip(cfg.kinds, windows, strict=True)
    kinds = [replace(kind, window=n) for kind, n in both]
    return replace(cfg, kinds=tuple(kinds))
