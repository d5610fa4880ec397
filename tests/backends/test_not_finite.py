"""Numbers that are no numbers, and infinite ones, on every instruction set of this processor: none may be lost."""

from collections.abc import Callable

import numpy as np
import pytest

from backends_here import NAMES, backend, kv_store
from random_weights import LOW_BIT, NATIVE, random_tensor
from tahr import _native as native
from tahr.backends.api import (
    Activation,
    AttentionSpec,
    Backend,
    KVShape,
    LayerMemory,
    Linear,
    Rope,
    Rotation,
    StepLimits,
    Tensor,
)
from tahr.backends.cpu.backend import CpuBackend
from tahr.backends.reference.backend import ReferenceBackend


@pytest.fixture(params=native.isas())
def cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CpuBackend:
    monkeypatch.setenv("TAHR_CPU_ISA", request.param)
    return CpuBackend(1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", NATIVE + LOW_BIT)
def test_a_linear_passes_it_on_wherever_it_stands(cpu: CpuBackend, form: str, bad: float) -> None:
    rng = np.random.default_rng(1)
    weight = Linear(cpu.weight(random_tensor(form, (24, 256), rng)))
    x = rng.standard_normal((65, 256)).astype(np.float32)
    sound = np.array(cpu.read(cpu.linear(cpu.tensor(x), weight)))
    x[np.arange(64), np.arange(64)] = bad  # every place of a block
    found = np.array(cpu.read(cpu.linear(cpu.tensor(x), weight)))
    assert not np.isfinite(found[:64]).any()
    np.testing.assert_array_equal(found[64], sound[64])


ACTS: list[Activation] = ["silu", "gelu_tanh", "gelu", "sigmoid", "relu2", "clamped_swiglu", "quick_gelu"]
OPS: dict[str, Callable[[Backend, Tensor, Tensor], Tensor]] = {
    "clip": lambda be, x, y: be.clip(x, 0.7),
    "softcap": lambda be, x, y: be.softcap(x, 5.0),
    **{act: lambda be, x, y, act=act: be.activate(x, y, act) for act in ACTS},  # type: ignore[misc]
    **{f"{act} of up": lambda be, x, y, act=act: be.activate(y, x, act) for act in ACTS},  # type: ignore[misc]
}


@pytest.mark.parametrize("op", OPS)
def test_an_op_on_single_numbers_passes_nan_on(cpu: CpuBackend, op: str) -> None:
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((2, 3, 35)).astype(np.float32)
    x[[0, 1, 2, 2], [0, 17, 31, 34]] = np.nan
    found = cpu.read(OPS[op](cpu, cpu.tensor(x), cpu.tensor(y)))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(x))


def attended(be: Backend, keys: np.ndarray, window: int) -> np.ndarray:
    """What the last of some tokens sees, all of them queries of ones."""
    n, dim = keys.shape
    step = be.step_inputs(StepLimits(n, 1, 1, -(-n // 16)))
    step.page_table[0, 0], step.query_start[:2], step.seq_lens[:, 0] = np.arange(-(-n // 16)), (0, n), n
    step.positions[:n] = step.slot_mapping[0, :n] = np.arange(n)
    step.counts[:] = n, 1, 1
    memory = LayerMemory(step, kv_store(be, [KVShape(1, dim)], [-(-n // 16)], 16, "f32"), 0)
    values = np.random.default_rng(3).standard_normal(keys.shape).astype(np.float32)
    angles = Rotation(be.cos_sin(step, Rope(np.zeros(1, np.float32))), "halves")
    q = be.rope_and_cache([be.tensor(np.ones_like(keys)), be.tensor(keys), be.tensor(values)], angles, memory)
    return np.array(be.read(be.attention(q, AttentionSpec(1.0, window), memory)))[-1]


@pytest.mark.parametrize("n", [66, 90])
def test_a_score_of_minus_infinity_weighs_nothing(cpu: CpuBackend, n: int) -> None:
    """Also where no other token of its tile is seen: the last query sees one token of the first 64."""
    keys = np.random.default_rng(4).standard_normal((n, 32)).astype(np.float32)
    keys[63] = -3e38
    found, wanted = (attended(be, keys, n - 63) for be in (cpu, ReferenceBackend()))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1e-36, 1e-38, 1e-40, 1e-45])
def test_tiny_rows_stay_tiny(name: str, size: float) -> None:
    be, rng = backend(name), np.random.default_rng(5)
    x = (rng.standard_normal((3, 64)) * size).astype(np.float32)
    found = be.read(be.linear(be.tensor(x), Linear(be.weight(random_tensor("Q8_0", (8, 64), rng)))))
    assert np.abs(found).max() < 100 * size
