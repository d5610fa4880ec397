"""GPTQ, AWQ, compressed-tensors and fp8 checkpoints: what their matrices stand for, and what is refused."""

import json
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backends_here
from gguf_maker import safetensors
from model_cases import CASES as ALL_FAMILIES
from model_cases import LLAMA, make_weights
from model_runs import Runs
from quantised_files import CASES, Case, Packed, Stored, joined, stored, tensor
from tahr.backends.reference.backend import ReferenceBackend
from tahr.errors import CorruptFile, QuantError
from tahr.models.files.schemes import join_parts, scheme_of
from tahr.models.loader.convert import convert
from tahr.models.loader.load import load, open_model
from tahr.models.loader.registry import from_hf
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.makers import Make
from tahr.models.parts.weights import Weights, check_format
from tahr.weights.tensor import HostTensor

SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
CONFIG = {**LLAMA, **SIZES}
# Families whose checkpoints have a tensor per expert, or queries, keys and values in one.
OTHERS = [("gptq zero points", "qwen3_moe"), ("fp8", "qwen3_moe"), ("gptq", "phi3"), ("fp8 blocks", "phi3")]
MODELS = ["gptq", "gptq act-order", "gptq 8 bits", "awq", "compressed 4 bits", "compressed bytes", "fp8", "fp8 blocks"]
TOKENS = [1, 5, 9, 2, 40]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("shape", [(24, 256), (136, 384)])
def test_values(case: Case, shape: tuple[int, int]) -> None:
    packed = case.pack(shape, np.random.default_rng(1))
    found = joined(packed.parts, case.config)
    assert found.format.name == case.format
    # The offset of Q4_1 and dense values are rounded to f16.
    exact = case.format in ("Q4_0", "Q8_0", "FP8_128")
    tolerance = 1e-6 if exact else 5e-4
    assert np.abs(found.dense() - packed.values).max() <= tolerance * np.abs(packed.values).max()


def test_floats_of_odd_widths_become_dense() -> None:
    packed = CASES["fp8 blocks"].pack((24, 200), np.random.default_rng(1))
    found = joined(packed.parts, CASES["fp8 blocks"].config)
    assert found.format.name == "F16"
    assert np.allclose(found.dense(), packed.values, rtol=1e-3, atol=1e-7)


def write(directory: Path, case: Case, dense: bool = False, plain: dict[str, Any] = CONFIG) -> Path:
    """A model whose linears are quantised, or the values that they stand for."""
    rng, tensors = np.random.default_rng(7), dict[str, tuple[str, Any, bytes]]()
    for name, values in make_weights(plain).items():
        if "_proj.weight" not in name:
            tensors[name] = ("F32", values.shape, values.astype("<f4").tobytes())
            continue
        packed = case.pack(values.shape, rng)
        stem = name.removesuffix("weight")
        parts = stored(weight=packed.values) if dense else packed.parts
        tensors |= {f"{stem}{kind}": part for kind, part in parts.items()}
        if not dense:
            tensors[f"{stem}input_scale"] = ("F32", (1,), np.ones(1, "<f4").tobytes())  # of activations: not needed
    directory.mkdir()
    config = plain if dense else {**plain, "quantization_config": case.config}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").write_bytes(safetensors(tensors))
    return directory


@pytest.mark.parametrize("name", backends_here.NAMES)
@pytest.mark.parametrize(("case", "family"), [*((case, "llama") for case in MODELS), *OTHERS])
def test_models_compute_what_their_values_say(case: str, family: str, name: str, tmp_path: Path) -> None:
    backend, plain = backends_here.backend(name), {**ALL_FAMILIES[family], **SIZES}
    logits = []
    for dense in (False, True):
        loaded = load(open_model([], write(tmp_path / str(dense), CASES[case], dense, plain)), backend)
        assert not [line for line in loaded.log if "unused" in line]
        is_said = any("stored dense" in line for line in loaded.log)
        narrow = (case, family) == ("fp8", "qwen3_moe")  # its experts have 32 columns
        assert is_said == (not dense and (narrow or CASES[case].format == "F16"))
        logits.append(Runs(loaded, backend).eager([(0, TOKENS)]))
    # Rows that meet integers are rounded to int8 on reference and cpu.
    assert np.linalg.norm(logits[0] - logits[1]) <= 2e-2 * np.linalg.norm(logits[1])


def without(kind: str) -> Callable[[Stored], Stored]:
    return lambda parts: {k: v for k, v in parts.items() if k != kind}


def with_part(kind: str, array: np.ndarray) -> Callable[[Stored], Stored]:
    return lambda parts: parts | stored(**{kind: array})


HOSTILE: dict[str, tuple[str, Callable[[Stored], Stored], str]] = {
    "no scales": ("gptq", without("scales"), "its scales is missing"),
    "no zeros": ("gptq", without("qzeros"), "its qzeros is missing"),
    "no codes": ("gptq", without("qweight"), "no parts of a matrix"),
    "too few scales": ("gptq", with_part("scales", np.ones((1, 24), np.float16)), "not in 1 groups"),
    "scales of other rows": ("gptq", with_part("scales", np.ones((2, 16), np.float16)), "do not fit 24 rows"),
    "scales of no groups": ("gptq", with_part("scales", np.ones((0, 24), np.float16)), "holds no scales"),
    "scales that are no numbers": ("gptq", with_part("scales", np.full((2, 24), np.nan, np.float16)), "no numbers"),
    "scales too large": ("compressed 4 bits", with_part("weight_scale", np.full((24, 2), 1e9, np.float32)), "an f16"),
    "zeros of other groups": ("gptq", with_part("qzeros", np.zeros((3, 3), np.int32)), "does not fit the other parts"),
    "codes of another type": ("gptq", with_part("qweight", np.zeros((32, 24), np.int64)), "not as 32-bit integers"),
    "flat codes": ("gptq", with_part("qweight", np.zeros(32 * 24, np.int32)), "does not fit the other parts"),
    "group out of range": ("gptq act-order", with_part("g_idx", np.full(256, 8, np.int32)), "beyond the 8 there are"),
    "negative group": ("gptq act-order", with_part("g_idx", np.full(256, -1, np.int32)), "beyond the 8 there are"),
    "too few groups": ("gptq act-order", with_part("g_idx", np.zeros(9, np.int32)), "does not fit the other parts"),
    "awq scales": ("awq", with_part("scales", np.ones((2, 25), np.float16)), "do not fit 24 rows"),
    "awq zeros": ("awq", with_part("qzeros", np.zeros((2, 4), np.int32)), "does not fit the other parts"),
    "awq odd columns": ("awq of whole rows", with_part("qweight", np.zeros((255, 3), np.int32)), "an even number"),
    "sizes beyond": ("compressed 4 bits", with_part("weight_shape", np.array([1 << 40, 1 << 40])), "4 or 8 bits"),
    "no sizes": ("compressed 4 bits", with_part("weight_shape", np.array([0, 0])), "4 or 8 bits"),
    "odd groups": ("compressed 4 bits", with_part("weight_scale", np.ones((24, 3), np.float16)), "not in 3 groups"),
    "byte zeros": ("compressed bytes", with_part("weight_zero_point", np.zeros(3, np.int8)), "for every scale"),
    "no float scales": ("fp8 blocks", without("weight_scale_inv"), "stored as F8_E4M3"),
    "float scales": ("fp8 blocks", with_part("weight_scale_inv", np.ones((9, 9), np.float32)), "128 x 128"),
    "no number": ("fp8", with_part("weight_scale", np.array([np.inf], np.float32)), "scales that are no numbers"),
}  # fmt: skip


@pytest.mark.parametrize(("case", "change", "message"), HOSTILE.values(), ids=HOSTILE)
def test_damaged_parts_are_refused(case: str, change: Callable[[Stored], Stored], message: str) -> None:
    packed: Packed = CASES[case].pack((24, 256), np.random.default_rng(1))
    with pytest.raises((CorruptFile, QuantError), match=message):
        check_format(joined(change(packed.parts), CASES[case].config))


def test_scales_of_huge_blocks_take_no_more_memory_than_the_matrix() -> None:
    """One row in blocks of a million: the scales are of the one row that there is."""
    n_cols = 4096
    parts = stored(weight_scale_inv=np.ones((1, n_cols), np.float32))
    parts["weight"] = ("F8_E4M3", (1, n_cols), bytes(n_cols))
    config = {"quant_method": "fp8", "weight_block_size": [1 << 20, 1]}
    tracemalloc.start()
    try:
        assert joined(parts, config).shape == (1, n_cols)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


REFUSED = {
    "bitsandbytes": ({"quant_method": "bitsandbytes"}, "bitsandbytes.*gptq, awq"),
    "no name": ({"quant_method": ["gptq"]}, "does not load"),
    "3 bits": ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "gptq to 3 bits"),
    "marlin": ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "layout 'marlin'"),
    "gemv": ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "layout 'gemv'"),
    "nvfp4": ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "nvfp4"),
    "sparse": (
        {"quant_method": "compressed-tensors", "format": "float-quantized", "sparsity_config": {"format": "sparse-24"}},
        "sparse-24",
    ),
    "rotated": (
        {"quant_method": "compressed-tensors", "format": "pack-quantized", "transform_config": {"R1": {}}}, "rotations",
    ),
    "group size": ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group size 0"),
    "block size": ({"quant_method": "fp8", "weight_block_size": [128, 0]}, "block size"),
}  # fmt: skip


@pytest.mark.parametrize(("config", "message"), REFUSED.values(), ids=REFUSED)
def test_schemes_without_a_reader_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises((QuantError, CorruptFile), match=message):
        scheme_of(config)


def test_quantised_checkpoints_are_not_converted(tmp_path: Path) -> None:
    with pytest.raises(QuantError, match="float checkpoints only"):
        convert(open_model([], write(tmp_path / "m", CASES["gptq"])))


def test_a_matrix_nobody_asks_for_is_named_and_not_read() -> None:
    packed = CASES["gptq"].pack((24, 256), np.random.default_rng(1))
    parts = without("scales")(packed.parts)
    tensors = Tensors({f"tower.{kind}": tensor(f"tower.{kind}", *part) for kind, part in parts.items()})
    join_parts(tensors, scheme_of(CASES["gptq"].config))
    assert Weights(from_hf(LLAMA), tensors, ReferenceBackend()).unused() == ["tower.weight"]


def test_a_matrix_that_is_cut_is_joined_once() -> None:
    n_made = 0

    def make(parts: Mapping[str, Make]) -> HostTensor:
        nonlocal n_made
        n_made += 1
        return next(iter(parts.values()))()

    values = np.arange(12 * 4, dtype=np.float32).reshape(12, 4)
    tensors = Tensors({"codes": tensor("codes", "F32", values.shape, values.tobytes())})
    tensors.replace(["codes"], "model.layers.0.qkv.weight", make)
    tensors.split("qkv", {"q": 4, "k": 4, "v": 4})
    for name, rows in (("q", values[:4]), ("k", values[4:8]), ("v", values[8:])):
        np.testing.assert_array_equal(tensors[f"model.layers.0.{name}.weight"].dense(), rows)
    assert n_made == 1
