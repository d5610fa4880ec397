"""Who counts the memory of paged weights, and who watches the files that they are read from."""

from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest

import chat_vision_cases
import vision_cases
from chat_vision_files import write_chat_vision
from model_cases import CASES, make_weights
from model_files import write_hf
from speech_runs import checkpoint
from tahr import LLM
from tahr.backends import open_backend
from tahr.config import EngineConfig
from tahr.errors import LoadError, WeightsChanged
from tahr.loading.placement import DeviceFacts, place, refuse_too_large
from tahr.models.loader.load import OpenedModel, open_model
from tahr.offload.homes import Panels, SlotArena, TensorSize
from tahr.offload.plan import PAGED, PagedPlan
from tahr.server.models.loading import LlmLoader, LoadOptions, ModelChoice
from test_paging import all_paged, load_paged, sized
from vision_files import write_vision

MB = 10**6


def test_slots_and_reads_are_memory_that_is_needed() -> None:
    arena = SlotArena(1 << 20, 100, by_usage=False)
    sizes = {
        "model.layers.0.mlp.up_proj.weight": TensorSize("Q8_0", 1 << 30, panels=Panels(1, 1 << 10, 1 << 20, False))
    }
    plan = PagedPlan(dict.fromkeys(sizes, PAGED), [arena])
    needed = arena.n_bytes + arena.read_bytes
    assert arena.read_bytes > 5 << 20
    refuse_too_large(place(sizes, [DeviceFacts("cpu", needed)], paged=plan))
    with pytest.raises(LoadError, match=f"its weights take {needed / 1e6:.1f} MB.* Lower the ram_budget"):
        refuse_too_large(place(sizes, [DeviceFacts("cpu", needed - 1)], paged=plan))
    assert place(sizes, [DeviceFacts("cpu", None)], paged=plan).pool_bytes == needed


@pytest.mark.parametrize("family", CASES)
def test_panels_are_those_of_their_matrix(family: str, tmp_path: Path) -> None:
    """Also where one tensor of the file is several matrices."""
    source = open_model([], write_hf(tmp_path, CASES[family], make_weights(CASES[family]), "BF16"))
    for name, size in sized(source, open_backend("cpu", 2)).sizes.items():
        if panels := size.panels:
            assert panels.n_pieces * panels.n_panels * panels.n_bytes == size.n_bytes, name


def with_tower(case: str, folder: Path) -> OpenedModel:
    if case == "whisper":
        return open_model([], copytree(checkpoint(case), folder / case))
    write = write_vision if case in vision_cases.CASES else write_chat_vision
    return open_model([], Path(write(folder, case)))


@pytest.mark.parametrize("case", [*chat_vision_cases.CASES, *vision_cases.CASES, "whisper"])
def test_towers_watch_the_files_that_they_are_read_from(case: str, tmp_path: Path) -> None:
    backend = open_backend("cpu", 2)
    source = with_tower(case, tmp_path)
    loaded = load_paged(source, backend, all_paged(sized(source, backend)))
    tower = loaded.decoder.tower
    assert tower
    tower.files.check()
    for path in {tensor.source.path for tensor in source.tensors.values() if tensor.source and tensor.source.path}:
        with path.open("ab") as file:
            file.write(b"more")
    with pytest.raises(WeightsChanged):
        tower.files.check()
    assert any("paged" in line for line in loaded.log)


def test_a_model_counts_as_much_as_its_budget(stories: Path) -> None:
    budget = 1_100_000
    config = EngineConfig(backend="cpu", n_threads=2, context_size=64, kv_bytes=1 << 18)
    with LLM(str(stories), config=replace(config, ram_budget=str(budget))) as llm:
        assert llm.n_bytes == budget and llm.n_weight_bytes < llm.n_bytes
    with LLM(str(stories), config=config) as llm:
        assert llm.n_bytes > budget


@pytest.mark.parametrize("kv_bytes", [None, 1 << 18])
def test_a_server_expects_as_much_as_a_budget(kv_bytes: int | None, stories: Path) -> None:
    config = EngineConfig(backend="cpu", ram_budget="1200k", kv_bytes=kv_bytes)
    loader = LlmLoader(ModelChoice(str(stories), config=config), LoadOptions(budget_bytes=100 * MB))
    assert loader.n_bytes() == 1200 << 10
    assert loader.config.kv_bytes == kv_bytes or loader.config.kv_bytes == 300 << 10
    whole = LlmLoader(
        ModelChoice(str(stories), config=replace(config, ram_budget=None)), LoadOptions(budget_bytes=100 * MB)
    )
    assert whole.n_bytes() > stories.stat().st_size
