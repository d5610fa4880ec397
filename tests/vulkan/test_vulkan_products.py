"""Products of many rows in tiles, by units for matrices and without them, beside the reference's dense product."""

from collections.abc import Iterator

import numpy as np
import pytest

import backends_here
from op_steps import rows
from random_weights import random_tensor
from tahr.backends.api import Backend, Linear, Weight
from tahr.backends.reference.arithmetic import DenseMatrix
from tahr.backends.reference.backend import ReferenceBackend
from tahr.weights.tensor import HostTensor

pytestmark = pytest.mark.skipif("vulkan" not in backends_here.NAMES, reason="there is no Vulkan device here")

if "vulkan" in backends_here.NAMES:
    from tahr.backends.vulkan import products
    from tahr.backends.vulkan.backend import VulkanBackend

FORMS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "Q2_K"]  # one of each kind of plane
N = 70  # rows: more than a tile's, and no whole number of tiles
# Of the largest number: rows of f16 and what is dequantised to f16, or f32.
TOLERANCES = {"matrices": 2e-3, "plain": 1e-5}


@pytest.fixture(scope="module", params=list(TOLERANCES))
def units(request: pytest.FixtureRequest) -> Iterator[tuple["VulkanBackend", float]]:
    be = VulkanBackend()
    be._tiles = be._working_tiles() if request.param == "matrices" else ()
    if request.param == "matrices" and not be._tiles:
        assert not be.device.facts.matrix[0], "units that do not multiply"
        pytest.skip("this device has no units for matrices")
    yield be, TOLERANCES[request.param]


class DenseOracle(ReferenceBackend):
    """Multiplies what is stored with f32 rows."""

    def weight(self, tensor: HostTensor) -> Weight:
        weight = super().weight(tensor)
        object.__setattr__(weight, "data", DenseMatrix(weight.data.values, int8=False))
        return weight


def check(be: "VulkanBackend", run, tolerance: float) -> np.ndarray:  # type: ignore[no-untyped-def]
    wanted = run(DenseOracle(), np.random.default_rng(3))
    found = np.array(run(be, np.random.default_rng(3)))
    assert np.abs(found - wanted).max() <= tolerance * np.abs(wanted).max()
    return found


@pytest.mark.parametrize("form", FORMS)
def test_many_rows(form: str, units: tuple["VulkanBackend", float]) -> None:
    def run(be: Backend, rng: np.random.Generator) -> np.ndarray:
        w = be.weight(random_tensor(form, (48, 256), rng))
        return be.read(be.linear(be.tensor(rows(rng, N, 256)), Linear(w, None)))

    check(units[0], run, units[1])


@pytest.mark.parametrize("form", ["BF16", "Q4_K"])
def test_gated_and_biased_rows(form: str, units: tuple["VulkanBackend", float]) -> None:
    """Results that fill no tile."""

    def run(be: Backend, rng: np.random.Generator) -> np.ndarray:
        biases = [be.vector(rng.standard_normal(77).astype(np.float32)) for _ in range(2)]
        gate_up = be.join([Linear(be.weight(random_tensor(form, (77, 256), rng)), bias) for bias in biases])
        return be.read(be.gated(be.tensor(rows(rng, N, 256)), gate_up, "silu"))

    check(units[0], run, 2 * units[1])


@pytest.mark.parametrize("form", ["F32", "F16", "BF16"])
def test_columns_that_fill_no_run(form: str, units: tuple["VulkanBackend", float]) -> None:
    def run(be: Backend, rng: np.random.Generator) -> np.ndarray:
        w = be.weight(random_tensor(form, (33, 75), rng))
        return be.read(be.linear(be.tensor(rows(rng, 17, 75)), Linear(w, None)))

    check(units[0], run, units[1])


def test_large_and_small_numbers_keep_their_precision(units: tuple["VulkanBackend", float]) -> None:
    """Rows far outside of what f16 holds; one that is not finite spoils itself alone."""

    def run(be: Backend, rng: np.random.Generator) -> np.ndarray:
        x = rows(rng, 20, 64) * (10.0 ** np.linspace(-20, 20, 20, dtype=np.float32))[:, None]
        x[7, 5], x[11] = np.inf, 0
        w = be.weight(random_tensor("F16", (40, 64), rng))
        with np.errstate(invalid="ignore", over="ignore"):
            return be.read(be.linear(be.tensor(x), Linear(w, None)))

    be, tolerance = units
    wanted, found = (np.array(run(each, np.random.default_rng(5))) for each in (DenseOracle(), be))
    assert not np.isfinite(found[7]).any()
    others = [i for i in range(20) if i != 7]
    most = np.abs(wanted[others]).max(axis=1, keepdims=True)
    assert (np.abs(found[others] - wanted[others]) <= tolerance * most).all()


def test_units_that_multiply_wrongly_are_not_used() -> None:
    be = VulkanBackend()
    if not be.device.facts.matrix[0]:
        pytest.skip("this device has no units for matrices")
    be._memory.read = lambda span, n_bytes: np.zeros(n_bytes, np.uint8)  # type: ignore[method-assign]
    assert be._working_tiles() == ()


@pytest.mark.parametrize("mode", ["declared", "permuted", "barriers"])
def test_tiles_in_any_order_and_among_poison(mode: str) -> None:
    """Rows are rounded to f16 once for two products of them."""

    def run(be: VulkanBackend) -> list[np.ndarray]:
        rng = np.random.default_rng(9)
        joined = be.join([Linear(be.weight(random_tensor("BF16", (n, 75), rng)), None) for n in (40, 33)])
        return [np.array(be.read(y)) for y in be.linears(be.tensor(rows(rng, 20, 75)), joined)]

    if mode == "declared" and not backends_here.backend("vulkan").device.is_unified:  # type: ignore[attr-defined]
        pytest.skip("the host does not see this device's memory")
    for wanted, found in zip(run(VulkanBackend()), run(VulkanBackend(mode=mode)), strict=True):
        np.testing.assert_array_equal(wanted, found)


def test_the_tiles_are_those_that_kernels_are_made_for() -> None:
    from tahr.backends.vulkan.shaders import codes

    wanted = {products.matrix_name("q8", list(size), tile) for size, tiles in products.TILES.items() for tile in tiles}
    assert wanted == {name for name in codes() if name.startswith("matrix_q8_")}
