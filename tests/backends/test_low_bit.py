"""Formats of one to three bits on the CPU: kept as codewords, and multiplied as what these spell."""

from dataclasses import replace

import numpy as np
import pytest

from backends_here import backend
from lora_files import fill_rows, random_factors
from op_steps import rows, step_of
from random_weights import LOW_BIT, random_tensor
from tahr import _native as native
from tahr.backends.api import Backend, ExpertMLPs, Linear, LinearShape, Routing, Rows, StepLimits, Tensor
from tahr.backends.cpu.backend import CpuBackend
from tahr.backends.reference.backend import ReferenceBackend
from tahr.weights.tensor import HostTensor

# Bytes in memory for each of the file: signs take eight bits for eight columns, upper bits of indices whole bytes.
MOST = {"TQ1_0": 1.23, "IQ2_XS": 1.11, "IQ1_S": 1.081, "IQ2_XXS": 1.061, "IQ3_XXS": 1.041, "IQ1_M": 1.036}


def product(be: Backend, tensor: HostTensor, x: np.ndarray) -> np.ndarray:
    return np.array(be.read(be.linear(be.tensor(x), Linear(be.weight(tensor)))))


@pytest.fixture(params=native.isas())
def cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CpuBackend:
    monkeypatch.setenv("TAHR_CPU_ISA", request.param)
    return CpuBackend(1)


@pytest.mark.parametrize("form", LOW_BIT)
@pytest.mark.parametrize("shape", [(24, 512), (13, 256)])
def test_products_are_those_of_the_reference(cpu: CpuBackend, form: str, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    tensor = random_tensor(form, shape, rng)
    for n in (1, 2, 3, 4, 7, 13, 24, 50, 70):
        x = rows(rng, n, shape[1])
        want = product(ReferenceBackend(), tensor, x)
        have = product(cpu, tensor, x)
        np.testing.assert_allclose(have, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("form", LOW_BIT)
def test_every_codeword_scale_and_sign_is_multiplied_exactly(cpu: CpuBackend, form: str) -> None:
    rng = np.random.default_rng(2)
    tensor = random_tensor(form, (512, 256), rng)
    ones = np.eye(256, dtype=np.float32)
    have = product(cpu, tensor, ones)
    np.testing.assert_allclose(have.T, tensor.dense(), rtol=3e-7, atol=0)
    alone = product(cpu, tensor, ones[7:8])
    np.testing.assert_array_equal(alone[0], have[7])


@pytest.mark.parametrize("form", LOW_BIT)
def test_rows_are_looked_up_exactly(form: str) -> None:
    be, rng = backend("cpu"), np.random.default_rng(3)
    tensor = random_tensor(form, (64, 1024), rng, "token_embd.weight")
    step = step_of(be, [(0, 50)], [0], 64)
    found = be.read(be.embed(be.weight(tensor), step))
    np.testing.assert_array_equal(found, tensor.dense()[step.ids[:50]])


@pytest.mark.parametrize("form", LOW_BIT)
def test_a_row_never_depends_on_its_neighbours(form: str) -> None:
    be, rng = backend("cpu"), np.random.default_rng(4)
    tensor = random_tensor(form, (40, 512), rng)
    x = rows(rng, 45, 512)
    together = product(be, tensor, x)
    some = product(be, tensor, x[:6])
    np.testing.assert_array_equal(together[:6], some)
    for i in range(45):
        np.testing.assert_array_equal(together[i], product(be, tensor, x[i : i + 1])[0])


@pytest.mark.parametrize("form", LOW_BIT)
def test_memory_holds_codewords(form: str) -> None:
    tensor = random_tensor(form, (64, 2048), np.random.default_rng(5))
    weight = backend("cpu").weight(tensor)
    assert weight.kernel.startswith(form.lower())
    assert weight.data.packed.n_bytes == weight.n_bytes == backend("cpu").weight_bytes(tensor)
    assert weight.n_bytes <= MOST.get(form, 1) * tensor.n_bytes


@pytest.mark.parametrize("form", LOW_BIT)
def test_a_plan_follows_its_inputs(form: str) -> None:
    be, rng = backend("cpu"), np.random.default_rng(6)
    table = be.weight(random_tensor(form, (32, 256), rng, "token_embd.weight"))
    linear = Linear(be.weight(random_tensor(form, (40, 256), rng)))
    step = step_of(be, [(0, 5)], [0], 32)

    def forward() -> Tensor:
        return be.linear(be.embed(table, step), linear)

    plan = be.record(forward, step)
    step.ids[:5] = 9, 3, 31, 0, 3
    plan.run()
    replayed = np.array(be.read(plan.result))
    np.testing.assert_array_equal(replayed, be.read(forward()))


@pytest.mark.parametrize("form", ["IQ1_M", "IQ2_XXS", "IQ3_S", "TQ1_0"])
def test_experts(form: str) -> None:
    def mixed(be: Backend) -> np.ndarray:
        rng = np.random.default_rng(7)
        gate, up = (Linear(be.weight(random_tensor(form, (5, 64, 256), rng))) for _ in range(2))
        down = Linear(be.weight(random_tensor("F32", (5, 256, 64), rng)))
        x = be.tensor(rows(rng, 40, 256))
        scores = be.tensor(rows(rng, 40, 5))
        return np.array(be.read(be.experts(x, scores, ExpertMLPs(gate, up, down, Routing(2, True), "silu"))))

    want = mixed(ReferenceBackend())
    np.testing.assert_allclose(mixed(backend("cpu")), want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_rows_without_an_adapter_keep_their_bits() -> None:
    be, rng = backend("cpu"), np.random.default_rng(8)
    shapes = {"up": LinearShape(40, 256, "f32")}
    linear = Linear(be.weight(random_tensor("IQ2_XXS", (40, 256), rng)), name="up")
    bank = be.lora_bank(shapes, StepLimits(4, 4, 4, 1))
    bank.put(1, bank.prepare({"up": random_factors(shapes["up"], 16, rng)}))
    x = rows(rng, 3, 256)
    plain = np.array(be.read(be.linear(be.tensor(x), linear)))
    fill_rows(bank, Rows.TOKENS, [[(1, 1.0)], [], [(1, 2.0)]])
    with be.adapting(bank, n_rounds=1):
        adapted = np.array(be.read(be.linear(be.tensor(x), replace(linear))))
    np.testing.assert_array_equal(adapted[1], plain[1])
    assert np.abs(adapted - plain)[[0, 2]].min(axis=1).max() > 0
