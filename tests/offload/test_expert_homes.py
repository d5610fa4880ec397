"""Which layers' experts stay on the host: planned from sizes, and from the headers of files."""

import pytest

from tahr.errors import ConfigError, LoadError
from tahr.offload.expert_homes import HOST, expert_homes

STACKS = ("gate_proj", "up_proj", "down_proj")
SIZES = {
    "lm_head.weight": 50,
    "model.layers.0.mlp.up_proj.weight": 10,
    **{f"model.layers.{i}.mlp.experts.{stack}.weight": 100 for i in (1, 2, 10) for stack in STACKS},
    **{f"model.layers.{i}.mlp.shared_experts.up_proj.weight": 5 for i in (1, 2, 10)},
}
ALL = sum(SIZES.values())


def layers(asked: str, budget: int = 0) -> list[int]:
    homes = expert_homes(asked, SIZES, lambda: budget)
    assert set(homes.values()) <= {HOST}
    assert all(".experts." in name for name in homes)
    return sorted({int(name.split(".")[2]) for name in homes})


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("all", [1, 2, 10]), ("0", []), ("1", [10]), ("2", [2, 10]), ("3", [1, 2, 10]), ("99", [1, 2, 10])],
)
def test_layers_are_counted_from_the_last(asked: str, expected: list[int]) -> None:
    assert layers(asked) == expected


@pytest.mark.parametrize(
    ("budget", "expected"), [(ALL, []), (ALL - 1, [10]), (ALL - 300, [10]), (ALL - 301, [2, 10]), (75, [1, 2, 10])]
)
def test_as_few_as_let_the_rest_fit(budget: int, expected: list[int]) -> None:
    assert layers("auto", budget) == expected


def test_what_does_not_fit_without_experts_is_refused() -> None:
    with pytest.raises(LoadError, match="Without its experts the model takes"):
        layers("auto", 74)


def test_a_model_without_experts_is_refused_where_some_were_asked_for() -> None:
    dense = {"model.layers.0.mlp.up_proj.weight": 10}
    for asked in ("all", "3"):
        with pytest.raises(ConfigError, match=f"cpu_experts is {asked}, but the model has no experts"):
            expert_homes(asked, dense, lambda: 100)
    assert expert_homes("auto", dense, lambda: 100) == expert_homes("0", dense, lambda: 0) == {}
