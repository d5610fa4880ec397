"""Images whose lines end with tokens: each line reads its own rows of what is computed once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends_here import NAMES
from chat_vision_cases import CASES, END, IMAGE, IN_LINES, START, grids, merge_of
from chat_vision_files import write_chat_vision
from chat_vision_runs import engine_of, loaded_on, prompt_of
from tahr import LLM
from tahr.errors import LoadError, UnsupportedModel
from tahr.images.sizing import LongestEdge
from tahr.models.config.rope import Axial, in_the_plane
from tahr.models.decoder import make_rope
from tahr.models.loader import from_hf
from tahr.models.towers.joined import JoiningTower

BACKEND = "cpu" if "cpu" in NAMES else "reference"


@pytest.mark.parametrize("case", IN_LINES)
def test_lines_of_an_image(case: str) -> None:
    tokens, rows = prompt_of(case, "first", loaded_on(case, BACKEND).config)
    high, wide = (n // merge_of(case) for n in grids(case)[0])
    assert tokens[: high * (wide + 1)] == [*[*[IMAGE] * wide, START] * (high - 1), *[IMAGE] * wide, END]
    places = [(span.begin, span.rows, span.first, span.n_content) for span in rows.spans]
    assert places == [(line * (wide + 1), wide, line * wide, high * wide) for line in range(high)]
    assert len({span.digest for span in rows.spans}) == len(rows.sources) == 1


@pytest.mark.parametrize("case", IN_LINES)
def test_each_special_thing_counts(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits are others without the norm of patches, or with one speed for both axes."""
    plain = logits(case)
    with monkeypatch.context() as changed:
        changed.setattr(loaded_on(case, BACKEND).decoder.tower, "norm", None)
        assert np.abs(logits(case) - plain).max() > 0.01
    with monkeypatch.context() as changed:
        tower = loaded_on(case, BACKEND).decoder.tower
        assert isinstance(tower, JoiningTower)
        (rope,) = tower._ropes
        other = in_the_plane(rope.theta, rope.n_dims)
        assert other.scaling == Axial() != rope.scaling
        changed.setattr(tower, "_ropes", {rope: make_rope(tower.config.layers, other)})
        assert np.abs(logits(case) - plain).max() > 0.001


def logits(case: str) -> np.ndarray:
    engine = engine_of(case, BACKEND)
    tokens, rows = prompt_of(case, "first", loaded_on(case, BACKEND).config)
    found: list[np.ndarray] = []
    engine.submit_rows(tokens, lambda made: found.append(made.copy()), first_row=0, rows=rows)
    while engine.busy:
        engine.step()
    return np.concatenate(found)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"spatial_merge_size": 0}, "spatial_merge_size"),
        ({"spatial_merge_size": 2**31}, "spatial_merge_size"),
        ({"image_token_index": 96}, "image_token_index"),
        ({"vision_feature_layer": 0}, "vision_feature_layer"),
        ({"vision_feature_layer": [-1, -2]}, "vision_feature_layer"),
        ({"vision_feature_select_strategy": "default"}, "'default'"),
        ({"vision_config": {"model_type": "siglip_vision_model"}}, "'siglip_vision_model'"),
        ({"vision_config": {"num_channels": 4}}, "three colours"),
        ({"vision_config": {"head_dim": 16}}, "num_attention_heads"),
        ({"vision_config": {"rope_theta": 0}}, "rope_theta"),
        *(({"vision_config": {name: n}}, name) for n in (0, 2**31) for name in (
            "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "patch_size"
        )),
    ],
)  # fmt: skip
def test_configurations_that_fit_no_tower(changes: dict[str, Any], sentence: str) -> None:
    config = CASES["mistral3"] | changes
    config["vision_config"] = CASES["mistral3"]["vision_config"] | changes.get("vision_config", {})
    with pytest.raises(LoadError, match=sentence) as raised:
        from_hf(config, name="mistral3")
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("name", ["[IMG_BREAK]", "[IMG_END]"])
def test_a_vocabulary_without_ends_of_lines(tmp_path: Path, name: str) -> None:
    folder = write_chat_vision(tmp_path, "mistral3")
    vocabulary = tmp_path / "tokenizer.json"
    vocabulary.write_text(vocabulary.read_text().replace(name, "[ELSE]"))
    with pytest.raises(UnsupportedModel, match="end lines of images"):
        LLM(folder, context_size=64)


def test_sizes_of_images() -> None:
    """Shrunk where a side is longer than the limit, and then made larger up to whole squares."""
    rule = LongestEdge(1024, 16)
    assert [rule(*size) for size in ((1, 1), (1024, 17), (2048, 31), (16, 16))] == [
        (16, 16), (1024, 32), (1024, 16), (16, 16)
    ]  # fmt: skip
