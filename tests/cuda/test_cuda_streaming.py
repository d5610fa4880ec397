"""Layers that pass through two buffers on the device: the bits of the same model with all layers there."""

from pathlib import Path

import numpy as np
import pytest

import backends_here
from model_cases import CASES, make_weights
from model_files import write_hf
from model_runs import Runs
from tahr.backends.api import Backend
from tahr.backends.cuda.layouts import presence
from tahr.loading.sizing import SizingBackend, size_up, tensor_sizes
from tahr.models.loader.load import Loaded, OpenedModel, load, open_model
from tahr.offload.homes import Home, Homes
from tahr.offload.policy import layer_of

pytestmark = pytest.mark.skipif(bool(presence.problem()), reason=presence.problem())
FAMILIES = ["llama", "qwen3_moe", "gemma2", "gpt_oss", "qwen3_next", "deepseek_v3", "phi3", "olmo2", "gpt2"]
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5]


def all_streamed(source: OpenedModel, backend: Backend, first: int = 0) -> Homes:
    """Homes of all matrices of the layers from one on."""
    sizes = tensor_sizes(size_up(source, SizingBackend(backend)))
    layers = {name: layer for name in sizes if (layer := layer_of(name)) is not None and layer >= first}
    return {name: Home(0, "streamed", layer=layer) for name, layer in layers.items()}


def logits(loaded: Loaded, backend: Backend) -> np.ndarray:
    """Of a prompt and of a token behind it."""
    runs = Runs(loaded, backend, n_tokens=16)
    return np.concatenate([runs.eager([(0, PROMPT)]), runs.eager([(len(PROMPT), [2])])])


def check_bits(source: OpenedModel, backend: Backend, first: int = 0) -> Loaded:
    resident = logits(load(source, backend), backend)
    loaded = load(source, backend, homes=all_streamed(source, backend, first))
    np.testing.assert_array_equal(logits(loaded, backend), resident)
    return loaded


@pytest.mark.parametrize("family", FAMILIES)
def test_streamed_layers_give_the_bits_of_resident_ones(family: str, tmp_path: Path) -> None:
    backend = backends_here.backend("cuda")
    source = open_model([], write_hf(tmp_path, CASES[family], make_weights(CASES[family]), "BF16"))
    loaded = check_bits(source, backend)
    assert any("streamed" in line for line in loaded.log)
