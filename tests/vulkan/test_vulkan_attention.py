"""Attention of many tokens in tiles, beside the reference; other attention is in the cases of all backends."""

from dataclasses import dataclass

import numpy as np
import pytest

import backends_here
from op_steps import full_store, rows, step_of
from tahr.backends.api import AttentionSpec, Backend, KVShape, LayerMemory
from tahr.backends.reference.backend import ReferenceBackend

pytestmark = pytest.mark.skipif("vulkan" not in backends_here.NAMES, reason="there is no Vulkan device here")

if "vulkan" in backends_here.NAMES:
    from tahr.backends.vulkan.backend import VulkanBackend

SPANS = [(0, 77), (40, 128), (127, 128)]  # a prompt, one behind a cached prefix, a decoded token
TOLERANCE = 2e-3  # of the largest number: queries and weights are rounded to f16


@dataclass(frozen=True)
class Case:
    dim: int = 16
    dtype: str = "f16"
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False
    slopes: bool = False
    causal: bool = True
    chunked: bool = False


CASES = [
    Case(),
    Case(dim=32, window=20),
    Case(softcap=3.0, sinks=True),
    Case(slopes=True, causal=False),
    Case(window=16, chunked=True),
]


@pytest.fixture(scope="module")
def be() -> "VulkanBackend":
    backend = VulkanBackend()
    if not backend._known_tiles():
        pytest.skip("this device has no units for matrices")
    return backend


@pytest.mark.parametrize("case", CASES)
def test_tiles_of_tokens(case: Case, be: "VulkanBackend") -> None:
    def run(backend: Backend) -> np.ndarray:
        rng = np.random.default_rng(7)
        kv = full_store(backend, rng, KVShape(2, case.dim), len(SPANS), case.dtype)
        step = step_of(backend, SPANS, [0], 10)
        q = backend.tensor(rows(rng, step.n_tokens, 4 * case.dim))
        per_head = [backend.vector(rows(rng, 1, 4)[0]) if given else None for given in (case.sinks, case.slopes)]
        scale = case.dim**-0.5
        spec = AttentionSpec(scale, case.window, case.softcap, case.causal, *per_head, chunked=case.chunked)
        return np.array(backend.read(backend.attention(q, spec, LayerMemory(step, kv, 0))))

    used: list[str] = []
    get = be._kernels.get
    be._kernels.get = lambda name, *rest: used.append(name) or get(name, *rest)  # type: ignore[method-assign, func-returns-value]
    try:
        found = run(be)
    finally:
        be._kernels.get = get  # type: ignore[method-assign]
    assert any(name.startswith(f"attend_tile_{case.dtype}_") for name in used)
    wanted = run(ReferenceBackend())
    assert np.abs(found - wanted).max() <= TOLERANCE * np.abs(wanted).max()


def test_steps_of_few_tokens_and_exact_keys_are_attended_to_one_by_one(be: "VulkanBackend") -> None:
    from tahr.backends.api import StepLimits
    from tahr.backends.vulkan.attention import FEW_TOKENS
    from tahr.backends.vulkan.kv import make_layer

    limits = StepLimits(FEW_TOKENS + 1, 2, 2, 16)
    for dim, dtype, is_tiled in ((64, "f16", True), (64, "f32", False), (36, "f16", False), (256, "bf16", False)):
        layer = make_layer(KVShape(1, dim), 1, 8, dtype, be._memory)
        assert bool(be._tile_height(layer, limits)) == is_tiled
        assert not be._tile_height(layer, StepLimits(FEW_TOKENS, 2, 2, 16))
