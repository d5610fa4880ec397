"""Layers that pass through two buffers on the device: the bits of the same model with all layers there."""

from pathlib import Path

import numpy as np
import pytest

import tiers
from model_cases import CASES, make_weights
from model_files import write_hf
from model_runs import Runs
from replaying import Replay
from tahr.backends import open_backend
from tahr.backends.api import Backend
from tahr.backends.cuda.layouts import presence
from tahr.loading.sizing import SizingBackend, size_up, tensor_sizes
from tahr.models.loader.load import OpenedModel, load, open_model
from tahr.offload.homes import Home
from tahr.offload.policy import layer_of

pytestmark = pytest.mark.skipif(bool(presence.problem()), reason=presence.problem() or "there is a device")
PROMPT = [3, 1, 4, 1, 5, 9, 2]
# Interpreted, a model takes half a minute. These have an MLP, and experts.
QUICK = ["llama", "qwen3_moe"]
FAMILIES = [family if family in QUICK else tiers.full(family) for family in CASES]


def streamed_from(source: OpenedModel, backend: Backend, first: int, quantize: str | None) -> dict[str, Home]:
    """Homes of all matrices of the layers from one on."""
    sizes = tensor_sizes(size_up(source, SizingBackend(backend), quantize))
    layers = {name: layer for name in sizes if (layer := layer_of(name)) is not None and layer >= first}
    return {name: Home(0, "streamed", layer=layer) for name, layer in layers.items()}


def logits(source: OpenedModel, first: int | None, quantize: str | None = None) -> np.ndarray:
    """Of a prompt and of a token behind it, from plans and op by op. Layers from `first` on are streamed."""
    backend = open_backend("cuda")
    homes = {} if first is None else streamed_from(source, backend, first, quantize)
    loaded = load(source, backend, homes=homes, quantize=quantize)
    assert any("streamed" in line for line in loaded.log) == bool(homes)
    runs = Runs(loaded, backend, n_tokens=8)
    replay = Replay(runs)
    planned = replay.logits([(0, PROMPT)], runs.limits)
    return np.concatenate([planned, runs.eager([(len(PROMPT), [2])])])


def check_bits(source: OpenedModel, first: int = 0, quantize: str | None = None) -> None:
    np.testing.assert_array_equal(logits(source, first, quantize), logits(source, None, quantize))


@pytest.mark.parametrize("family", FAMILIES)
def test_streamed_layers_give_the_bits_of_resident_ones(family: str, tmp_path: Path) -> None:
    check_bits(open_model([], write_hf(tmp_path, CASES[family], make_weights(CASES[family]), "BF16")))


@pytest.mark.parametrize("form", [tiers.full("q4_0"), tiers.full("q8_0"), tiers.full("fp8")])
def test_packed_layers_behind_those_that_stay(form: str, tmp_path: Path) -> None:
    source = open_model([], write_hf(tmp_path, CASES["llama"], make_weights(CASES["llama"]), "BF16"))
    check_bits(source, first=1, quantize=form)
