"""What a backend has without saying so: default bodies on handles of a device, and what they refuse."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import test_ops
import test_ops_families
import test_ops_rows
from backends_here import AND_PLAIN, NAMES, backend, oracle
from lora_files import fill_rows, random_factors
from plain_backend import PlainBackend
from tahr.backends.api import (
    Backend,
    Floats,
    HostLoraBank,
    JoinedLinears,
    Linear,
    LinearShape,
    Plan,
    Rows,
    StepInputs,
    StepLimits,
    Tensor,
    Vector,
)
from tahr.errors import UnsupportedModel

GUIDE = Path(__file__).parents[2] / "docs" / "add-a-backend.md"
RECURRENT = ("delta-net", "state-space")
ON_HOST = [
    *(case for case in test_ops.CASES if case.name.startswith("lora-")),
    *(case for case in test_ops_families.CASES if case.name.startswith(RECURRENT)),
    *(case for case in test_ops_rows.CASES if case.name.endswith("-rows")),
]
DEFAULTS = (
    *("record", "lora_bank", "state_layer", "read_states", "write_states", "delta_net", "state_space"),
    *("row_store", "write_rows", "read_rows", "take_rows", "with_rows", "store_rows"),
)


def with_defaults() -> Backend:
    """The cpu backend, whose rows are not arrays, with the default bodies in place of its own, and vectors in boxes."""
    from tahr.backends.cpu.backend import CpuBackend

    class CpuOfDefaults(CpuBackend):
        def vector(self, values: Floats) -> Vector:
            return Vector(len(values), [super().vector(values)])

        def layer_norm(self, x: Tensor, gain: Vector, bias: Vector | None, eps: float) -> Tensor:
            return super().layer_norm(x, gain.data[0], bias and bias.data[0], eps)

        def linear(self, x: Tensor, linear: Linear) -> Tensor:
            return self.add_adapters(x, super().linear(x, linear), linear)

        def linears(self, x: Tensor, joined: JoinedLinears) -> list[Tensor]:
            return [self.linear(x, linear) for linear in joined.parts]

    for name in DEFAULTS:
        setattr(CpuOfDefaults, name, getattr(Backend, name))
    return CpuOfDefaults(2)


needs_cpu = pytest.mark.skipif("cpu" not in NAMES, reason="the cpu backend is left out")


@needs_cpu
@pytest.mark.parametrize("case", ON_HOST, ids=lambda case: case.name)
def test_default_bodies_work_on_the_handles_of_a_device(case: test_ops.Case) -> None:
    wanted = case.run(oracle("cpu"), np.random.default_rng(7))
    found = case.run(with_defaults(), np.random.default_rng(7))
    for want, have in zip(wanted, found, strict=True):
        np.testing.assert_allclose(have, want, rtol=0, atol=case.tolerance * np.abs(want).max())


@needs_cpu
def test_plans_of_a_device_add_the_adapters_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends_here._opened", {("cpu", False): with_defaults()})
    test_ops.test_a_slot_may_get_another_adapter_between_runs_of_a_plan("cpu")


@pytest.mark.parametrize("name", [name for name in AND_PLAIN if name != "cuda"])  # which has recurrent ops of its own
def test_a_vector_comes_back_from_a_device_to_the_bit(name: str) -> None:
    values = np.random.default_rng(1).standard_normal(3001).astype(np.float32)
    values[:4] = 0.0, -0.0, 1e30, -1e-30
    be = backend(name)
    assert be.vector_values(be.vector(values)).tobytes() == values.tobytes()


def test_rows_without_an_adapter_keep_the_sign_of_zero() -> None:
    shape = LinearShape(8, 4)
    bank = PlainBackend().lora_bank({"up": shape}, StepLimits(2, 1, 2, 1))
    bank.put(1, bank.prepare({"up": random_factors(shape, 2, np.random.default_rng(3))}))
    fill_rows(bank, Rows.TOKENS, [[(1, 1.0)], []])
    assert isinstance(bank, HostLoraBank)
    zeros = np.full((2, 8), -0.0, np.float32)
    added = [zeros + part for part in bank.additions(np.ones((2, 4), np.float32), "up", bank.rows[Rows.TOKENS])]
    assert added[0][1].tobytes() == zeros[1].tobytes()
    assert added[0][0].any()
    assert len(added) == 1


class KeepsOps(PlainBackend):
    """A backend whose plans keep ops, with default bodies that plans do not call again."""

    name = "keeps-ops"

    def record(self, step: Callable[[], Tensor], inputs: StepInputs) -> Plan:
        return super().record(step, inputs)


REFUSED: list[tuple[str, Callable[[Backend, Any], Any], str]] = [
    ("delta_net", lambda be, net: be.check_delta_net(net), "a gated delta rule"),
    ("state_space", lambda be, net: be.check_state_space(net), "a selective state space"),
    ("rows", lambda be, _: be.check_rows(), "rows from another model"),
    ("adapters", lambda be, _: be.lora_bank({"up": LinearShape(8, 8)}, StepLimits(1, 1, 1, 1)), "linears that add"),
]


@pytest.mark.parametrize(("name", "use", "needed"), REFUSED, ids=[name for name, _, _ in REFUSED])
def test_plans_that_keep_ops_need_their_own_bodies(name: str, use: Callable[[Backend, Any], Any], needed: str) -> None:
    use(PlainBackend(), None)
    with pytest.raises(UnsupportedModel, match=rf"needs {needed}.* the keeps-ops backend does not have: choose"):
        use(KeepsOps(), None)


def test_the_guide_names_what_a_backend_must_have() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    abstract = set(Backend.__abstractmethods__)
    counted = re.search(r"must have (\d+) methods", guide)
    assert counted
    assert int(counted[1]) == len(abstract)
    listed = guide.split("must have")[1].split("## ")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == abstract
