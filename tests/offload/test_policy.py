"""What may be asked for of a model that does not fit, and who refuses it."""

from pathlib import Path

import pytest

import backends_here
from model_cases import CASES, make_weights
from model_files import write_hf
from tahr.cli.settings import settings_layers
from tahr.config import EngineConfig
from tahr.config.sizes import parse_size
from tahr.errors import ConfigError
from tahr.loading.placement import DeviceFacts, Placement
from tahr.loading.sizing import plan_of
from tahr.models.loader.load import load, open_model
from tahr.offload.homes import Home, TensorSize, kind_of
from tahr.offload.policy import OffloadPolicy

GIB = 1 << 30
SIZES = {
    "8g": 8 * GIB, "8G": 8 * GIB, "512m": 1 << 29, " 64k ": 1 << 16, "1.5g": 3 * GIB // 2, "2t": 2 << 40, "7": 7,
    "50%": 500, "0.5 %": 5, "100%": 1000,
}  # fmt: skip


@pytest.mark.parametrize("text", SIZES)
def test_sizes(text: str) -> None:
    assert parse_size(text, "ram_budget").of(1000) == SIZES[text]


@pytest.mark.parametrize("text", ["", "0", "0%", "-1", "101%", "8x", "g", "1e9", "nan%", "8gb", "9" * 40, "1.2.3g"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match=r"gpu_budget is .* must be a size such as 8g"):
        EngineConfig(gpu_budget=text)


@pytest.mark.parametrize("text", ["some", "-1", "1.5", "99999"])
def test_what_is_no_number_of_layers(text: str) -> None:
    with pytest.raises(ConfigError, match="must be auto, all, or a number of layers"):
        EngineConfig(cpu_experts=text)


def test_the_environment_names_expert_layers() -> None:
    values = settings_layers.env_values({"TAHR_NCMOE": "12"}, settings_layers.all_keys(), lambda _: None)
    assert EngineConfig(cpu_experts=values["engine.cpu_experts"]).cpu_experts == "12"


def test_pins() -> None:
    policy = OffloadPolicy.pinned_hot_set(GIB, pin_last_n_layers=2)
    named = ("model.embed_tokens.weight", "lm_head.weight", "model.layers.9.mlp.up_proj.weight", "model.norm.weight")
    assert [policy.pins(name, 10) for name in named] == [True, True, True, False]
    assert not policy.pins("model.layers.7.mlp.up_proj.weight", 10)
    assert not any(OffloadPolicy.budget(GIB).pins(name, 10) for name in named)
    assert OffloadPolicy.none().ram_bytes is None


@pytest.mark.parametrize("wrong", [{"ram_bytes": 0}, {"ram_bytes": -1}, {"pin_last_n_layers": -1}])
def test_policies_that_cannot_be(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="above 0 bytes"):
        OffloadPolicy(**wrong)  # type: ignore[arg-type]


def test_homes_elsewhere() -> None:
    homes = {"a": Home(0, "resident"), "b": Home(None, "resident"), "c": Home(0, "streamed"), "d": Home(None, "file")}
    placed = Placement(homes, dict.fromkeys(homes, TensorSize("F32", 4)), [DeviceFacts("gpu", None, is_host=False)])
    assert placed.elsewhere == {"b": homes["b"], "c": homes["c"]}
    assert [kind_of(home, has_own_memory=True) for home in homes.values()] == ["resident", "host", "streamed", "file"]
    assert kind_of(homes["b"], has_own_memory=False) == "resident"


def test_a_home_that_a_backend_lacks_is_refused_before_a_matrix_is_read(tmp_path: Path) -> None:
    source = open_model([], write_hf(tmp_path, CASES["llama"], make_weights(CASES["llama"])))
    with pytest.raises(ConfigError, match=r"The plain backend cannot have weights streamed \(lm_head.weight\)"):
        load(source, backends_here.backend("plain"), homes={"lm_head.weight": Home(0, "streamed")})


@pytest.mark.parametrize("option", ["gpu_budget", "ram_budget", "cpu_experts", "offload_dir"])
def test_budgets_that_a_backend_cannot_keep_are_refused(option: str, tmp_path: Path) -> None:
    source = open_model([], write_hf(tmp_path, CASES["llama"], make_weights(CASES["llama"])))
    config = EngineConfig(**{option: "1"})
    with pytest.raises(ConfigError, match=f"{option} is set, but the plain backend has no weights elsewhere"):
        plan_of(source, backends_here.backend("plain"), config)
