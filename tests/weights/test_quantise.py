"""Quantisers: their bits and errors; recipes: which tensor gets which format; quantising at load."""

import json
from pathlib import Path

import numpy as np
import pytest

import backends_here
from assets import greedy_story
from model_cases import CASES, make_weights, token_ids
from model_files import to_gguf, write_hf
from model_runs import Runs
from tahr import hub
from tahr.backends.reference.backend import ReferenceBackend
from tahr.cli.main import main
from tahr.errors import QuantError
from tahr.models.loader import Loaded, load, open_model
from tahr.tools.full_logits import all_logits
from tahr.tools.gguf_export import export, target
from tahr.weights import FORMATS, HostTensor
from tahr.weights.dequantise.bits import unpack
from tahr.weights.gguf_write import Part
from tahr.weights.quantise import quantiser as table
from tahr.weights.quantise.bits import pack
from tahr.weights.quantise.quantiser import QUANTISERS, pieces, quantise, quantised
from tahr.weights.quantise.recipes import MIXES, fitting, mix_named, recipe_for

gguf = pytest.importorskip("gguf", reason="the gguf package is the oracle of these tests")

FIXTURES = Path(__file__).parents[1] / "fixtures" / "models"
ORACLE_HAS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"]
# Root mean square of the error over that of normally distributed values; llama.cpp's quantisers stay below these too.
WORST = {
    "F32": 0.0, "F16": 3e-4, "BF16": 2e-3, "Q8_0": 0.006, "Q6_K": 0.0185, "Q5_K": 0.0375, "Q5_1": 0.0385,
    "Q5_0": 0.0435, "Q4_K": 0.073, "Q4_1": 0.079, "Q4_0": 0.087, "IQ4_NL": 0.077, "IQ4_XS": 0.078, "MXFP4": 0.116,
    "Q3_K": 0.156, "Q2_K": 0.30,
}  # fmt: skip


def normal(n_rows: int = 64, n_cols: int = 512, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((n_rows, n_cols)) * 0.02).astype(np.float32)


def tensor(values: np.ndarray, name: str = "w") -> HostTensor:
    stored = np.ascontiguousarray(values, np.float32)
    return HostTensor(name, FORMATS["F32"], stored.shape, stored.reshape(-1).view(np.uint8))


def round_trip(values: np.ndarray, name: str) -> np.ndarray:
    form = FORMATS[name]
    return form.dequantise(quantise(values, form)).reshape(values.shape)


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.sqrt(((got - want) ** 2).mean() / (want**2).mean()))


# ---- quantisers ---------------------------------------------------------------------------------------------


def awkward() -> np.ndarray:
    """Rows that are all zero, all equal, of one sign, or ruled by one large value."""
    values = normal(12)
    values[0], values[1, :40], values[2], values[3] = 0, 0, 0.5, -0.5
    values[4], values[5] = np.abs(values[4]), -np.abs(values[5])
    values[6, 7], values[7, 300] = 30, -30
    values[8] *= 1e-2
    return values


@pytest.mark.parametrize("name", ORACLE_HAS)
def test_the_same_bits_as_the_oracle(name: str) -> None:
    values = np.concatenate([normal(), awkward()])
    want = gguf.quants.quantize(values, gguf.GGMLQuantizationType(FORMATS[name].ggml_id))
    assert np.array_equal(
        quantise(values, FORMATS[name]).reshape(-1), np.ascontiguousarray(want).view(np.uint8).reshape(-1)
    )


@pytest.mark.parametrize("name", QUANTISERS)
def test_errors_stay_within_their_bounds(name: str) -> None:
    values = normal()
    assert relative_error(round_trip(values, name), values) <= WORST[name]


@pytest.mark.parametrize("name", QUANTISERS)
def test_awkward_groups(name: str) -> None:
    values = awkward()
    got = round_trip(values, name)
    assert np.isfinite(got).all()
    assert not got[0].any()
    largest = np.abs(values).max(axis=1)
    # A scale may not reach further than half a step of the coarsest format past the largest value of a row.
    assert (np.abs(got - values).max(axis=1) <= largest / 2).all()
    if name not in ("MXFP4", "Q3_K", "Q2_K"):
        assert relative_error(got[2:4], values[2:4]) < 0.05


@pytest.mark.parametrize("exponent", [-44, -39, -30, -23, -20, -16, -10])
@pytest.mark.parametrize("name", QUANTISERS)
def test_values_too_small_for_a_scale_are_zeros(name: str, exponent: int) -> None:
    """Rows that training never touched decay to next to nothing: nothing about them is too large."""
    values = normal(4)
    values[0] = (values[0].astype(np.float64) * 10.0**exponent).astype(np.float32)
    values[1, :64] = values[0, :64]
    got = round_trip(values, name)
    assert np.abs(got[0]).max() < 1e-6
    assert relative_error(got[1:], values[1:]) <= 1.05 * WORST[name]


def test_a_try_at_the_scale_is_never_worse_than_none() -> None:
    """The search beats taking the largest value for the end of the range, which Q4_0 does."""
    values = normal()
    assert relative_error(round_trip(values, "IQ4_NL"), values) < relative_error(round_trip(values, "Q4_0"), values)
    assert relative_error(round_trip(values, "Q4_K"), values) < relative_error(round_trip(values, "Q4_1"), values)


@pytest.mark.parametrize(
    ("width", "group"), [(1, 1), (1, 32), (2, 1), (2, 4), (2, 32), (4, 1), (4, 8), (4, 16), (4, 64)]
)
def test_packing_is_the_way_back_of_unpacking(width: int, group: int) -> None:
    codes = np.random.default_rng(0).integers(0, 1 << width, (5, 8 // width * group * 2), dtype=np.uint8)
    assert np.array_equal(unpack(pack(codes, width, group), width, group), codes)


@pytest.mark.parametrize("source", ["F32", "Q8_0"])
def test_pieces_are_the_whole(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start = quantised(tensor(normal(33)), FORMATS[source])
    whole = quantise(start.dense(), FORMATS["Q4_K"]).reshape(-1)
    monkeypatch.setattr(table, "PIECE", 1024)
    got = list(pieces(start, FORMATS["Q4_K"]))
    assert len(got) == 17 and np.array_equal(np.concatenate(got), whole)
    assert quantised(start, FORMATS[source]) is start


@pytest.mark.parametrize(
    ("values", "target", "said"),
    [
        (np.full((2, 64), np.nan), "Q8_0", "infinities or NaNs"),
        (np.full((2, 64), np.inf), "F32", "infinities or NaNs"),
        (np.full((2, 64), 1e6), "F16", "too large for F16"),
        (np.full((2, 64), -3.4e38), "BF16", "too large for BF16. Choose another format, such as F32"),
        (np.full((2, 64), 1e9), "Q4_0", "too large for Q4_0"),
        (np.ones((2, 48)), "Q4_0", "rows of 48 values"),
        (np.ones((2, 256)), "IQ2_XS", "cannot write IQ2_XS"),
    ],
)
def test_what_cannot_be_stored_is_refused(values: np.ndarray, target: str, said: str) -> None:
    with np.errstate(over="ignore"):
        start = HostTensor(
            "blk.0.w", FORMATS["F32"], values.shape, values.astype(np.float32).reshape(-1).view(np.uint8)
        )
    if target == "F32":
        start = quantised(tensor(np.ones((2, 64))), FORMATS["F16"])
        start.data.view(np.float16)[:] = np.inf
    with pytest.raises(QuantError, match=said):
        quantised(start, FORMATS[target])


# ---- recipes ------------------------------------------------------------------------------------------------


def shapes(n_layers: int, tied: bool = True, width: int = 1024) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (1000, width), "output_norm.weight": (width,)}
    for i in range(n_layers):
        at = f"blk.{i}."
        found |= {at + "attn_q.weight": (2048, width), at + "attn_k.weight": (1024, width)}
        found |= {at + "attn_v.weight": (1024, width), at + "attn_output.weight": (width, 2048)}
        found |= {at + "ffn_down.weight": (width, 3072), at + "attn_norm.weight": (width,), at + "attn_q.bias": (2048,)}
    return found | ({} if tied else {"output.weight": (1000, width)})


def formats(mix: str, of: dict[str, tuple[int, ...]]) -> dict[str, str]:
    recipe = recipe_for(mix_named(mix)[1], of)
    return {name: form.name for name, shape in of.items() if (form := recipe.format_for(name, shape))}


def test_q4_k_m_spends_bits_where_they_matter() -> None:
    got = formats("Q4_K_M", shapes(28))
    weighty = [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]
    for part in ("attn_v", "ffn_down"):
        assert [i for i in range(28) if got[f"blk.{i}.{part}.weight"] == "Q6_K"] == weighty
    assert got["blk.3.attn_q.weight"] == got["blk.3.attn_v.weight"] == "Q4_K"
    assert got["token_embd.weight"] == "Q6_K"
    assert not {"output_norm.weight", "blk.0.attn_norm.weight", "blk.0.attn_q.bias"} & got.keys()


def test_what_llama_cpp_computes_with_in_f32_alone_stays() -> None:
    """It leaves these as they are, and ends at an assertion where they are anything but f32."""
    kept = {
        "blk.0.ssm_conv1d.weight": (128, 4),
        "blk.0.shortconv.conv.weight": (128, 3),
        "token_types.weight": (2, 384),
        "position_embd.weight": (512, 384),
        "blk.0.ffn_gate_inp.weight": (8, 384),
        "blk.0.ffn_gate_inp_shexp.weight": (1, 384),
    }
    for mix in ("Q8_0", "Q4_K_M", "F16"):
        assert formats(mix, {**kept, "blk.0.attn_q.weight": (384, 384)}).keys() == {"blk.0.attn_q.weight"}
    parts = [Part(name, FORMATS["BF16"], shape, lambda: tensor(np.zeros(1))) for name, shape in kept.items()]
    assert {target(part, None).name for part in parts} == {"F32"}


def test_an_untied_head_keeps_its_bits() -> None:
    got = formats("q4_0", shapes(2, tied=False))
    assert (got["output.weight"], got["token_embd.weight"]) == ("Q6_K", "Q4_0")


def test_mixes_differ_by_place() -> None:
    got = formats("Q3_K_M", shapes(32))
    assert [got[f"blk.{i}.attn_v.weight"] for i in (0, 1, 2)] == ["Q5_K", "Q5_K", "Q4_K"]
    assert [got[f"blk.{i}.ffn_down.weight"] for i in (0, 1, 2, 31)] == ["Q5_K", "Q5_K", "Q4_K", "Q4_K"]
    assert formats("Q2_K", shapes(4))["blk.3.attn_v.weight"] == "Q3_K"


def test_rows_that_fit_no_block_get_the_nearest_format() -> None:
    assert [fitting("Q4_K", n).name for n in (512, 544, 100)] == ["Q4_K", "Q5_0", "F16"]
    assert [fitting(name, 96).name for name in ("Q6_K", "Q5_K", "IQ4_XS", "Q3_K")] == [
        "Q8_0",
        "Q5_1",
        "IQ4_NL",
        "IQ4_NL",
    ]


def test_names_of_mixes() -> None:
    assert [mix_named(name)[0] for name in ("int8", "INT4", "q4_k", "iq4_xs")] == ["Q8_0", "Q4_0", "Q4_K_M", "IQ4_XS"]
    assert all(mix.format in QUANTISERS and mix.head in QUANTISERS for mix in MIXES.values())
    with pytest.raises(QuantError, match=r"cannot quantise to 'q9_z'.*Q4_K_M"):
        mix_named("q9_z")


# ---- at load ------------------------------------------------------------------------------------------------


def logits(loaded: Loaded, backend: ReferenceBackend) -> np.ndarray:
    return Runs(loaded, backend).eager([(0, token_ids())])


def surprise(loaded: Loaded, backend: ReferenceBackend, ids: list[int]) -> float:
    """Mean negative log-probability of a text."""
    rows = all_logits(backend, loaded.decoder, ids)[:-1].astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    likely = rows[np.arange(len(rows)), ids[1:]] - np.log(np.exp(rows).sum(axis=1))
    return float(-likely.mean())


@pytest.mark.parametrize(("name", "most", "smaller"), [("int8", 0.01, 0.4), ("int4", 0.2, 0.4), ("q5_k", 0.1, 0.4)])
@pytest.mark.parametrize("backend_name", backends_here.NAMES)
def test_a_story_hardly_changes(stories: Path, name: str, most: float, smaller: float, backend_name: str) -> None:
    ids = json.loads(greedy_story().read_text())[:120]
    backend = backends_here.backend(backend_name)
    source = open_model([], stories.parent / "hf")
    plain, small = load(source, backend), load(source, backend, quantize=name)
    assert surprise(small, backend, ids) - surprise(plain, backend, ids) <= most  # type: ignore[arg-type]
    if backend_name == "cpu":
        assert small.n_weight_bytes < smaller * plain.n_weight_bytes


def test_a_matrix_in_eight_and_four_bits_multiplies_nearly_the_same() -> None:
    x, w = normal(8, 256, seed=1), normal(64, 256, seed=2)
    want = x @ w.T
    for name, most in (("Q8_0", 0.01), ("Q4_0", 0.12)):
        small = quantised(tensor(w), FORMATS[name])
        assert relative_error(x @ small.dense().T, want) <= most
        assert small.n_bytes * 32 == w.size * FORMATS[name].block_bytes


def test_experts_and_routers_at_load(tmp_path: Path) -> None:
    source = open_model(to_gguf(CASES["qwen3_moe"], make_weights(CASES["qwen3_moe"])))
    backend = ReferenceBackend()
    small = load(source, backend, quantize="int8")
    change = np.abs(logits(small, backend) - np.load(FIXTURES / "qwen3_moe.npz")["logits"])
    assert np.median(change) < 0.05  # where a router was undecided, one token may go to another expert
    kept = [line for line in small.log if line.startswith("F32 ->")]
    assert kept == ["F32 -> numpy: 3 tensors, 0.0 MB"]  # the routers, one per layer


def test_the_gate_of_a_shared_expert_is_a_router_too(tmp_path: Path) -> None:
    """A checkpoint that is quantised at load is the model of its quantised GGUF, which has the gate as a vector."""
    config = CASES["qwen2_moe"]
    arrays, backend = make_weights(config), ReferenceBackend()
    (tmp_path / "f32.gguf").write_bytes(to_gguf(config, arrays))
    export(hub.resolve(str(tmp_path / "f32.gguf")), tmp_path / "q8.gguf", "Q8_0")
    at_load = load(open_model([], write_hf(tmp_path / "hf", config, arrays)), backend, quantize="Q8_0")
    from_file = load(open_model([tmp_path / "q8.gguf"]), backend)
    assert np.abs(logits(at_load, backend) - logits(from_file, backend)).max() < 1e-5


def test_eight_bit_floats_are_refused_where_nothing_multiplies_them(stories: Path) -> None:
    with pytest.raises(QuantError, match="reference backend has no products of fp8"):
        load(open_model([stories]), ReferenceBackend(), quantize="fp8")


def test_a_quantised_file_is_not_quantised_again(stories: Path, tmp_path: Path) -> None:
    assert main(["quantize", str(stories), str(tmp_path / "q8.gguf"), "Q8_0"]) == 0
    with pytest.raises(QuantError, match="Q8_0 already"):
        load(open_model([tmp_path / "q8.gguf"]), ReferenceBackend(), quantize="int4")
