"""Every format: bytes -> values, bit for bit what the `gguf` package or a plain loop makes of them."""

import struct

import numpy as np
import pytest

from tahr.errors import QuantError
from tahr.weights import BY_GGML_ID, FORMATS, Format, HostTensor, format_named

gguf = pytest.importorskip("gguf", reason="the gguf package is the oracle of these tests")

ORACLE_HAS = [
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"),
    *("TQ1_0", "TQ2_0", "MXFP4", "NVFP4"),
]
# Where the f16 numbers of a block are, so that tests can make them sane.
HALVES = {
    **dict.fromkeys(("F16", "Q4_0", "Q5_0", "Q8_0", "IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS"), (0,)),
    **dict.fromkeys(("IQ3_S", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}


def sane(stored_as: Format, n_blocks: int, fill: int | None = None) -> np.ndarray:
    """Blocks of random codes, or of one byte, with scales like those of real weights."""
    rng = np.random.default_rng(stored_as.ggml_id)
    blocks = rng.integers(0, 256, (n_blocks, stored_as.block_bytes), dtype=np.uint8)
    if fill is not None:
        blocks[:] = fill
    for at in HALVES.get(stored_as.name, ()):
        blocks[:, at : at + 2] = rng.normal(0, 0.05, (n_blocks, 1)).astype("<f2").view(np.uint8)
    if stored_as.name == "IQ1_M":  # 0x2A66, about 0.05, a nibble on top of each scale word, the lowest first
        blocks[:, 49::2] = (blocks[:, 49::2] & 0x0F) | np.array([0x60, 0x60, 0xA0, 0x20], np.uint8)
    if stored_as.name == "MXFP4":
        blocks[:, 0] = rng.integers(110, 130, n_blocks)
    return blocks


def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == np.float32 and got.shape == want.shape
    same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
    assert same.all(), f"{np.count_nonzero(~same)} of {same.size} values differ"


def oracle(stored_as: Format, blocks: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        kind = gguf.GGMLQuantizationType(stored_as.ggml_id)
        return np.asarray(gguf.quants.dequantize(blocks, kind), dtype=np.float32)


@pytest.mark.parametrize("name", ORACLE_HAS)
def test_random_codes_with_sane_scales(name: str) -> None:
    stored_as = FORMATS[name]
    blocks = sane(stored_as, n_blocks=400)
    values = stored_as.dequantise(blocks)
    assert_same_bits(values, oracle(stored_as, blocks))
    if name not in ("F32", "BF16"):
        assert np.isfinite(values).all() and np.abs(values).max() > 0


@pytest.mark.parametrize("fill", [0x00, 0x55, 0x7F, 0x80, 0xAA, 0xFF])
@pytest.mark.parametrize("name", ORACLE_HAS)
def test_extreme_codes(name: str, fill: int) -> None:
    stored_as = FORMATS[name]
    blocks = sane(stored_as, n_blocks=8, fill=fill)
    assert_same_bits(stored_as.dequantise(blocks), oracle(stored_as, blocks))


@pytest.mark.parametrize("name", ORACLE_HAS)
def test_any_bytes_at_all(name: str) -> None:
    stored_as = FORMATS[name]
    blocks = np.random.default_rng(1).integers(0, 256, (300, stored_as.block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        assert_same_bits(stored_as.dequantise(blocks), oracle(stored_as, blocks))


@pytest.mark.parametrize("name", ["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"])
def test_whole_codebook(name: str) -> None:
    from tahr.weights.dequantise.codebooks import codewords

    kind = getattr(gguf.quants, name)
    kind.init_grid()
    assert np.array_equal(codewords(name), kind.grid.reshape(kind.grid_shape))


def test_every_scale_byte_of_the_fp4_formats() -> None:
    for name, n_scales in (("MXFP4", 1), ("NVFP4", 4)):
        stored_as = FORMATS[name]
        blocks = sane(stored_as, n_blocks=256)
        blocks[:, :n_scales] = np.arange(256, dtype=np.uint8)[:, None]
        with np.errstate(over="ignore"):
            assert_same_bits(stored_as.dequantise(blocks), oracle(stored_as, blocks))


def q1_0(block: bytes, scale: float) -> list[float]:
    return [scale if block[2 + j // 8] >> j % 8 & 1 else -scale for j in range(128)]


def q2_0(block: bytes, scale: float) -> list[float]:
    return [((block[2 + j // 4] >> 2 * (j % 4) & 3) - 1) * scale for j in range(64)]


def q8_1(block: bytes, scale: float) -> list[float]:
    return [code * scale for code in struct.unpack_from("<32b", block, 4)]


@pytest.mark.parametrize(("name", "loop"), [("Q1_0", q1_0), ("Q2_0", q2_0), ("Q8_1", q8_1)])
def test_formats_the_oracle_lacks(name: str, loop: object) -> None:
    stored_as = FORMATS[name]
    blocks = np.random.default_rng(2).integers(0, 256, (20, stored_as.block_bytes), dtype=np.uint8)
    blocks[:, :2] = np.array([0.0625], "<f2").view(np.uint8)
    want = np.array([loop(block.tobytes(), 0.0625) for block in blocks], np.float32)
    assert_same_bits(stored_as.dequantise(blocks), want)


def test_q8_k() -> None:
    codes = np.arange(-128, 128).astype(np.int8)
    block = struct.pack("<f", 0.3) + codes.tobytes() + bytes(32)
    got = FORMATS["Q8_K"].dequantise(np.frombuffer(block, np.uint8).reshape(1, -1))
    assert_same_bits(got, (np.float32(0.3) * codes.astype(np.float32)).reshape(1, -1))


NUMBERS = {"F64": "<d", "I8": "<b", "I16": "<h", "I32": "<i", "I64": "<q", "U8": "<B", "U16": "<H", "U32": "<I"}


@pytest.mark.parametrize("name", [*NUMBERS, "U64"])
def test_plain_numbers(name: str) -> None:
    numbers = [0, 1, 7, 100] + ([] if name.startswith("U") else [-1, -100])
    stored = b"".join(struct.pack(NUMBERS.get(name, "<Q"), number) for number in numbers)
    blocks = np.frombuffer(stored, np.uint8).reshape(len(numbers), -1)
    assert FORMATS[name].block_bytes == blocks.shape[1]
    assert FORMATS[name].dequantise(blocks).ravel().tolist() == numbers


def eight_bit_float(byte: int, n_exponent: int, n_mantissa: int) -> float:
    bias = (1 << n_exponent - 1) - 1
    exponent, mantissa = byte >> n_mantissa & (1 << n_exponent) - 1, byte & (1 << n_mantissa) - 1
    size = mantissa * 2.0 ** (1 - bias - n_mantissa)
    if exponent:
        size = (1 + mantissa / (1 << n_mantissa)) * 2.0 ** (exponent - bias)
    return -size if byte >> 7 else size


def test_eight_bit_floats() -> None:
    every = np.arange(256, dtype=np.uint8).reshape(-1, 1)
    e4m3, e5m2 = (FORMATS[name].dequantise(every).ravel() for name in ("F8_E4M3", "F8_E5M2"))
    assert [byte for byte in range(256) if np.isnan(e4m3[byte])] == [0x7F, 0xFF]
    for byte in set(range(256)) - {0x7F, 0xFF}:
        assert e4m3[byte] == eight_bit_float(byte, 4, 3)
    for byte in range(256):
        if byte >> 2 & 0x1F < 0x1F:
            assert e5m2[byte] == eight_bit_float(byte, 5, 2)
    assert np.isposinf(e5m2[0x7C]) and np.isneginf(e5m2[0xFC]) and np.isnan(e5m2[0x7D:0x80]).all()


def test_eight_bit_exponents() -> None:
    values = FORMATS["F8_E8M0"].dequantise(np.array([[0], [1], [127], [254], [255]], np.uint8)).ravel()
    assert values[:4].tolist() == [2.0**-127, 2.0**-126, 1.0, 2.0**127] and np.isnan(values[4])


def test_table_agrees_with_the_oracle_on_sizes() -> None:
    for kind, (block, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        stored_as = BY_GGML_ID[int(kind)]
        assert stored_as.name == kind.name
        # The package still counts Q8_1's two numbers as f32; ggml has since made them f16.
        if kind.name != "Q8_1":
            assert (stored_as.block, stored_as.block_bytes) == (block, block_bytes)


def test_unknown_name_lists_the_known() -> None:
    assert format_named("q4_k") is FORMATS["Q4_K"]
    with pytest.raises(QuantError, match=r"no weight format 'Q9_Z'.*Q4_K.*MXFP4"):
        format_named("Q9_Z")


def test_dense_works_in_chunks_and_keeps_the_shape() -> None:
    stored_as = FORMATS["Q4_K"]
    blocks = sane(stored_as, n_blocks=1500)  # more than one chunk
    tensor = HostTensor("w", stored_as, (3, 500, 256), blocks.reshape(-1))
    assert_same_bits(tensor.dense(), oracle(stored_as, blocks).reshape(3, 500, 256))
    assert (tensor.n_values, tensor.n_bytes) == (384000, 1500 * 144)


def test_dense_of_scales_that_overflow_does_not_warn(recwarn: pytest.WarningsRecorder) -> None:
    blocks = np.full((4, 84), 0xFF, np.uint8)
    assert np.isnan(HostTensor("w", FORMATS["Q2_K"], (4, 256), blocks.reshape(-1)).dense()).all()
    assert not recwarn.list
