"""`gpu_budget`: which layers stay on a device, and what is refused."""

import re

import pytest

from tahr.backends import open_backend
from tahr.config import EngineConfig
from tahr.errors import ConfigError, LoadError
from tahr.loading.budgets import refuse_beyond_host, scratch_bytes, with_gpu_budget, within_gpu_budget
from tahr.loading.placement import DeviceFacts, place
from tahr.loading.sizing import summary
from tahr.offload.homes import TensorSize
from tahr.offload.policy import OffloadPolicy, layer_of
from tahr.offload.streaming import ALIGN, N_BUFFERS, plan_streaming

MB = 1 << 20
N_LAYERS = 12
LAYER_BYTES = 8 * MB + 2 * ALIGN
CARD = DeviceFacts("card", None, is_host=False)


def sizes_of(n_layers: int = N_LAYERS) -> dict[str, TensorSize]:
    """A table, a head, and layers of two matrices."""
    layers = {f"model.layers.{i}.mlp.{part}.weight": 4 * MB for i in range(n_layers) for part in ("up", "down")}
    sizes = {"model.embed_tokens.weight": 6 * MB, "lm_head.weight": 6 * MB, **layers}
    return {name: TensorSize("BF16", n_bytes) for name, n_bytes in sizes.items()}


SIZES = sizes_of()
TOTAL = sum(size.n_bytes for size in SIZES.values()) + N_LAYERS * 2 * ALIGN
LEAST = 12 * MB + N_BUFFERS * LAYER_BYTES


def test_what_fits_stays() -> None:
    plan = plan_streaming(SIZES, TOTAL, OffloadPolicy.none(), N_LAYERS)
    assert not plan.homes and not plan.buffer_bytes and not plan.step_bytes


@pytest.mark.parametrize("other_bytes", [0, 5 * MB])
def test_no_plan_is_beyond_its_budget(other_bytes: int) -> None:
    """The first layers stay, whole ones, as many as there is memory for; of the rest every byte passes once a step."""
    passed = []
    for budget in range(LEAST + other_bytes, TOTAL + other_bytes, MB):
        plan = plan_streaming(SIZES, budget, OffloadPolicy.none(), N_LAYERS, other_bytes)
        placed = place(SIZES, [CARD], (), plan)
        streamed = {layer_of(name) for name in plan.homes}
        first = min(layer for layer in streamed if layer is not None)
        assert streamed == set(range(first, N_LAYERS))
        assert all(home.layer == layer_of(name) for name, home in plan.homes.items())
        assert placed.resident_bytes + placed.pool_bytes + other_bytes <= budget
        assert plan.step_bytes == len(streamed) * LAYER_BYTES
        passed.append(plan.step_bytes)
    assert passed == sorted(passed, reverse=True) and passed[0] == N_LAYERS * LAYER_BYTES


def test_pinned_layers_stay() -> None:
    policy = OffloadPolicy.pinned_hot_set(1, pin_last_n_layers=3)
    plan = plan_streaming(SIZES, LEAST + 4 * LAYER_BYTES, policy, N_LAYERS)
    assert {layer_of(name) for name in plan.homes} == set(range(1, N_LAYERS - 3))


def test_a_budget_below_the_floor_names_the_least() -> None:
    with pytest.raises(LoadError, match=r"gpu_budget of .* MB is too small .* it needs at least") as refused:
        plan_streaming(SIZES, LEAST - 1, OffloadPolicy.none(), N_LAYERS)
    said = re.search(r"at least (\d+\.\d)", str(refused.value))
    assert said and 0 <= float(said[1]) * 1e6 - LEAST < 1e5
    assert plan_streaming(SIZES, LEAST, OffloadPolicy.none(), N_LAYERS).homes


def test_a_layer_of_other_size_has_room_in_the_buffers() -> None:
    sizes = SIZES | {f"model.layers.{N_LAYERS - 1}.mlp.down.weight": TensorSize("BF16", 9 * MB)}
    plan = plan_streaming(sizes, TOTAL, OffloadPolicy.none(), N_LAYERS)
    assert plan.buffer_bytes == N_BUFFERS * (13 * MB + 2 * ALIGN)


def test_the_plan_says_where_weights_are() -> None:
    placed = place(SIZES, [CARD], (), plan_streaming(SIZES, LEAST, OffloadPolicy.none(), N_LAYERS))
    assert placed.host_bytes == placed.streamed_bytes == N_LAYERS * 8 * MB
    assert "MB in host memory, which every step copies over the bus" in summary(placed)
    assert [part.n_bytes for part in placed.parts() if part.home.how == "streamed"] == [N_LAYERS * 8 * MB]


def test_keys_and_values_have_their_share_of_a_budget() -> None:
    config = within_gpu_budget(EngineConfig(gpu_budget="64m"), open_backend("cpu", 1))
    assert (config.gpu_budget, config.kv_bytes) == (str(64 * MB), 16 * MB)
    assert with_gpu_budget(config, 32 * MB).kv_bytes == 8 * MB
    assert with_gpu_budget(EngineConfig(gpu_budget=str(MB), kv_bytes=5), 32 * MB).kv_bytes == 5
    assert scratch_bytes(64 * MB) == 8 * MB


def test_layers_that_the_host_has_no_memory_for_are_refused() -> None:
    refuse_beyond_host(5 * MB, None)
    refuse_beyond_host(5 * MB, 5 * MB)
    with pytest.raises(LoadError, match=r"take 5\.2 MB of the host's memory, of which 1\.0 MB are free"):
        refuse_beyond_host(5 * MB, MB)


def test_rows_behind_matrices_are_refused_beside_a_budget() -> None:
    with pytest.raises(ConfigError, match=r"lora_rows is room for adapters .* gpu_budget may move"):
        within_gpu_budget(EngineConfig(gpu_budget="64m", lora_rows=16), open_backend("cpu", 1))
