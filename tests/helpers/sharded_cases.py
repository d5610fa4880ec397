"""The families' cases that ranks share, and those that they do not."""

from model_cases import CASES

# What no rule describes yet, with words of the sentence that says so.
REFUSED = {
    "olmo2": "olmo2 models",
    "olmo3": "olmo3 models",
    "stablelm_12b": r"with a tensor model\.layers\.0\.self_attn\.\w_norm\.0",
    "qwen3_next": "qwen3_next models",
    "qwen3_5": "qwen3_5 models",
    "qwen3_5_moe": "qwen3_5_moe models",
    "gemma4": "gemma4 models",
    "gemma4_e": "gemma4 models",
    "gemma4_moe": "gemma4 models",
    "granite4": "granitemoehybrid models",
    "granite4_h": "granitemoehybrid models",
    "granite4_h_dense": "granitemoehybrid models",
    "bitnet": "bitnet models",
    "bitnet_silu": "bitnet models",
}
SHARED = [case for case in CASES if case not in REFUSED]
# Numbers of ranks that all heads can be shared by.
BY_SIX_HEADS = ("bloom", "mpt")


def ranks_of(case: str) -> tuple[int, ...]:
    return (2, 3) if case in BY_SIX_HEADS else (2, 4)


WITH_RANKS = [(case, n_ranks) for case in SHARED for n_ranks in ranks_of(case)]
