"""Packed matrices on a GPU: every format that is multiplied from its codes, in batches of every size; 8-bit floats."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import backends_here
import model_cases
from model_files import write_hf
from op_steps import step_of
from quantised_files import CASES, joined
from random_weights import random_tensor
from tahr.backends.api import Backend, Linear, Tensor
from tahr.backends.cuda.layouts import presence as cuda_presence
from tahr.errors import QuantError
from tahr.models.loader import load, open_model

needs_cuda = pytest.mark.skipif("cuda" not in backends_here.NAMES, reason="no GPU, or torch and Triton are missing")
HALF = "F16" if cuda_presence.interprets() else "BF16"  # the interpreter does not know bf16
FORMATS = ["Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "IQ4_XS", "MXFP4"]
SIZES = [1, 5] if cuda_presence.interprets() else [1, 2, 5, 40, 200, 300]
WIDTH = 512


def unit_rows(be: Backend, n: int, rng: np.random.Generator, width: int = WIDTH) -> Tensor:
    """Rows of a model in 16 bits."""
    table = be.weight(random_tensor(HALF, (64, width), rng))
    texts = [(0, min(100, n - at)) for at in range(0, n, 100)]
    x = be.embed(table, step_of(be, texts, [0], 64), scale=10.0)
    return be.rms_norm(x, be.vector(np.ones(width, np.float32)), 1e-6)


def check(run, tolerance: float = 1e-2) -> None:  # type: ignore[no-untyped-def]
    """`run` on the GPU gives the arrays of its oracle; `tolerance` is relative to the norm of each."""
    wanted = run(backends_here.oracle("cuda"), np.random.default_rng(3))
    for deterministic in (False,) if cuda_presence.interprets() else (False, True):
        got = run(backends_here.backend("cuda", deterministic), np.random.default_rng(3))
        for want, have in zip(wanted, got, strict=True):
            assert want.shape == have.shape
            assert np.linalg.norm(have - want) <= tolerance * np.linalg.norm(want)


@pytest.fixture
def keep(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether packed matrices have dense copies, as far as the device has memory."""
    monkeypatch.setattr(backends_here.backend("cuda"), "free_share", 0.0 if request.param else 2.0)


@needs_cuda
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("form", "keep"), [*((form, False) for form in FORMATS), ("Q4_K", True)], indirect=["keep"])
@pytest.mark.usefixtures("keep")
def test_products_of_packed_matrices(form: str, n: int) -> None:
    def run(be: Backend, rng: np.random.Generator) -> list[np.ndarray]:
        x = unit_rows(be, n, rng)
        w, other = (be.weight(random_tensor(form, (n_rows, WIDTH), rng)) for n_rows in (48, 80))
        bias, other_bias = (be.vector(rng.standard_normal(n).astype(np.float32)) for n in (48, 80))
        joined = be.join([Linear(w, bias), Linear(other, other_bias)])
        results = [
            be.linear(x, Linear(w, bias)),
            *be.linears(x, joined),
            *(be.linear(x, part) for part in joined.parts),
        ]
        return [np.array(be.read(y)) for y in results]

    check(run)


@needs_cuda
@pytest.mark.parametrize("form", ["Q4_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4"])
def test_gated_products_of_packed_matrices(form: str) -> None:
    def run(be: Backend, rng: np.random.Generator) -> list[np.ndarray]:
        w = be.weight(random_tensor(form, (32, WIDTH), rng))
        gates = be.join([Linear(w), Linear(w)])
        results = [np.array(be.read(be.gated(unit_rows(be, n, rng), gates, "silu"))) for n in (1, 5)]
        return [np.clip(result, -65504, 65504) for result in results]  # what f16 rows hold

    check(run, 2e-2)


@needs_cuda
@pytest.mark.parametrize("form", ["Q4_K", "Q5_0", "Q6_K", "Q8_0", "IQ4_XS"])
def test_embedding_tables_may_be_packed(form: str) -> None:
    def run(be: Backend, rng: np.random.Generator) -> list[np.ndarray]:
        table = be.weight(random_tensor(form, (64, WIDTH), rng))
        rows = be.embed(table, step_of(be, [(0, 7)], [0], 64), scale=0.5)
        return [np.array(be.read(rows)), np.array(be.read(be.linear(rows, Linear(table))))]

    check(run)


@needs_cuda
@pytest.mark.parametrize("keep", [False], indirect=True)
@pytest.mark.usefixtures("keep")
def test_a_load_log_names_the_packed_kernel() -> None:
    rng = np.random.default_rng(0)
    weight = backends_here.backend("cuda").weight(random_tensor("Q4_K", (8, WIDTH), rng))
    assert weight.kernel == "packed 4-bit" and weight.n_bytes == 8 * WIDTH * 5 // 8
    exact = backends_here.backend("cuda", deterministic=True).weight(random_tensor("Q4_K", (8, WIDTH), rng))
    assert exact.kernel == "dense bf16"


@needs_cuda
@pytest.mark.parametrize("n", SIZES)
def test_products_of_a_matrix_rounded_to_8_bit_codes(n: int) -> None:
    """What the head becomes beside layers of 8-bit floats: several times as exact as these."""
    be, rng = backends_here.backend("cuda"), np.random.default_rng(5)
    x, tensor = unit_rows(be, n, rng), replace(random_tensor(HALF, (80, WIDTH), rng), stored_as="q8_0")
    weight = be.weight(tensor)
    assert weight.kernel.startswith("packed 8-bit")
    want = np.array(be.read(x)) @ tensor.dense().T
    found = np.array(be.read(be.linear(x, Linear(weight))))
    assert np.linalg.norm(found - want) <= 0.01 * np.linalg.norm(want)
    odd = be.weight(replace(random_tensor(HALF, (8, 24), rng), stored_as="q8_0"))
    assert odd.kernel.startswith("dense")  # its rows are no whole blocks


@needs_cuda
@pytest.mark.parametrize("tied", [True, False])
def test_fp8_rounds_the_head_less_than_layers(tied: bool, tmp_path: Path) -> None:
    be = backends_here.backend("cuda")
    if "fp8" not in be.rounds_to:
        pytest.skip("this device rounds nothing to 8-bit floats")
    config = {**model_cases.CASES["llama"], "tie_word_embeddings": tied}
    source = open_model([], write_hf(tmp_path, config, model_cases.make_weights(config), "BF16"))
    decoder = load(source, be, quantize="fp8").decoder
    assert decoder.head and decoder.head.weight.kernel.startswith("packed 8-bit")
    assert decoder.table.kernel.startswith("packed 8-bit" if tied else "dense bf16")


@needs_cuda
@pytest.mark.parametrize("n", SIZES)
def test_products_of_8_bit_floats(n: int) -> None:
    be, rng = backends_here.backend("cuda"), np.random.default_rng(5)
    x = unit_rows(be, n, rng)
    tensors = [replace(random_tensor(HALF, (n_rows, WIDTH), rng), stored_as="fp8") for n_rows in (48, 80)]
    weights = [be.weight(tensor) for tensor in tensors]
    assert [weight.kernel for weight in weights] == ["fp8 rows"] * 2
    joined = be.join([Linear(weight) for weight in weights])
    rows = np.array(be.read(x))
    for tensor, got in zip(tensors, be.linears(x, joined), strict=True):
        want = rows @ tensor.dense().T
        assert np.linalg.norm(np.array(be.read(got)) - want) <= 0.05 * np.linalg.norm(want)  # 3 bits of fraction
    twice = be.join([Linear(weights[0])] * 2)
    gate = rows @ tensors[0].dense().T
    gated = np.array(be.read(be.gated(x, twice, "silu")))
    want = gate / (1 + np.exp(-gate)) * gate
    assert np.linalg.norm(gated - want) <= 0.1 * np.linalg.norm(want)


@needs_cuda
@pytest.mark.skipif(cuda_presence.interprets(), reason="the interpreter rounds nothing to 8-bit floats")
@pytest.mark.parametrize("n", [3, 16, 17, 32, 33])
def test_a_few_rows_by_8_bit_floats(n: int) -> None:
    """All 8-bit floats are what they are, up to 16 rows are not rounded, and a stream may get the product in parts."""
    be, rng, width = backends_here.backend("cuda"), np.random.default_rng(6), 8 * WIDTH
    if "fp8" not in be.rounds_to:
        pytest.skip("this device rounds nothing to 8-bit floats")
    codes, signs = np.arange(127, dtype=np.int32), rng.choice([-1.0, 1.0], (WIDTH, width))
    numbers = np.where(codes < 8, codes / 8 * 2.0**-6, (1 + codes % 8 / 8) * 2.0 ** (codes // 8 - 7))
    values = (signs * rng.choice(numbers, signs.shape)).astype(np.float32)
    values[:, 0] = 448.0  # the largest there is: the scale of every row is 1
    bits = (values.view(np.uint32) >> 16).astype(np.uint16).reshape(-1).view(np.uint8)
    weight = be.weight(replace(random_tensor("BF16", values.shape, rng), data=bits, stored_as="fp8"))
    x, stream, gain = unit_rows(be, n, rng, width), unit_rows(be, n, rng), be.vector(np.ones(WIDTH, np.float32))
    want = np.array(be.read(x)).astype(np.float64) @ values.T
    total, _ = be.add_rms_norm(stream, be.linear(x, Linear(weight)), gain, 1e-6)
    bias = rng.uniform(-100, 100, WIDTH).astype(np.float32)
    for got in (
        np.array(be.read(total)) - np.array(be.read(stream)),
        np.array(be.read(be.linear(x, Linear(weight)))),
        np.array(be.read(be.linear(x, Linear(weight, be.vector(bias))))) - bias,
    ):
        assert np.linalg.norm(got - want) <= (0.005 if n <= 16 else 0.05) * np.linalg.norm(want)


@needs_cuda
def test_nan_among_8_bit_floats_is_refused() -> None:
    packed = CASES["fp8"].pack((48, WIDTH), np.random.default_rng(5))
    tensor = joined(packed.parts, CASES["fp8"].config)
    data = tensor.data.copy()
    data[-1] = 0xFF
    with pytest.raises(QuantError, match="holds NaN"):
        backends_here.backend("cuda").weight(replace(tensor, data=data))


@needs_cuda
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    ("case", "keep"), [("fp8", False), ("fp8 blocks", False), ("fp8 blocks", True)], indirect=["keep"]
)
@pytest.mark.usefixtures("keep")
def test_products_of_fp8_checkpoints(case: str, n: int) -> None:
    be, rng = backends_here.backend("cuda"), np.random.default_rng(5)
    x = unit_rows(be, n, rng)
    packed = [CASES[case].pack((n_rows, WIDTH), rng) for n_rows in (48, 80)]
    weights = [be.weight(joined(one.parts, CASES[case].config)) for one in packed]
    assert weights[0].kernel.startswith("fp8 blocks" if case == "fp8 blocks" else "fp8 rows")
    rows = np.array(be.read(x))
    results = be.linears(x, be.join([Linear(weight) for weight in weights]))
    for one, got in zip(packed, results, strict=True):
        want = rows @ one.values.T
        assert np.linalg.norm(np.array(be.read(got)) - want) <= 0.05 * np.linalg.norm(want)  # rows may be rounded too
    twice = be.join([Linear(weights[0])] * 2)
    gate = rows @ packed[0].values.T
    want = gate / (1 + np.exp(-gate)) * gate
    assert np.linalg.norm(np.array(be.read(be.gated(x, twice, "silu"))) - want) <= 0.1 * np.linalg.norm(want)


@needs_cuda
@pytest.mark.parametrize(("form", "keep"), [(form, keep) for form in [*FORMATS, HALF, "F32"] for keep in (False, True)],
                         indirect=["keep"])  # fmt: skip
@pytest.mark.usefixtures("keep")
def test_sizes_are_known_before_a_matrix_is_read(form: str) -> None:
    be, rng = backends_here.backend("cuda"), np.random.default_rng(5)
    for shape in ((48, WIDTH), (3, 48, WIDTH)):
        matrix = random_tensor(form, shape, rng)
        assert be.weight_bytes(matrix) == be.weight(matrix).n_bytes
