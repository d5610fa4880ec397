"""Keys and values as q8_0: rotated and rounded as stated, the same bytes everywhere, and good enough for a model."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backends_here import NAMES, backend, kv_store, oracle
from model_cases import CASES, make_weights
from model_files import write_hf
from op_steps import PAGE, full_store, step_of
from tahr.backends.api import AttentionSpec, Backend, KVShape, KVStore, LayerMemory, Rope, RopeStyle, Rotation
from tahr.backends.reference import attention, kv_rows
from tahr.config import EngineConfig
from tahr.errors import ConfigError
from tahr.library.feeder import Feeder, LastRow
from tahr.library.inference.session import Session
from tahr.loading.builder import build_engine
from tahr.loading.capacity import kv_groups, measure
from tahr.models.config.rope import RopeConfig, mean_rotated
from tahr.models.loader import load, open_model

WITH_Q8 = [name for name in NAMES if "q8_0" in backend(name).kv_dtypes]
TEXT = [1 + (i * i * 7 + 3 * i) % 120 for i in range(150)]


def shape_of(kv: KVStore) -> KVShape:
    shape = kv.layout.layers[0]
    assert isinstance(shape, KVShape)
    return shape


def place_values(be: Backend, kv: KVStore, values: np.ndarray) -> None:
    """Values alone: the keys are zeros."""
    step = step_of(be, [(0, len(values))], [0], 10)
    shape = shape_of(kv)
    zeros = be.tensor(np.zeros_like(values))
    angles = be.cos_sin(step, Rope(np.zeros(shape.head_dim // 2, np.float32)))
    be.rope_and_cache([zeros, zeros, be.tensor(values)], Rotation(angles, "halves"), LayerMemory(step, kv, 0))
    be.flush()


def mean_value(be: Backend, kv: KVStore) -> np.ndarray:
    """What a query sees that weighs the only token: its value."""
    q = be.tensor(np.zeros((1, shape_of(kv).n_heads * shape_of(kv).head_dim), np.float32))
    memory = LayerMemory(step_of(be, [(0, 1)], [0], 10), kv, 0)
    return np.array(be.read(be.attention(q, AttentionSpec(1.0), memory)))[0]


def padded(numbers: list[float]) -> np.ndarray:
    return np.array([numbers + [0.0] * (64 - len(numbers))], np.float32)


def hadamard(rows: np.ndarray) -> np.ndarray:
    """Rows of 64 numbers times the matrix of (-1)^(bits that i and j share) / 8, which is its own inverse."""
    shared = np.array([[(i & j).bit_count() for j in range(64)] for i in range(64)])
    return (rows.astype(np.float64) @ np.where(shared % 2, -1, 1) / 8).astype(np.float32)


def test_the_reference_rotates_by_the_hadamard_matrix() -> None:
    rows = np.random.default_rng(5).standard_normal((3, 64)).astype(np.float32)
    np.testing.assert_allclose(kv_rows.hadamard(rows[:, None])[:, 0], hadamard(rows), atol=1e-6)
    wide = np.random.default_rng(6).standard_normal((2, 1, 96)).astype(np.float32)  # three times 32
    np.testing.assert_allclose(kv_rows.hadamard(kv_rows.hadamard(wide)), wide, atol=1e-6)
    assert np.count_nonzero(kv_rows.hadamard(np.eye(1, 96, dtype=np.float32)[None])) == 32


@pytest.mark.parametrize("name", WITH_Q8)
def test_a_number_larger_than_the_others_costs_them_nothing(name: str) -> None:
    """Without rotation the others would be rounded to multiples of 1000 / 127."""
    be, value = backend(name), np.random.default_rng(7).standard_normal((1, 64)).astype(np.float32)
    kv = kv_store(be, [KVShape(1, 64)], [16], PAGE, "q8_0")
    value[0, 5] = 1000
    place_values(be, kv, value)
    off = mean_value(be, kv) - value[0]
    assert 0.1 < np.sqrt(np.mean(np.square(off))) < 0.5  # 1000 / 8 / 127 / sqrt(12) = 0.28


@pytest.mark.parametrize("name", WITH_Q8)
def test_q8_0_rounds_as_stated(name: str) -> None:
    be = backend(name)
    kv = kv_store(be, [KVShape(1, 64)], [16], PAGE, "q8_0")
    for rotated, wanted in [
        ([127, -127, 0.5, 1.5, 2.375, -2.625], [127, -127, 0, 2, 2, -3]),  # a scale of 1; ties go to the even
        # A scale that is subnormal in f16: the multiple of 2^-24 nearest to 1e-7 is 2^-23, and 1.27e-5 is 106.5 and a
        # bit of those.
        ([1e-7 * 127], [107 * 2**-23]),
    ]:
        place_values(be, kv, hadamard(padded(rotated)))
        np.testing.assert_array_equal(hadamard(mean_value(be, kv)[None]), padded(wanted))


@pytest.mark.parametrize("name", WITH_Q8)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e8])
def test_what_q8_0_cannot_hold_becomes_nan_and_spoils_its_head_alone(name: str, bad: float) -> None:
    be = backend(name)
    kv = kv_store(be, [KVShape(2, 64)], [16], PAGE, "q8_0")
    value = np.ones((1, 128), np.float32)
    value[0, 101] = bad
    with np.errstate(all="ignore"):
        place_values(be, kv, value)
        seen = mean_value(be, kv)
    assert np.isnan(seen[64:]).all() and np.abs(seen[:64] - 1).max() < 1e-2


@pytest.mark.parametrize("name", WITH_Q8)
def test_q8_0_pages_are_the_same_bytes_everywhere(name: str) -> None:
    be, known = backend(name), oracle(name)
    kv, wanted = (full_store(b, np.random.default_rng(1), KVShape(2, 64), 1, "q8_0") for b in (be, known))
    pages = be.read_pages(kv, [3, 0])
    assert pages[0].shape == (2 * PAGE, 2, 2 * 68)
    np.testing.assert_array_equal(pages[0], known.read_pages(wanted, [3, 0])[0])
    be.write_pages(kv, [7, 8], pages)
    be.copy_pages(kv, [(7, 9), (9, 7)])
    np.testing.assert_array_equal(be.read_pages(kv, [9, 8])[0], pages[0])
    assert kv.n_bytes == 16 * PAGE * 2 * 2 * 68


@pytest.mark.parametrize("name", WITH_Q8)
def test_heads_that_are_not_whole_blocks_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="groups of 32"):
        kv_store(backend(name), [KVShape(1, 24)], [1], PAGE, "q8_0")
    with pytest.raises(ConfigError, match="groups of 32"):
        kv_groups([KVShape(1, 24)], [0], PAGE, "q8_0")


@pytest.mark.parametrize("name", WITH_Q8)
def test_what_all_keys_have_in_common_costs_them_no_precision(name: str) -> None:
    """Stored with it, keys would be multiples of about 1000 / 127."""
    be, rng, n = backend(name), np.random.default_rng(8), 20
    common = 1000 * rng.standard_normal(64).astype(np.float32)
    q, k, v = (rng.standard_normal((n, 64)).astype(np.float32) for _ in range(3))
    replies = []
    for dtype, shift, mean in (("f32", 0, None), ("q8_0", 1, be.vector(common))):
        kv, step = kv_store(be, [KVShape(1, 64)], [16], PAGE, dtype), step_of(be, [(0, n)], [0], 10)
        rotation = Rotation(be.cos_sin(step, Rope(np.zeros(32, np.float32))), "halves", key_mean=mean)
        qkv, memory = [be.tensor(x) for x in (q, k + shift * common, v)], LayerMemory(step, kv, 0)
        turned = be.rope_and_cache(qkv, rotation, memory)
        replies.append(np.array(be.read(be.attention(turned, AttentionSpec(0.5), memory))))
    np.testing.assert_allclose(replies[1], replies[0], atol=0.05)


@pytest.mark.parametrize("style", ["halves", "pairs"])
def test_the_mean_of_a_bias_after_rope(style: RopeStyle) -> None:
    bias = np.random.default_rng(9).standard_normal((2, 64)).astype(np.float32)
    angle = np.arange(100, dtype=np.float32)[:, None] * RopeConfig(1e4, 48).frequencies()[0]
    turned = attention.rope(np.repeat(bias[None], 100, axis=0), np.hstack([np.cos(angle), np.sin(angle)]), style)
    found = mean_rotated(bias, RopeConfig(1e4, 48), style, 100)
    np.testing.assert_allclose(found, turned.mean(axis=0), atol=1e-5)


# ---- a whole model ----------------------------------------------------------------------------------------------


@pytest.fixture(params=WITH_Q8)
def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Session]:
    """Gemma 3 has layers that see everything and layers that do not."""
    be, config = backend(request.param, deterministic=True), CASES["gemma3"]
    loaded = load(open_model([], write_hf(tmp_path, config, make_weights(config))), be)
    config = EngineConfig(context_size=256, prefix_cache=False)
    return {
        dtype: Session(build_engine(be, loaded.decoder, replace(config, kv_dtype=dtype), whole_texts=2)[0], None)
        for dtype in ("f32", "q8_0")
    }


def prefill(session: Session, *cuts: int) -> np.ndarray:
    """The logits after the text, computed in pieces."""
    session.truncate(0)
    for begin, end in zip((0, *cuts), (*cuts, len(TEXT)), strict=True):
        last = session.feed(TEXT[begin:end])
    return last


def test_logits_stay_close_to_exact_ones(sessions: dict[str, Session]) -> None:
    exact, rounded = prefill(sessions["f32"]), prefill(sessions["q8_0"])
    off = np.abs(exact - rounded).max() / np.abs(exact).max()
    assert 1e-5 < off < 2e-2  # no less, or the numbers were never rounded


def test_the_chunks_of_a_prompt_change_nothing(sessions: dict[str, Session]) -> None:
    if sessions["q8_0"].engine.executor.backend.name == "reference":
        pytest.skip("the reference sums in NumPy's order, which depends on shapes")
    whole = prefill(sessions["q8_0"])
    for cuts in [(1, 8, 24, 88), (149,), tuple(range(7, 150, 7))]:
        np.testing.assert_array_equal(prefill(sessions["q8_0"], *cuts), whole)


def test_a_fork_copies_the_page_it_writes_to(sessions: dict[str, Session]) -> None:
    feeder, last = Feeder(sessions["q8_0"].engine), LastRow()
    seq = feeder.open(TEXT[:100], last)
    feeder.run(seq)
    other = feeder.fork(seq, LastRow())
    feeder.feed(other, [5, 6, 7])
    feeder.run(other)
    feeder.feed(seq, TEXT[100:])
    feeder.run(seq)
    np.testing.assert_array_equal(last.row, prefill(sessions["q8_0"], 100))


def test_a_pool_takes_what_was_reckoned(sessions: dict[str, Session]) -> None:
    kv = sessions["q8_0"].engine.executor.kv
    config = EngineConfig(page_size=kv.page_size, context_size=64)
    groups = kv_groups(kv.layout.layers, [0] * len(kv.layers), kv.page_size, "q8_0")
    room = measure(config, groups, 512, 1 << 28)
    assert room.kv_bytes * kv.layout.n_pages[0] == kv.n_bytes * room.n_pages[0]
    assert kv.n_bytes * 64 == sessions["f32"].engine.executor.kv.n_bytes * 17  # 34 bytes instead of 128
