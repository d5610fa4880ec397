"""Damaged files that still parse must load and run, or be refused: never crash the native code."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends_here import NAMES, backend
from random_weights import LOW_BIT, NATIVE
from tahr.backends.api import Linear
from tahr.errors import TahrError
from tahr.models.loader.load import load, open_model
from tahr.tools.full_logits import all_logits
from tahr.weights.formats import FORMATS
from tahr.weights.tensor import HostTensor
from tiers import examples

pytestmark = pytest.mark.skipif("cpu" not in NAMES, reason="the cpu backend is not built here")


@pytest.fixture(scope="module")
def image(stories: Path) -> bytes:
    return stories.read_bytes()


def run(image: bytes) -> None:
    """Load and compute; only errors made for users may come out."""
    try:
        be = backend("cpu")
        loaded = load(open_model(image), be)
        logits = all_logits(be, loaded.decoder, [1, 2, 3, 400])
        assert logits.shape == (4, loaded.config.n_vocab)
    except TahrError:
        pass


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bits_anywhere(image: bytes, data: st.DataObject) -> None:
    damaged = bytearray(image)
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(image) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    run(bytes(damaged))


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(8, 12000), value=st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]))
def test_absurd_numbers_in_the_header(image: bytes, at: int, value: int) -> None:
    damaged = bytearray(image)
    struct.pack_into("<Q", damaged, at, value)
    run(bytes(damaged))


@pytest.mark.parametrize("name", NATIVE + LOW_BIT)
def test_any_bytes_are_a_matrix(name: str) -> None:
    """Scales that are infinite or not numbers give such results, and nothing worse."""
    be, form = backend("cpu"), FORMATS[name]
    rng = np.random.default_rng(1)
    for fill in (rng.integers(0, 256, 24 * 512 // form.block * form.block_bytes, dtype=np.uint8), 0, 255):
        data = np.full(24 * 512 // form.block * form.block_bytes, fill, np.uint8)
        w = be.weight(HostTensor("w", form, (24, 512), data))
        y = be.read(be.linear(be.tensor(rng.standard_normal((3, 512)).astype(np.float32)), Linear(w)))
        assert y.shape == (3, 24)
