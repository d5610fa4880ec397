"""Models whose weights are read as steps need them: the bits of the same models in memory."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from model_cases import CASES, make_weights
from model_files import to_gguf, write_hf
from model_runs import Runs
from tahr.backends import open_backend
from tahr.backends.api import Backend
from tahr.errors import LoadError
from tahr.loading.sizing import SizingBackend, size_up, tensor_sizes
from tahr.models.loader.load import Loaded, OpenedModel, load, open_model
from tahr.offload.homes import SlotArena, TensorSize
from tahr.offload.plan import PAGED, PagedPlan, plan_paging
from tahr.offload.policy import OffloadPolicy

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
ROOMY = 1 << 40


class Sized(NamedTuple):
    sizes: dict[str, TensorSize]
    n_layers: int


def sized(source: OpenedModel, backend: Backend) -> Sized:
    sizing = SizingBackend(backend)
    loaded = size_up(source, sizing)
    return Sized(tensor_sizes(loaded, sizing.panels), len(loaded.decoder.layers))


def least_budget(model: Sized) -> int:
    """By halving."""
    low, high = 0, sum(size.n_bytes for size in model.sizes.values()) + (64 << 20)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            plan_paging(model.sizes, middle, OffloadPolicy.none(), model.n_layers)
            high = middle
        except LoadError:
            low = middle
    return high


def all_paged(model: Sized) -> PagedPlan:
    """Every matrix that can be, in as few slots as do."""
    panels = {name: size.panels for name, size in model.sizes.items() if size.panels and not size.file_bytes}
    slot_bytes = -(-max(each.n_bytes for each in panels.values()) // 4096) * 4096
    slots = {name: each.n_pieces * each.slots_each(slot_bytes) for name, each in panels.items()}
    arenas = []
    for is_stack in (False, True):
        largest = sorted((n for name, n in slots.items() if panels[name].is_stack is is_stack), reverse=True)[:4]
        arenas += [SlotArena(slot_bytes, sum(largest), is_stack, n_ahead=3)] if largest else []
    return PagedPlan(dict.fromkeys(panels, PAGED), arenas)


def load_paged(source: OpenedModel, backend: Backend, plan: PagedPlan) -> Loaded:
    backend.hold_arenas(plan.arenas)
    homes = dict(plan.homes)
    if "lm_head.weight" in homes:
        homes["model.embed_tokens.weight"] = homes["lm_head.weight"]
    return load(source, backend, homes=homes)


def logits(loaded: Loaded, backend: Backend) -> np.ndarray:
    """Of a prompt and of single tokens after it."""
    runs = Runs(loaded, backend, n_tokens=32)
    steps = [runs.eager([(0, PROMPT)]), *(runs.eager([(len(PROMPT) + i, [i])]) for i in range(6))]
    return np.concatenate(steps)


def as_gguf(directory: Path, family: str) -> OpenedModel:
    path = directory / "model.gguf"
    path.write_bytes(to_gguf(CASES[family], make_weights(CASES[family])))
    return open_model([path])


def check_bits(source: OpenedModel) -> Loaded:
    backend = open_backend("cpu", 2)
    resident = logits(load(source, backend), backend)
    loaded = load_paged(source, backend, all_paged(sized(source, backend)))
    np.testing.assert_array_equal(logits(loaded, backend), resident)
    return loaded


@pytest.mark.parametrize("family", CASES)
def test_paged_models_give_the_bits_of_resident_ones(family: str, tmp_path: Path) -> None:
    loaded = check_bits(open_model([], write_hf(tmp_path, CASES[family], make_weights(CASES[family]), "BF16")))
    assert any("paged" in line for line in loaded.log)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_paged_ggufs_give_the_bits_of_resident_ones(family: str, tmp_path: Path) -> None:
    loaded = check_bits(as_gguf(tmp_path, family))
    assert any("paged" in line for line in loaded.log)
