"""Which axis of a tensor ranks share, by its canonical name, and the families this is known of."""

import re
from typing import Literal, NamedTuple

from tahr.models.config.record import ModelConfig

# Parts of a tensor that a rank has: all of it; some rows; some columns, so that products are sums over ranks; some
# matrices of a stack; all of it on the first rank alone, because it is added to such a sum.
Axis = Literal["whole", "rows", "columns", "matrices", "first"]

QUERY_HEADS = "query heads"
KEY_HEADS = "key heads"
FFN = "feed-forward width"
EXPERT_FFN = "width of an expert"
SHARED_FFN = "width of the shared expert"
VOCABULARY = "vocabulary"

HEAD = "lm_head"
TABLE = "model.embed_tokens.weight"


class ShardRule(NamedTuple):
    """How a tensor is shared. `counted` is what its axis has so many equal parts of; "": nothing."""

    axis: Axis
    counted: str = ""


WHOLE = ShardRule("whole")
# Patterns of names, without `.weight` and `.bias`: the first that is the whole of a name counts.
RULES: tuple[tuple[str, ShardRule], ...] = (
    (r"lm_head", ShardRule("rows", VOCABULARY)),
    (r"model\.(embed_\w+|norm)", WHOLE),
    (r"layer\.self_attn\.q_proj", ShardRule("rows", QUERY_HEADS)),
    (r"layer\.self_attn\.[kv]_proj", ShardRule("rows", KEY_HEADS)),
    (r"layer\.self_attn\.o_proj", ShardRule("columns", QUERY_HEADS)),
    (r"layer\.self_attn\.q_(nope|rope)_proj", ShardRule("rows", QUERY_HEADS)),
    (r"layer\.self_attn\.[kv]_b_proj", ShardRule("matrices", QUERY_HEADS)),
    (r"layer\.self_attn\.(q_a_proj|q_a_layernorm|kv_a_proj|kv_a_layernorm|k_rope_proj)", WHOLE),
    (r"layer\.self_attn\.sinks", ShardRule("rows", QUERY_HEADS)),
    (r"layer\.self_attn\.q_norm", ShardRule("rows", QUERY_HEADS)),
    (r"layer\.self_attn\.k_norm", ShardRule("rows", KEY_HEADS)),
    (r"layer\.mlp\.(gate|up)_proj", ShardRule("rows", FFN)),
    (r"layer\.mlp\.down_proj", ShardRule("columns", FFN)),
    (r"layer\.mlp\.experts\.(\d+\.)?(gate|up)_proj", ShardRule("rows", EXPERT_FFN)),
    (r"layer\.mlp\.experts\.(\d+\.)?down_proj", ShardRule("columns", EXPERT_FFN)),
    (r"layer\.mlp\.shared_experts\.(gate|up)_proj", ShardRule("rows", SHARED_FFN)),
    (r"layer\.mlp\.shared_experts\.down_proj", ShardRule("columns", SHARED_FFN)),
    (r"layer\.mlp\.(gate|gate\.e_score_correction|shared_expert_gate)", WHOLE),
    (r"layer\.\w+_layernorm", WHOLE),
)
COMPILED = tuple((re.compile(pattern), rule) for pattern, rule in RULES)

# Families whose tensors the rules describe.
SHARDED = frozenset(
    [
        "bloom",
        "cohere",
        "cohere2",
        "deepseek_v2",
        "deepseek_v3",
        "falcon",
        "gemma",
        "gemma2",
        "gemma3",
        "glm",
        "glm4",
        "glm4_moe",
        "glm4_moe_lite",
        "gpt2",
        "gpt_bigcode",
        "gpt_neox",
        "gpt_oss",
        "granite",
        "granitemoe",
        "internlm3",
        "llama",
        "llama4",
        "minicpm",
        "ministral",
        "ministral3",
        "mistral",
        "mistral4",
        "mixtral",
        "mpt",
        "phi",
        "phi3",
        "phimoe",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "smollm3",
        "stablelm",
        "starcoder2",
    ]
)


def rule_of(name: str, n_axes: int) -> ShardRule | None:
    """The rule of a tensor with so many axes; None: there is none."""
    stem, _, kind = name.rpartition(".")
    short = re.sub(r"^model\.layers\.(\d+)\.", "layer.", stem)
    rule = next((rule for pattern, rule in COMPILED if pattern.fullmatch(short)), None)
    if rule and kind == "bias" and rule.axis == "columns":
        return ShardRule("first")
    # A norm that all heads have in common is one vector.
    return WHOLE if n_axes == 1 and short.endswith(("q_norm", "k_norm")) else rule


def obstacle(cfg: ModelConfig) -> str:
    """The reason why ranks cannot share a model; "": there is none."""
    found = (
        (bool(cfg.vision or cfg.audio or cfg.chat_vision), "models with a tower"),
        (cfg.family not in SHARDED, f"{cfg.family} models"),
        (cfg.bidirectional or not cfg.generates, "models that embed or score texts"),
        (any(kind.n_kv_heads or kind.head_dim or kind.ffn_width for kind in cfg.kinds), "layers of several sizes"),
    )
    return next((what for is_so, what in found if is_so), "")
