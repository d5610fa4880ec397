"""Choice of experts in configurations of DeepSeek's family."""

from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig, MoeConfig
from tahr.models.families.moe.glm4_moe import in_groups, routed_gguf, routed_hf

# gating functions, by their numbers in GGUFs
SOFTMAX = 1

SIGMOID = 2

GLM_LAYERS = (47, 48)  # layers of GLM 4.7 Flash, whose first GGUFs do not say how experts are chosen


def sparse_layers(f: Fields, cfg: ModelConfig) -> list[bool]:
    n_dense = f.count("first_k_dense_replace", limits.MOST_LAYERS, default=1, least=0)
    types = f.items("mlp_layer_types", cfg.n_layers)
    return [kind == "sparse" for kind in types] or [i >= n_dense for i in range(cfg.n_layers)]


def experts_hf(f: Fields, version: int) -> MoeConfig:
    """V3 chooses by sigmoids and a bias, V2 and Mistral 4 by a softmax; V2 judges groups by their best expert alone."""
    moe = routed_hf(f, version != 2 and f.flag("norm_topk_prob", True), sigmoid=version == 3)
    n_groups = f.count("n_group", moe.n_experts, default=1)
    in_all = version == 2 and f.text("topk_method", "greedy") == "greedy"
    return moe if in_all else in_groups(moe, n_groups, f.count("topk_group", n_groups, default=1), min(version, 3) - 1)


def experts_gguf(f: Fields, cfg: ModelConfig) -> MoeConfig:
    unsaid = SIGMOID if cfg.n_layers in GLM_LAYERS else SOFTMAX
    sigmoid = f.count("expert_gating_func", 3, default=unsaid) == SIGMOID
    moe = routed_gguf(f, f.flag("expert_weights_norm", False), sigmoid)
    n_groups = f.count("expert_group_count", moe.n_experts, default=1)
    top = 1 if not sigmoid and not moe.renormalise else 2
    return in_groups(moe, n_groups, f.count("expert_group_used_count", n_groups, default=1), top)
