"""The sharding plan: every number of every tensor belongs to some rank, borders lie between blocks, and what cannot be
shared is refused with the numbers that work, or by name."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chat_vision_cases import CASES as SEEING
from model_cases import CASES, make_weights, shapes
from model_files import write_hf
from random_weights import random_tensor
from released_configs import RELEASED
from sharded_cases import REFUSED, SHARED, WITH_RANKS
from tahr.cli.main import main
from tahr.errors import ConfigError, UnsupportedModel
from tahr.models.loader.load import OpenedModel, open_model, settled, sharding_of
from tahr.models.loader.registry import FAMILIES
from tahr.models.sharding.parts import RankTensors, cut_axis
from tahr.models.sharding.plan import ShardedTensor, ShardingPlan
from tahr.models.sharding.rules import SHARDED, obstacle
from tahr.models.sharding.shares import Indivisible, borders
from tahr.weights.formats import FORMATS
from tahr.weights.tensor import HostTensor
from tahr.weights.unread import unread

LLAMA = CASES["llama"]


def opened(config: Mapping[str, Any], formats: Mapping[str, str] | None = None, form: str = "BF16") -> OpenedModel:
    """A checkpoint of that config without bytes; `formats` are those of matrices whose names hold a word."""
    found = {}
    for name, shape in shapes(dict(config)).items():
        chosen = next((f for word, f in (formats or {}).items() if word in name), form if len(shape) > 1 else "F32")
        kind = FORMATS[chosen]
        found[name] = HostTensor(name, kind, shape, unread((kind.n_bytes(int(np.prod(shape))),)))
    return OpenedModel("tiny", "safetensors", config, found, 0, {})


def covered(tensor: ShardedTensor) -> Counter[int]:
    """How many ranks have each entry of the shared axis."""
    return Counter(i for part in tensor.parts for i in part)


@pytest.mark.parametrize(("case", "n_ranks"), [*WITH_RANKS, ("llama", 1)])
def test_every_number_belongs_to_one_rank_or_to_as_many_as_the_rule_says(
    case: str, n_ranks: int, tmp_path: Path
) -> None:
    model = open_model([], write_hf(tmp_path, CASES[case], make_weights(CASES[case])))
    plan = sharding_of(model, n_ranks)
    n_kv_heads = plan.config.n_kv_heads
    for name, tensor in plan.tensors.items():
        n_each = 1
        if tensor.how == "whole":
            n_each = n_ranks
        elif tensor.rule.counted == "key heads":
            n_each = max(1, n_ranks // n_kv_heads)
        assert covered(tensor) == dict.fromkeys(range(tensor.shape[tensor.axis]), n_each), name
        assert sum(map(tensor.rank_bytes, range(n_ranks))) == n_each * tensor.n_bytes, name
    check_parts(model, plan)


def check_parts(model: OpenedModel, plan: ShardingPlan) -> None:
    """The parts of real tensors are as large as the plan says, and together they are the tensor."""
    _, tensors, _ = settled(model)
    ranks = [RankTensors(tensors, plan, rank) for rank in range(plan.n_ranks)]
    for name, planned in plan.tensors.items():
        whole = tensors["model.embed_tokens.weight" if name == "lm_head.weight" and plan.config.tied else name].dense()
        parts = [rank[name].dense() for rank in ranks]
        assert [part.shape for part in parts] == [
            planned.rank_shape(rank) if planned.how != "first" else planned.shape for rank in range(plan.n_ranks)
        ]
        if planned.how == "first":
            np.testing.assert_array_equal(sum(parts), whole)
            continue
        for rank, part in enumerate(parts):
            np.testing.assert_array_equal(part, np.take(whole, planned.parts[rank], axis=planned.axis))


def test_every_family_is_shared_or_refused_by_name() -> None:
    """A family without a case here would be neither."""
    tried = {FAMILIES[CASES[case]["model_type"]].name for case in SHARED}
    assert tried == SHARDED


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_rule_describes_is_refused_by_name(case: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"Tahr does not share .*{REFUSED[case]}.* among ranks yet: run it on"):
        sharding_of(opened(CASES[case], form="F32"), 2)


@pytest.mark.parametrize("case", ["qwen3_vl", "gemma3"])
def test_models_with_towers_are_refused(case: str) -> None:
    with pytest.raises(UnsupportedModel, match="Tahr does not share models with a tower among ranks yet"):
        sharding_of(OpenedModel("tiny", "safetensors", SEEING[case], {}, 0, {}), 2)


def test_models_that_embed_are_refused() -> None:
    cfg = sharding_of(opened(LLAMA), 2).config
    assert obstacle(cfg) == ""
    assert obstacle(replace(cfg, generates=False)) == "models that embed or score texts"


# ---- borders ------------------------------------------------------------------------------------------------

WIDE = {**LLAMA, "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 2816}


def test_widths_are_cut_between_blocks_and_uneven_if_need_be() -> None:
    plan = sharding_of(opened(WIDE, {"down_proj": "Q4_K", "o_proj": "Q4_K"}), 2)
    assert [len(part) for part in plan.shares["feed-forward width"]] == [1280, 1536]
    down = plan.tensors["model.layers.0.mlp.down_proj.weight"]
    assert (down.how, [down.rank_shape(rank) for rank in range(2)]) == ("columns", [(1024, 1280), (1024, 1536)])
    assert plan.tensors["model.layers.0.mlp.up_proj.weight"].parts == down.parts
    assert [plan.rank_config(rank).ffn_width for rank in range(2)] == [1280, 1536]


def test_one_layer_in_large_blocks_decides_for_all() -> None:
    """Formats differ by layer in most GGUFs."""
    plan = sharding_of(opened(WIDE, {"layers.1.mlp.down": "Q6_K", "down_proj": "Q8_0"}), 2)
    assert all(border % 256 == 0 for part in plan.shares["feed-forward width"] for border in (part.start, part.stop))


@pytest.mark.parametrize(
    ("form", "n_ranks", "sizes"),
    [("Q8_0", 3, [928, 928, 960]), ("FP8_128", 2, [1408, 1408]), ("NVFP4", 4, [704] * 4), ("F32", 4, [704] * 4)],
)
def test_blocks_of_formats(form: str, n_ranks: int, sizes: list[int]) -> None:
    block = FORMATS[form].block
    assert [len(part) for part in borders("feed-forward width", 2816, block, n_ranks)] == sizes


def test_too_few_blocks_are_refused_with_the_numbers_that_work() -> None:
    """An expert of 768 in blocks of 256 is three of them."""
    moe = {
        **CASES["qwen3_moe"],
        "num_attention_heads": 8,
        "head_dim": 128,
        "num_key_value_heads": 8,
        "hidden_size": 256,
    }
    moe = {**moe, "moe_intermediate_size": 768}
    model = opened(moe, {"experts": "Q4_K"})
    assert [len(part) for part in sharding_of(model, 2).shares["width of an expert"]] == [256, 512]
    said = r"4 ranks cannot share this qwen3_moe model: the width of an expert of 768, stored in blocks of 256, is too "
    with pytest.raises(ConfigError, match=rf"{said}little for 4 ranks\. Numbers of ranks that work: 1, 2\."):
        sharding_of(model, 4)


@pytest.mark.parametrize(
    ("n_ranks", "reason"),
    [(3, "4 query heads and 2 key heads are no whole groups on every rank"), (8, "4 query heads and 2 key heads")],
)
def test_heads_that_cannot_be_shared_are_refused_with_the_numbers_that_work(n_ranks: int, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"{n_ranks} ranks .*: {reason}.* Numbers of ranks that work: 1, 2, 4\."):
        sharding_of(opened(LLAMA), n_ranks)


def test_heads_that_are_no_whole_blocks_are_refused() -> None:
    model = opened({**LLAMA, "head_dim": 64, "hidden_size": 256}, {"o_proj": "Q4_K"})
    with pytest.raises(ConfigError, match=r"2 heads of 64 numbers are no whole blocks of 256, .* that work: 1\."):
        sharding_of(model, 2)


def test_fewer_key_heads_than_ranks_lie_on_several() -> None:
    plan = sharding_of(opened(LLAMA), 4)
    assert plan.shares["key heads"] == (range(1), range(1), range(1, 2), range(1, 2))
    assert plan.shares["query heads"] == (range(1), range(1, 2), range(2, 3), range(3, 4))
    assert plan.rank_config(3).n_kv_heads == 1


def test_a_border_is_never_inside_a_block() -> None:
    with pytest.raises(Indivisible, match="blocks of 256"):
        borders("feed-forward width", 768, 256, 4)
    with pytest.raises(AssertionError, match="inside a block"):
        cut_axis(random_tensor("Q4_K", (2, 512), np.random.default_rng(0)), 1, range(128))


@pytest.mark.parametrize("form", ["F32", "BF16", "Q4_0", "Q8_0", "Q6_K", "MXFP4"])
@pytest.mark.parametrize("shape", [(4, 512), (3, 4, 512)])
def test_parts_of_a_tensor_hold_its_values(form: str, shape: tuple[int, ...]) -> None:
    tensor = random_tensor(form, shape, np.random.default_rng(0))
    dense = tensor.dense()
    np.testing.assert_array_equal(cut_axis(tensor, len(shape) - 1, range(256, 512)).dense(), dense[..., 256:])
    np.testing.assert_array_equal(cut_axis(tensor, len(shape) - 2, range(1, 3)).dense(), dense[..., 1:3, :])


def test_rows_of_a_matrix_are_a_view_of_the_file() -> None:
    tensor = random_tensor("Q4_0", (8, 64), np.random.default_rng(0))
    part = cut_axis(tensor, 0, range(2, 4))
    assert np.shares_memory(part.data, tensor.data)
    assert (part.n_bytes, part.start) == (tensor.n_bytes // 4, tensor.n_bytes // 4)


def test_ranks_have_whole_matrices_of_stacks_and_all_of_a_latent() -> None:
    """Heads of latent attention are matrices of two stacks; what tokens keep is one vector for all heads."""
    plan = sharding_of(opened(CASES["deepseek_v3"], form="F32"), 2)
    at = "model.layers.1.self_attn"
    assert plan.tensors[f"{at}.k_b_proj.weight"].rank_shape(1) == (2, 32, 16)
    assert plan.tensors[f"{at}.v_b_proj.weight"].rank_shape(1) == (2, 24, 32)
    assert plan.tensors[f"{at}.o_proj.weight"].rank_shape(1) == (64, 48)
    assert plan.tensors[f"{at}.kv_a_proj.weight"].how == "whole"


# ---- released models ----------------------------------------------------------------------------------------

# Millions of bytes of each rank in BF16, worked out by hand from widths and without norms; query heads, key heads and
# feed-forward width of a rank.
SIZES = {
    ("llama-3.1-8b", 2): (8555, (16, 4, 7168)),
    ("llama-3.1-70b", 8): (19477, (8, 1, 3584)),
    ("qwen3-235b-a22b", 8): (60047, (8, 1, 12288)),  # two ranks have the same key head
    ("gemma3-27b", 4): (16323, (8, 4, 5376)),
}


@pytest.mark.parametrize(("name", "n_ranks"), SIZES)
def test_sizes_of_released_models(name: str, n_ranks: int) -> None:
    plan = sharding_of(opened(RELEASED[name][0]), n_ranks)
    millions, numbers_of_rank = SIZES[name, n_ranks]
    for rank in range(n_ranks):
        cfg = plan.rank_config(rank)
        assert (cfg.n_heads, cfg.n_kv_heads, cfg.ffn_width) == numbers_of_rank
        assert plan.rank_bytes(rank) / 1e6 == pytest.approx(millions, rel=1e-3)


@pytest.mark.parametrize("name", RELEASED)
def test_released_models_are_shared_by_two(name: str) -> None:
    config, _ = RELEASED[name]
    plan = sharding_of(opened(config), 2)
    assert abs(plan.rank_bytes(0) - plan.rank_bytes(1)) <= 0.01 * plan.rank_bytes(0)


# ---- doctor -------------------------------------------------------------------------------------------------


def test_doctor_prints_the_table(stories: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(stories), "--tensor-parallel", "2"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "layers.*.self_attn.q_proj.weight 5 rows by query heads 4 + 4 41.0 kB 41.0 kB" in lines
    assert "layers.*.self_attn.o_proj.weight 5 columns by query heads 4 + 4 41.0 kB 41.0 kB" in lines
    assert "layers.*.input_layernorm.weight 5 all of it 1.3 kB 1.3 kB" in lines


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tensor-parallel", "3"], "3 ranks cannot share this llama model"),
        (["--tensor-parallel", "0"], "must be a number of ranks from 1 to 64"),
        (["--tensor-parallel", "65"], "must be a number of ranks from 1 to 64"),
    ],
)
def test_doctor_refuses_numbers_that_do_not_work(
    options: list[str], said: str, stories: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(stories), *options]) != 0
    assert said in "".join(capsys.readouterr())


def test_doctor_wants_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--tensor-parallel", "2"]) == 3
    assert "name the model too" in capsys.readouterr().err


def test_no_matrix_is_read() -> None:
    """A plan of tensors without bytes is that of the real ones."""
    model = OpenedModel("tiny", "safetensors", LLAMA, numbers(LLAMA), 0, {})
    assert sharding_of(model, 2) == sharding_of(opened(LLAMA, form="F32"), 2)


def numbers(config: dict[str, Any]) -> dict[str, HostTensor]:
    rng = np.random.default_rng(0)
    return {name: random_tensor("F32", shape, rng, name) for name, shape in shapes(config).items()}
