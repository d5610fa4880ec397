"""GGUFs with their towers in files of their own: what llama.cpp's converter writes gives what transformers gives."""

from functools import cache
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest

import backends_here
from chat_vision_cases import BANNED, GRIDS, N_GREEDY, PROMPTS, expected
from chat_vision_runs import engine_for, images_of, rows_made, submitted
from engines import greedy, run
from folders import new_folder
from gguf_maker import Typed
from mmproj_files import IN_FILES, recorded, tower_metadata, tower_tensors, write_text_model, write_tower
from tahr.errors import LoadError
from tahr.models.loader import Loaded, load, open_model
from tahr.models.loader.load import OpenedModel
from tahr.models.loader.projector import may_see, with_tower

TOLERANCE = 1e-4


@cache
def folder() -> Path:
    return new_folder("mmproj")


def text_model(case: str) -> OpenedModel:
    path = folder() / f"{case}.gguf"
    return open_model([path if path.is_file() else write_text_model(path, case)])


def whole(case: str) -> OpenedModel:
    return with_tower(text_model(case), write_tower(folder() / f"mmproj-{case}.gguf", case))


@cache
def loaded_on(case: str, name: str) -> Loaded:
    return load(whole(case), backends_here.backend(name, deterministic=True))


@pytest.mark.parametrize("case", IN_FILES)
def test_files_are_those_of_the_converter(case: str) -> None:
    """Names, shapes and numbers of every tensor."""
    made = {
        name: [list(values.shape[::-1]), blake2b(values.tobytes(), digest_size=8).hexdigest()]
        for name, values in tower_tensors(case).items()
    }
    assert made == recorded(case)["tensors"]


@pytest.mark.parametrize("name", backends_here.NAMES)
@pytest.mark.parametrize("case", IN_FILES)
def test_rows_equal_those_of_transformers(case: str, name: str) -> None:
    loaded = loaded_on(case, name)
    assert not [line for line in loaded.log if line.startswith("Not used")]
    found = rows_made(engine_for(loaded, name), images_of(case, loaded.config))
    for i in range(len(GRIDS)):
        assert np.abs(found[i] - expected(case)[f"image_{i}"]).max() <= TOLERANCE


@pytest.mark.parametrize("name", backends_here.NAMES)
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("case", IN_FILES)
def test_replies_equal_those_of_transformers(case: str, prompt: str, name: str) -> None:
    loaded = loaded_on(case, name)
    engine = engine_for(loaded, name)
    seq = submitted(engine, case, prompt, loaded.config, greedy(N_GREEDY, banned_tokens=BANNED))
    run(engine, seq)
    assert seq.tokens[-N_GREEDY:] == list(expected(case)[f"greedy_{prompt}"])


@pytest.mark.parametrize("case", IN_FILES)
def test_text_models_run_without_towers(case: str) -> None:
    loaded = load(text_model(case), backends_here.backend("reference"))
    assert may_see(text_model(case)) and loaded.config.chat_vision is None and loaded.decoder.tower is None


def test_matrices_that_older_converters_named_after_each_other(tmp_path: Path) -> None:
    swap = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
    tensors = {}
    for name, values in tower_tensors("qwen2_vl").items():
        parts = [swap.get(part, part) for part in name.split(".")]
        tensors[".".join(parts)] = values
    path = write_tower(tmp_path / "mmproj.gguf", "qwen2_vl", tensors=tensors)
    loaded = load(with_tower(text_model("qwen2_vl"), path), backends_here.backend("reference"))
    found = rows_made(engine_for(loaded, "reference"), images_of("qwen2_vl", loaded.config))
    assert np.abs(found[0] - expected("qwen2_vl")["image_0"]).max() <= TOLERANCE


def test_layers_without_windows_are_each_so_many() -> None:
    vision = whole("qwen2_5_vl").model_config().chat_vision
    assert vision and vision.whole == (1, 3) and vision.window == 2


# ---- what is refused ----------------------------------------------------------------------------------------------


def test_a_tower_of_another_model_is_refused() -> None:
    other = write_tower(folder() / "mmproj-other.gguf", "qwen2_vl")
    with pytest.raises(LoadError, match=r"qwen2vl_merger.*does not belong to a text model of architecture 'qwen3vl'"):
        with_tower(text_model("qwen3_vl"), other)
    with pytest.raises(LoadError, match="there is no tower that reads images"):
        with_tower(text_model("qwen3_vl"), write_text_model(folder() / "text.gguf", "qwen3_vl"))


WRONG: dict[str, tuple[Typed, str]] = {
    "clip.projector_type": (Typed("str", "minicpmv"), "minicpmv"),
    "clip.has_vision_encoder": (Typed("bool", False), "no tower that reads images"),
    "clip.vision.projection_dim": (Typed("u32", 64), "out_hidden_size is 64"),
    "clip.vision.embedding_length": (Typed("u32", 0), "embedding_length"),
    "clip.vision.block_count": (Typed("u32", 2**31), "block_count"),
    "clip.vision.attention.head_count": (Typed("u32", 0), "num_attention_heads|num_heads"),
    "clip.vision.patch_size": (Typed("u32", 2**31), "patch_size"),
    "clip.vision.spatial_merge_size": (Typed("u32", 0), "spatial_merge_size"),
    "clip.vision.image_mean": (Typed("[f32]", [0.5]), "image_mean"),
    "clip.vision.is_deepstack_layers": (Typed("[bool]", [True] * 5), "deepstack|n_deepstack_layers"),
}


WRONG_FIXED: dict[str, tuple[Typed, str]] = {
    "clip.vision.embedding_length": (Typed("u32", 0), "embedding_length"),
    "clip.vision.block_count": (Typed("u32", 2**31), "block_count"),
    "clip.vision.attention.head_count": (Typed("u32", 0), "num_attention_heads"),
    "clip.vision.image_size": (Typed("u32", 2**31), "image_size"),
    "clip.vision.patch_size": (Typed("u32", 0), "patch_size"),
    "clip.vision.projector.scale_factor": (Typed("u32", 0), "scale_factor"),
    "clip.vision.image_mean": (Typed("[f32]", [0.5]), "image_mean"),
}


@pytest.mark.parametrize("key", WRONG_FIXED)
def test_wrong_metadata_of_images_of_one_size(key: str, tmp_path: Path) -> None:
    value, words = WRONG_FIXED[key]
    path = write_tower(tmp_path / "mmproj.gguf", "gemma3", tower_metadata("gemma3") | {key: value})
    with pytest.raises(LoadError, match=words) as raised:
        with_tower(text_model("gemma3"), path)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("factor", [4, 7, 2**31])
def test_squares_that_no_image_has_are_refused(factor: int, tmp_path: Path) -> None:
    """Six patches on a side."""
    key = "clip.vision.projector.scale_factor"
    path = write_tower(tmp_path / "mmproj.gguf", "gemma3", tower_metadata("gemma3") | {key: Typed("u32", factor)})
    with pytest.raises(LoadError, match="scale_factor"):
        with_tower(text_model("gemma3"), path)


@pytest.mark.parametrize("key", WRONG)
def test_wrong_metadata_is_refused_by_its_name(key: str, tmp_path: Path) -> None:
    value, words = WRONG[key]
    path = write_tower(tmp_path / "mmproj.gguf", "qwen3_vl", tower_metadata("qwen3_vl") | {key: value})
    with pytest.raises(LoadError, match=words) as raised:
        with_tower(text_model("qwen3_vl"), path)
    assert len(str(raised.value)) < 500


def test_a_list_of_more_layers_than_there_are_is_refused(tmp_path: Path) -> None:
    key = "clip.vision.is_deepstack_layers"
    longer = Typed("[bool]", [*[True, True, False, True, False], *[False] * 5000])
    path = write_tower(tmp_path / "mmproj.gguf", "qwen3_vl", tower_metadata("qwen3_vl") | {key: longer})
    with pytest.raises(LoadError, match=r"is_deepstack_layers is .* a list of 5 items"):
        with_tower(text_model("qwen3_vl"), path)


@pytest.mark.parametrize("case", IN_FILES)
def test_layers_that_are_not_counted_are_refused(case: str, tmp_path: Path) -> None:
    """Without its last layers a tower would see something else, and nothing would say so."""
    metadata = tower_metadata(case)
    n_layers = metadata["clip.vision.block_count"].value
    for n in (1, n_layers - 1, n_layers + 1):
        path = write_tower(tmp_path / f"mmproj-{n}.gguf", case, metadata | {"clip.vision.block_count": Typed("u32", n)})
        with pytest.raises(LoadError, match=r"block_count|is_deepstack_layers|indexes") as raised:
            with_tower(text_model(case), path)
        assert "MetadataArray" not in str(raised.value)


@pytest.mark.parametrize("case", IN_FILES)
def test_parts_that_some_layers_lack_are_refused(case: str, tmp_path: Path) -> None:
    tensors = tower_tensors(case)
    odd = next(name for name in tensors if name.startswith("v.blk.1."))
    named = {("v.blk.0.odd.weight" if name == odd else name): values for name, values in tensors.items()}
    path = write_tower(tmp_path / "mmproj.gguf", case, tensors=tensors | named)
    with pytest.raises(LoadError, match=r"The tower has no v\.blk\.1\.odd\.weight"):
        with_tower(text_model(case), path)


@pytest.mark.parametrize("case", IN_FILES)
def test_missing_tensors_are_refused(case: str, tmp_path: Path) -> None:
    """Every one of them, by name."""
    tensors = tower_tensors(case)
    for i, name in enumerate(tensors):
        if "blk" in name and "blk.2" not in name:
            continue
        rest = {other: values for other, values in tensors.items() if other != name}
        path = write_tower(tmp_path / f"mmproj-{i}.gguf", case, tensors=rest)
        with pytest.raises(LoadError):
            load(with_tower(text_model(case), path), backends_here.backend("reference"))
