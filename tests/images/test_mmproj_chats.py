"""Chats about images with GGUFs: the tower is named or lies beside the model, and what does not fit is said."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chat_vision_files import TEMPLATE, write_chat_vision
from gguf_maker import Typed
from image_cases import png
from mmproj_files import tower_metadata, tower_tensors, write_text_model, write_tower
from tahr import LLM, SamplingParams
from tahr.cli.main import main
from tahr.errors import ConfigError, LoadError, ModelNotFound
from tahr.hub.pick import projector_among, tower_to_fetch

CASE = "qwen3_vl"
EIGHT = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
PHOTO = png("RGB", 300, 500)
CHAT = [{"role": "user", "content": [{"type": "image", "image": PHOTO}, {"type": "text", "text": "cat"}]}]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_chat_vision(tmp_path_factory.mktemp("qwen3_vl")))


@pytest.fixture(scope="module")
def ggufs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text model, a template, and the tower in a folder of its own; images have the sizes of the checkpoint's."""
    folder = tmp_path_factory.mktemp("ggufs")
    write_text_model(folder / "model.gguf", CASE)
    (folder / "template.jinja").write_text(TEMPLATE)
    (folder / "towers").mkdir()
    sizes = {"image_min_pixels": 64, "image_max_pixels": 1024}
    metadata = tower_metadata(CASE) | {f"clip.vision.{key}": Typed("u32", n) for key, n in sizes.items()}
    write_tower(folder / "towers" / "mmproj-F16.gguf", CASE, metadata)
    return folder


def opened(ggufs: Path, checkpoint: Path, **options: Any) -> LLM:
    """The tiny GGUF has no tokenizer: it has that of the checkpoint."""
    own = {"tokenizer": str(checkpoint), "chat_template": str(ggufs / "template.jinja")}
    return LLM(str(ggufs / "model.gguf"), context_size=256, page_size=8, **own, **options)


@pytest.fixture(scope="module")
def wanted(checkpoint: Path) -> list[int]:
    return list(LLM(str(checkpoint), context_size=256, page_size=8).chat(CHAT, EIGHT).token_ids)


def test_a_tower_that_is_named(ggufs: Path, checkpoint: Path, wanted: list[int]) -> None:
    llm = opened(ggufs, checkpoint, mmproj=str(ggufs / "towers" / "mmproj-F16.gguf"))
    assert list(llm.chat(CHAT, EIGHT).token_ids) == wanted
    assert "Images are read by mmproj-F16.gguf." in llm.load_log


def test_a_tower_beside_the_model(ggufs: Path, checkpoint: Path, wanted: list[int], tmp_path: Path) -> None:
    shutil.copytree(ggufs, tmp_path, dirs_exist_ok=True)
    shutil.copy(ggufs / "towers" / "mmproj-F16.gguf", tmp_path / "mmproj-Tiny-f16.gguf")
    llm = opened(tmp_path, checkpoint)
    assert list(llm.chat(CHAT, EIGHT).token_ids) == wanted
    assert "Images are read by mmproj-Tiny-f16.gguf." in llm.load_log


def test_a_tower_beside_a_model_that_is_not_its_own(ggufs: Path, checkpoint: Path, tmp_path: Path) -> None:
    """The model goes on as one of texts, and says why."""
    shutil.copytree(ggufs, tmp_path, dirs_exist_ok=True)
    write_tower(tmp_path / "mmproj-other.gguf", "qwen2_vl")
    llm = opened(tmp_path, checkpoint)
    assert any("is not used, so it reads texts alone" in line for line in llm.load_log)
    assert llm.chat([{"role": "user", "content": "cat"}], EIGHT).token_ids
    with pytest.raises(ConfigError, match="reads texts alone"):
        llm.chat(CHAT, EIGHT)


def test_a_model_without_its_tower_reads_texts(ggufs: Path, checkpoint: Path) -> None:
    llm = opened(ggufs, checkpoint)
    assert llm.chat([{"role": "user", "content": "cat"}], EIGHT).token_ids
    with pytest.raises(ConfigError, match="reads texts alone"):
        llm.chat(CHAT, EIGHT)


def test_towers_that_cannot_be_had(ggufs: Path, checkpoint: Path, tmp_path: Path) -> None:
    tower = str(ggufs / "towers" / "mmproj-F16.gguf")
    with pytest.raises(ModelNotFound, match="There is no mmproj file"):
        opened(ggufs, checkpoint, mmproj=str(tmp_path / "none.gguf"))
    with pytest.raises(ModelNotFound, match="There is no mmproj file"):
        opened(ggufs, checkpoint, mmproj=str(tmp_path))
    with pytest.raises(ConfigError, match="in safetensors with its own"):
        LLM(str(checkpoint), mmproj=tower)
    with pytest.raises(LoadError, match="does not belong"):
        opened(ggufs, checkpoint, mmproj=str(write_tower(tmp_path / "mmproj.gguf", "qwen2_vl")))
    both = {**tower_tensors(CASE), "output_norm.weight": np.ones(16, np.float32)}
    named = str(write_tower(tmp_path / "both.gguf", CASE, tensors=both))
    with pytest.raises(LoadError, match="has tensors of the text model, such as output_norm"):
        opened(ggufs, checkpoint, mmproj=named)
    for data in (b"", b"GGUF", Path(tower).read_bytes()[:5000]):
        (tmp_path / "cut.gguf").write_bytes(data)
        with pytest.raises(LoadError):
            opened(ggufs, checkpoint, mmproj=str(tmp_path / "cut.gguf"))


def test_the_option_of_the_command_line(
    ggufs: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photo.png").write_bytes(PHOTO)
    tower = str(ggufs / "towers" / "mmproj-F16.gguf")
    command = ["run", str(ggufs / "model.gguf"), "--mmproj", tower, "--image", str(tmp_path / "photo.png"), "-p", "cat"]
    command += ["--tokenizer", str(checkpoint), "--chat-template", str(ggufs / "template.jinja")]
    assert main([*command, "--temperature", "0", "-n", "8", "--ctx-size", "256", "--quiet", "--no-stats"]) == 0
    assert capsys.readouterr().out.strip()


def test_which_of_several_towers() -> None:
    names = ["model-Q4_K_M.gguf", "mmproj-model-Q8_0.gguf", "mmproj-model-BF16.gguf", "mmproj-model-F16.gguf"]
    assert projector_among(names) == "mmproj-model-F16.gguf"
    assert projector_among(names[:3]) == "mmproj-model-BF16.gguf"
    assert projector_among(["MMPROJ.GGUF", "a.gguf"]) == "MMPROJ.GGUF"
    assert projector_among(["model.gguf", "mmproj.txt"]) is None


def test_which_tower_is_fetched_with_a_model() -> None:
    names = ["q4/model-Q4_K_M.gguf", "q4/mmproj-F16.gguf", "model-Q8_0.gguf", "mmproj-Q8_0.gguf"]
    assert tower_to_fetch(names, names[0], "Qwen/Qwen3-VL-2B-Instruct-GGUF") == ("q4/mmproj-F16.gguf",)
    assert tower_to_fetch(names, names[2], "ggml-org/Qwen2.5-VL-3B-Instruct-GGUF") == ("mmproj-Q8_0.gguf",)
    assert tower_to_fetch(names, names[2], "ggml-org/gemma-3-4b-it-GGUF") == tower_to_fetch(names, names[2], "Qwen3-VL")
    assert tower_to_fetch(names, names[2], "ggml-org/gemma-3-1b-it-GGUF") == ()  # which reads texts alone
    assert tower_to_fetch(names, names[2], "ggml-org/MiniCPM-V-4-GGUF") == ()  # Tahr does not run that one
