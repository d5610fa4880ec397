"""The attention kernels of CUDA beside their oracle: decode, prefill, wide heads, keys and values in 8-bit floats."""

from functools import partial

import numpy as np
import pytest

import backends_here
from backends_here import kv_store
from op_steps import PAGE, full_store, rows, step_of
from random_weights import random_tensor
from tahr.backends.api import (
    AttentionSpec,
    Backend,
    HeadNorms,
    KVShape,
    LayerMemory,
    Linear,
    Rope,
    RopeStyle,
    Rotation,
    Rows,
    StepLimits,
    Tensor,
)
from tahr.backends.cuda.layouts import presence as cuda_presence
from tahr.backends.reference.backend import ReferenceBackend
from tahr.weights.formats import FORMATS
from test_cuda import EIGHT_BITS, HALVES, LOOSE, check, half_rows, needs_cuda

DECODES = [
    ([(9, 10), (100, 101), (0, 1)], 32, (4, 2), 0, 0.0),
    ([(127, 128)], 24, (9, 3), 0, 0.0),
    ([(90, 91), (5, 6)], 64, (8, 1), 40, 0.0),
    ([(70, 71)] * 3, 16, (2, 2), 0, 3.0),
]


@pytest.fixture(params=[(1, 1), (32, 1), (4, 2)], ids=["one split", "many splits", "splits of two tiles and more"])
def splits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How the keys of a sequence are shared out, in small tiles."""
    if "cuda" not in backends_here.NAMES:
        return
    from tahr.backends.cuda.kernels import attention

    monkeypatch.setattr(attention, "SPLITS", {1 << 31: attention.Splits(*request.param, keys=16)})


@needs_cuda
@pytest.mark.usefixtures("splits")
@pytest.mark.parametrize("kv_dtype", ["f32", *(form.lower() for form in HALVES)])
@pytest.mark.parametrize("spans, dim, heads, window, softcap", DECODES)
def test_decode_attention(kv_dtype, spans, dim, heads, window, softcap) -> None:  # type: ignore[no-untyped-def]
    """The kernel of decoding steps, for rows in f32 and in bf16."""

    def run(be: Backend, rng: np.random.Generator, exact_only: bool = False) -> list[np.ndarray]:
        stored = kv_dtype if kv_dtype in be.kv_dtypes else "f32"
        kv = full_store(be, rng, KVShape(heads[1], dim), len(spans), stored)
        step = step_of(be, spans, [0], 64)
        step = step.within(StepLimits(len(spans), len(spans), len(spans), 16, n_tokens_per_seq=1))
        half = half_rows(be, "BF16", len(spans), heads[0] * dim, rng)
        exact = be.tensor(rows(rng, len(spans), heads[0] * dim))
        queries = [exact] if exact_only else [exact, half]
        spec, memory = AttentionSpec(dim**-0.5, window, softcap), LayerMemory(step, kv, 0)
        return [np.array(be.read(be.attention(q, spec, memory))) for q in queries]

    check(run)
    if kv_dtype in ReferenceBackend.kv_dtypes:
        check(partial(run, exact_only=True), tolerance=5e-6)


@needs_cuda
@pytest.mark.parametrize("dim", [64, 72, 80])
def test_attention_in_steps_of_whole_inputs(dim: int) -> None:
    """All tokens of an input see each other; on a card it is the library's kernel."""
    spans = [(0, 37), (0, 5), (0, 100)]

    def run(be: Backend, rng: np.random.Generator) -> list[np.ndarray]:
        kv = kv_store(be, [KVShape(4, dim)], [16 * len(spans)], PAGE, "f16")
        step = step_of(be, spans, [0], 64)
        rotation = Rotation(be.cos_sin(step, Rope(np.full(8, 0.1, np.float32))), "halves")
        qkv = [short_rows(be, rows(rng, 142, 4 * dim)) for _ in range(3)]
        spec = AttentionSpec(dim**-0.5, causal=False, whole=True)
        return [np.array(be.read(be.rope_attention(qkv, rotation, spec, LayerMemory(step, kv, 0))))]

    check(run)


def short_rows(be: Backend, values: np.ndarray) -> Tensor:
    """Rows in f16, as products in f16 give them."""
    rounded = values.astype(np.float16).astype(np.float32)
    if be.name != "cuda":
        return be.tensor(rounded)
    import torch

    from tahr.backends.cuda.ops.device_rows import made

    return made(torch.tensor(rounded, dtype=torch.float16, device=be.device), Rows.TOKENS, torch.float16)


@needs_cuda
@pytest.mark.usefixtures("splits")
@pytest.mark.parametrize("dim", [64, 96, 128])
def test_decode_attention_of_codes(dim: int) -> None:
    """A head of codes and scales begins at a multiple of 2 to 8 bytes, whatever is fetched at once."""
    spans = [(127, 128), (90, 91)]

    def run(be: Backend, rng: np.random.Generator) -> list[np.ndarray]:
        kv = full_store(be, rng, KVShape(2, dim), len(spans), "q8_0")
        step = step_of(be, spans, [0], 64)
        step = step.within(StepLimits(len(spans), len(spans), len(spans), 16, n_tokens_per_seq=1))
        q = be.tensor(rows(rng, len(spans), 4 * dim))
        return [np.array(be.read(be.attention(q, AttentionSpec(dim**-0.5), LayerMemory(step, kv, 0))))]

    check(run, tolerance=1e-4)


TURNS: list[tuple[RopeStyle, bool, bool]] = [  # how heads turn, whether they are normed, and have sinks and slopes
    *(("halves", True, False), ("pairs", False, True), ("halves", False, True), ("pairs", True, False))
]


@needs_cuda
@pytest.mark.usefixtures("splits")
@pytest.mark.parametrize("kv_dtype", ["f32", *(form.lower() for form in HALVES), *EIGHT_BITS])
@pytest.mark.parametrize(("decode", "turn"), [*zip(DECODES, TURNS, strict=True)])
def test_decode_attention_with_rope(kv_dtype, decode, turn) -> None:  # type: ignore[no-untyped-def]
    """Rope, cache write and attention of decoding steps as one op; what it writes is in its slots."""
    spans, dim, heads, window, softcap = decode
    style, normed, per_head = turn

    def run(be: Backend, rng: np.random.Generator) -> list[np.ndarray]:
        stored = kv_dtype if kv_dtype in be.kv_dtypes else "f32"
        kv = full_store(be, rng, KVShape(heads[1], dim), len(spans), stored)
        step = step_of(be, spans, [0], 64)
        step = step.within(StepLimits(len(spans), len(spans), len(spans), 16, n_tokens_per_seq=1))
        q, k, v = (be.tensor(rows(rng, len(spans), n * dim)) for n in (heads[0], heads[1], heads[1]))
        gains = [be.vector(rng.uniform(0.5, 2, dim).astype(np.float32)) for _ in range(2)]
        turned = be.cos_sin(step, Rope(rng.uniform(0.01, 1, dim // 4).astype(np.float32)))
        vectors = [be.vector(rng.uniform(-1, 1, heads[0]).astype(np.float32)) if per_head else None for _ in range(2)]
        spec = AttentionSpec(dim**-0.5, window, softcap, sinks=vectors[0], slopes=vectors[1])
        rotation = Rotation(turned, style, HeadNorms(*gains, 1e-6) if normed else None)
        memory, qkv = LayerMemory(step, kv, 0), [q, k, v]
        found = [np.array(be.read(be.rope_attention(qkv, rotation, spec, memory)))]
        assert not qkv or be.name == "cuda"
        again = be.attention(be.rope_and_cache([q], rotation, memory), spec, memory)  # what was written is read
        return [*found, np.array(be.read(again))]

    check(run, tolerance={"f32": 2e-5, "fp8": 8e-2}.get(kv_dtype, LOOSE))


@needs_cuda
@pytest.mark.skipif(cuda_presence.interprets(), reason="the interpreter rounds no numbers to 8-bit floats")
@pytest.mark.parametrize("spans", [[(9, 10), (20, 21), (0, 1)], [(0, 20), (30, 31)]])
def test_keys_and_values_in_8_bit_floats(spans: list[tuple[int, int]]) -> None:
    """Decode and prefill attention to numbers that such floats hold exactly, beside f32; larger ones saturate."""

    def run(be: Backend, kv_dtype: str, most: float) -> np.ndarray:
        rng, shape, n = np.random.default_rng(4), KVShape(2, 32), 16 * PAGE * len(spans)
        kv = kv_store(be, [shape], [16 * len(spans)], PAGE, kv_dtype)
        codes = rng.integers(0, 0x40, (2 * n * 64, 1), np.uint8) | rng.integers(0, 2, (2 * n * 64, 1), np.uint8) << 7
        k, v = FORMATS["F8_E4M3"].dequantise(codes).reshape(2, n, 64)
        v[3, 5] = most
        step = step_of(be, [(0, 16 * PAGE)] * len(spans), [0], 10)
        still = Rotation(be.cos_sin(step, Rope(np.zeros(16, np.float32))), "halves")
        be.rope_and_cache([be.tensor(k), be.tensor(k), be.tensor(v)], still, LayerMemory(step, kv, 0))
        step = step_of(be, spans, [0], 64)
        q = be.embed(be.weight(random_tensor(HALVES[-1], (64, 128), rng)), step, scale=10.0)
        return np.array(be.read(be.attention(q, AttentionSpec(0.2), LayerMemory(step, kv, 0))))

    wanted = run(ReferenceBackend(), "f32", 448.0)
    for deterministic in (False, True):
        got = run(backends_here.backend("cuda", deterministic), "fp8", 1000.0)
        large = np.isin(np.arange(wanted.shape[1]), (5, 37))  # of both query heads that see the large value
        for some in (large, ~large):
            assert np.linalg.norm((got - wanted)[:, some]) <= LOOSE * np.linalg.norm(wanted[:, some])


@needs_cuda
@pytest.mark.skipif(cuda_presence.interprets(), reason="the interpreter rounds no numbers to 8-bit floats")
def test_8_bit_floats_are_the_nearest() -> None:
    """Stored keys and values are the nearest e4m3 numbers, of two as near the even one; beyond +-448 they saturate."""
    be, rng = backends_here.backend("cuda"), np.random.default_rng(9)
    kv, step = kv_store(be, [KVShape(2, 32)], [16], PAGE, "fp8"), step_of(be, [(0, 2 * PAGE)], [0], 10)
    k, v = (rng.standard_normal((2 * PAGE, 64)) * 2.0 ** rng.integers(-12, 11, (2 * PAGE, 64)) for _ in range(2))
    v[0, :8] = [17, 19, -17, -19, 2**-10, 3 * 2**-10, 1e9, -1e9]
    k, v = k.astype(np.float32), v.astype(np.float32)
    still = Rotation(be.cos_sin(step, Rope(np.zeros(16, np.float32))), "halves")
    be.rope_and_cache([be.tensor(k), be.tensor(k), be.tensor(v)], still, LayerMemory(step, kv, 0))
    stored = be.read_pages(kv, step.page_table[0, 0, :2].tolist())[0].reshape(2 * PAGE, 2, 2, 32)
    table = FORMATS["F8_E4M3"].dequantise(np.arange(127, dtype=np.uint8)[:, None]).reshape(-1).astype(np.float64)
    for side, values in enumerate((k, v)):
        sizes = np.minimum(np.abs(values.astype(np.float64)), table[-1])
        above = np.searchsorted(table, sizes)
        low, high = np.maximum(above - 1, 0), above
        near, far = sizes - table[low], table[high] - sizes
        wanted = np.where((near < far) | ((near == far) & (low % 2 == 0)), low, high)
        np.testing.assert_array_equal(stored[:, :, side].reshape(2 * PAGE, 64), wanted | (np.signbit(values) << 7))


@needs_cuda
def test_half_prefill_attention() -> None:
    def run(be: Backend, rng: np.random.Generator) -> list[np.ndarray]:
        kv = full_store(be, rng, KVShape(2, 32), 2, "f16")
        step = step_of(be, [(0, 50), (60, 61)], [0], 64)
        q = be.embed(be.weight(random_tensor("BF16", (64, 128), rng)), step, scale=10.0)
        return [np.array(be.read(be.attention(q, AttentionSpec(0.2, window=30), LayerMemory(step, kv, 0))))]

    check(run)


SPANS = [(0, 100), (40, 128), (7, 8), (64, 96), (30, 50)]  # from the first token, from within a tile, decoding, ...


@needs_cuda
@pytest.mark.parametrize(("window", "normed"), [(0, True), (0, False), (40, False)])
def test_large_steps_read_new_keys_from_rows(window: int, normed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rope, cache write and attention of large steps as one op, in small tiles."""
    if "cuda" in backends_here.NAMES:
        from tahr.backends.cuda.kernels.attention import AttentionTile

        monkeypatch.setattr("tahr.backends.cuda.kernels.attention.N_LARGE", 1)
        monkeypatch.setattr("tahr.backends.cuda.kernels.attention.LARGE_TILES", [AttentionTile(32, 32, 4, 2)])
    dim = 32

    def run(be: Backend, rng: np.random.Generator) -> list[np.ndarray]:
        kv = full_store(be, rng, KVShape(2, dim), len(SPANS), "f16")
        step = step_of(be, SPANS, [0], 64)
        x = be.embed(be.weight(random_tensor("F16", (64, 64), rng)), step, scale=10.0)
        qkv = [be.linear(x, Linear(be.weight(random_tensor("F16", (heads * dim, 64), rng)))) for heads in (4, 2, 2)]
        norms = HeadNorms(*(be.vector(rng.uniform(0.5, 2, dim).astype(np.float32)) for _ in range(2)), 1e-6)
        turned = be.cos_sin(step, Rope(rng.uniform(0.01, 1, dim // 4).astype(np.float32)))
        rotation, spec = Rotation(turned, "halves", norms if normed else None), AttentionSpec(dim**-0.5, window)
        return [np.array(be.read(be.rope_attention(qkv, rotation, spec, LayerMemory(step, kv, 0))))]

    check(run)


@needs_cuda
@pytest.mark.parametrize("dim", [256, 512])
@pytest.mark.parametrize("n_large", [1, 1 << 30])
def test_wide_heads_fit(dim: int, n_large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefill and decode with heads as wide as Gemma's: tiles are chosen by what shared memory holds."""
    if "cuda" in backends_here.NAMES:
        monkeypatch.setattr("tahr.backends.cuda.kernels.attention.N_LARGE", n_large)

    def run(be: Backend, rng: np.random.Generator) -> list[np.ndarray]:
        kv = full_store(be, rng, KVShape(1, dim), 3, "f16")
        step = step_of(be, [(0, 40), (100, 128), (90, 91)], [0], 64)
        q = be.embed(be.weight(random_tensor("F16", (64, 2 * dim), rng)), step, scale=10.0)
        return [np.array(be.read(be.attention(q, AttentionSpec(dim**-0.5), LayerMemory(step, kv, 0))))]

    check(run)
