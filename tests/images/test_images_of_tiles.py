"""Images that are split: tiles line by line with a learned row behind each, and tiles without the token of their
class."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backends_here
from backends_here import NAMES
from chat_vision_cases import CASES, expected, make_weights, n_tiles, tokens
from chat_vision_runs import engine_for, images_of, loaded_on, prompt_of, rows_made
from folders import new_folder
from model_files import write_hf
from tahr.engine.engine import Engine
from tahr.engine.sequences.prompt_rows import RowSource
from tahr.engine.step.row_steps import RowSteps
from tahr.errors import LoadError
from tahr.generation.kept_images import KeptImages
from tahr.generation.pictures import ImageRun, MessageImage, Pictures, PromptImage
from tahr.images.canvases import Centred
from tahr.images.processors import Patches
from tahr.library.inputs.tile_marks import line_by_line
from tahr.models.loader import from_hf, load, open_model

BACKEND = "cpu" if "cpu" in NAMES else "reference"
NEWLINE = -1
SIZES = [(12, 12), (12, 24), (24, 12), (24, 24), (36, 12), (12, 36)]


# ---- lines ----------------------------------------------------------------------------------------------------------


def packed(width: int, height: int, n_high: int, n_wide: int, side: int) -> list[int]:
    """The rows of all tiles as transformers packs them, by number; -1 ends a line."""
    numbers = np.arange((1 + n_high * n_wide) * side**2)
    grid = numbers[side**2 :].reshape(n_high, n_wide, side, side).swapaxes(1, 2).reshape(n_high * side, n_wide * side)
    if width / height > grid.shape[1] / grid.shape[0]:
        beside = (len(grid) - int(round(height * (grid.shape[1] / width), 7))) // 2
        grid = grid[beside : len(grid) - beside]
    else:
        beside = (grid.shape[1] - int(round(width * (grid.shape[0] / height), 7))) // 2
        grid = grid[:, beside : grid.shape[1] - beside]
    lines = [*map(list, np.pad(grid, [(0, 0), (0, 1)], constant_values=NEWLINE).tolist())]
    return [*range(side**2), *(number for line in lines for number in line)]


@pytest.mark.parametrize("side", [1, 3, 4])
@pytest.mark.parametrize("size", [(1, 1), (1, 200), (200, 1), (640, 427), (300, 500), (37, 511), (24, 24), (500, 490)])
def test_lines_of_tiles(size: tuple[int, int], side: int) -> None:
    rule = Centred(12, tuple(SIZES))
    n_high, n_wide = rule.grid(*size)
    numbers = np.zeros(((1 + n_high * n_wide) * side**2, 1), np.float32)
    patches = Patches(numbers, len(numbers) // side, side, (n_high, n_wide), rule.kept(*size, side))
    tiles = [PromptImage(RowSource(numbers), b"%d" % i, side, side) for i in range(1 + n_high * n_wide)]
    end = PromptImage(RowSource(numbers[:1], is_made=True), b"end", 1, 1)
    found: list[int] = []
    for piece in line_by_line(tiles, patches, end):
        assert not isinstance(piece, list)
        image = piece.image if isinstance(piece, ImageRun) else piece
        first = piece.first if isinstance(piece, ImageRun) else 0
        if image is end:
            found.append(NEWLINE)
        else:
            found += [tiles.index(image) * side**2 + first + i for i in range(piece.n_rows)]
    assert found == packed(*size, n_high, n_wide, side)


def test_memory_of_tiles_counts_once() -> None:
    """However many lines read them; the row behind lines is the model's."""
    config = loaded_on("llava_next", BACKEND).config
    images = images_of("llava_next", config)

    class Reader:
        placeholder = 90
        has_axes = False

        @property
        def reworded(self) -> dict[str, str]:
            return {}

        def read(self, sent: MessageImage) -> Any:
            return images[sent.data]

    memory = KeptImages(1 << 30)
    read = Pictures(Reader(), memory=memory)
    for i in range(3):
        read.of(MessageImage(i, "an image"))
    sources = {id(piece.source): piece.source for image in images for piece in whole_images(image)}
    made = [source for source in sources.values() if source.is_made]
    assert len(made) == 1
    assert memory.n_used == sum(source.values.nbytes for source in sources.values() if not source.is_made)
    ids, _ = tokens("llava_next", "three")
    assert read.n_rows == sum(len(expected("llava_next")[f"image_{i}"]) for i in range(3)) <= ids.count(90)


def whole_images(picture: Any) -> list[PromptImage]:
    return [piece.image if isinstance(piece, ImageRun) else piece for piece in picture]


def test_rows_that_cannot_be_put_fail_their_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone: the next one has them."""
    engine = engine_of("llava_next")
    put = RowSteps._put

    def broken(self: RowSteps, contents: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(RowSteps, "_put", broken)
    ids, rows = prompt_of("llava_next", "first", loaded_on("llava_next", BACKEND).config)
    lost = engine.submit_rows(ids, lambda _: None, rows=rows)
    for _ in range(50):
        engine.step()
    assert lost.done and lost.result.error and not engine.busy
    monkeypatch.setattr(RowSteps, "_put", put)
    assert np.abs(logits(engine, "llava_next") - expected("llava_next")["logits_first"]).max() <= 1e-4


# ---- what sets these families apart ---------------------------------------------------------------------------------


def engine_of(case: str, change: Callable[[str, np.ndarray], np.ndarray] | None = None, **config: Any) -> Engine:
    """An engine of the case's model, whose tensors may be others."""
    weights = {name: change(name, values) if change else values for name, values in make_weights(case).items()}
    folder = write_hf(new_folder("tiles"), CASES[case] | config, weights)
    return engine_for(load(open_model([], folder), backends_here.backend(BACKEND, deterministic=True)), BACKEND)


def logits(engine: Engine, case: str, prompt: str = "first") -> np.ndarray:
    ids, rows = prompt_of(case, prompt, loaded_on(case, BACKEND).config)
    found: list[np.ndarray] = []
    engine.submit_rows(ids, lambda made: found.append(made.copy()), first_row=0, rows=rows)
    while engine.busy:
        engine.step()
    return np.concatenate(found)


def changed(*parts: str, factor: float = 0.0) -> Callable[[str, np.ndarray], np.ndarray]:
    return lambda name, values: values * np.float32(factor) if any(part in name for part in parts) else values


@pytest.mark.parametrize(
    ("case", "parts", "factor"),
    [
        ("llava_next", ("class_embedding",), 0.0),
        ("llava_next", ("pre_layrnorm.weight",), 0.5),
        *((case, (part,), 0.0) for case, part in product(("internvl", "internvl_qwen3"), ("cls_token", "position_"))),
        *((case, (part,), 2.0) for case, part in product(("internvl", "internvl_qwen3"), ("lambda_1", "lambda_2"))),
        ("internvl", ("projector.layer_norm.bias",), 0.0),
        ("internvl", ("patch_embeddings.projection.bias",), 0.0),
        ("internvl_qwen3", ("vision_tower.encoder.layer.1.attention.q_norm",), 2.0),
        ("internvl_qwen3", ("vision_tower.encoder.layer.0.attention.k_norm",), 2.0),
        ("internvl_qwen3", ("language_model.model.layers.2.self_attn.q_norm",), 2.0),
        ("internvl", ("language_model.model.layers.2.self_attn.q_proj.bias",), 0.0),
    ],
)
def test_each_special_thing_counts(case: str, parts: tuple[str, ...], factor: float) -> None:
    found = logits(engine_of(case, changed(*parts, factor=factor)), case)
    assert np.abs(found - expected(case)["logits_first"]).max() > 1e-3


def test_the_row_behind_lines_counts() -> None:
    """It comes from the model's files."""
    engine = engine_of("llava_next", changed("image_newline", factor=2.0))
    row = next(v for name, v in make_weights("llava_next").items() if name.endswith("image_newline"))
    assert engine.facts.line_end == (2 * row).tobytes()
    assert loaded_on("llava_next", BACKEND).decoder.line_end is not None
    ids, rows = prompt_of("llava_next", "first", loaded_on("llava_next", BACKEND).config)
    made = [source for source in rows.sources.values() if source.is_made]
    np.testing.assert_array_equal(made[0].values[0], row)
    other = RowSource(made[0].values * 0, is_made=True)
    sources = {digest: other if source.is_made else source for digest, source in rows.sources.items()}
    found: list[np.ndarray] = []
    engine.submit_rows(ids, lambda new: found.append(new.copy()), first_row=0, rows=type(rows)(rows.spans, sources))
    while engine.busy:
        engine.step()
    assert np.abs(np.concatenate(found) - expected("llava_next")["logits_first"]).max() > 1e-3


@pytest.mark.parametrize("case", ["internvl", "internvl_qwen3", "llava_next"])
def test_tiles_are_computed_together(case: str) -> None:
    """Several in a step give the rows of each alone."""
    engine = engine_of(case)
    images = images_of(case, loaded_on(case, BACKEND).config)
    alone = rows_made(engine, images)
    _, rows = prompt_of(case, "three", loaded_on(case, BACKEND).config)
    assert len(rows.sources) >= sum(n_tiles(case, i) for i in range(3)) - (case == "llava_next") * 3
    found = logits(engine_of(case), case, "three")
    assert np.abs(found - expected(case)["logits_three"]).max() <= 1e-4
    for i, each in enumerate(alone):
        assert np.abs(each - expected(case)[f"image_{i}"]).max() <= 1e-4


# ---- files that do not fit ------------------------------------------------------------------------------------------

SIZES_OF_TOWERS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "image_size")
INTERNVL: list[tuple[dict[str, Any], str]] = [
    ({"downsample_ratio": 0.3}, "downsample_ratio"),
    ({"downsample_ratio": 0.125}, "downsample_ratio"),
    ({"downsample_ratio": 1e-9}, "downsample_ratio"),
    ({"downsample_ratio": 0}, "downsample_ratio"),
    ({"downsample_ratio": 2**31}, "downsample_ratio"),
    ({"image_token_id": 96}, "image_token_id"),
    ({"image_token_id": -1}, "image_token_id"),
    ({"vision_feature_layer": 0}, "vision_feature_layer"),
    ({"vision_feature_layer": [-1, -2]}, "vision_feature_layer"),
    ({"vision_feature_select_strategy": "full"}, "'full'"),
    ({"projector_hidden_act": "mish"}, "mish"),
    ({"text_config": {"model_type": "gpt_oss"}}, "'gpt_oss'"),
    ({"text_config": {"model_type": "qwen3_moe"}}, "'qwen3_moe'"),
    ({"vision_config": {"model_type": "intern_vit_6b"}}, "'intern_vit_6b'"),
    ({"vision_config": {"norm_type": "batch_norm"}}, "norm_type"),
    ({"vision_config": {"use_qk_norm": True}}, "norms queries"),
    ({"vision_config": {"use_mean_pooling": False}}, "use_mean_pooling"),
    ({"vision_config": {"use_absolute_position_embeddings": False}}, "no positions"),
    ({"vision_config": {"num_channels": 4}}, "three colours"),
    ({"vision_config": {"image_size": [16, 48]}}, "image_size"),
    *(({"vision_config": {name: n}}, name) for name in (*SIZES_OF_TOWERS, "patch_size") for n in (0, 2**31)),
]
LLAVA_NEXT: list[tuple[dict[str, Any], str]] = [
    ({"image_token_index": 96}, "image_token_index"),
    ({"vision_feature_layer": 2**31}, "vision_feature_layer"),
    ({"text_config": {"model_type": "gemma"}}, "'gemma'"),
    ({"text_config": {"sliding_window": -1}}, "sliding_window"),
    ({"vision_config": {"model_type": "siglip_vision_model"}}, "'siglip_vision_model'"),
    *(({"vision_config": {name: n}}, name) for name in (*SIZES_OF_TOWERS, "patch_size") for n in (0, 2**31)),
]


@pytest.mark.parametrize(
    ("case", "changes", "sentence"),
    [*(("internvl", *each) for each in INTERNVL), *(("llava_next", *each) for each in LLAVA_NEXT)],
)
def test_configurations_that_fit_no_tower(case: str, changes: dict[str, Any], sentence: str) -> None:
    config = CASES[case] | changes
    for part in ("vision_config", "text_config"):
        config[part] = CASES[case][part] | changes.get(part, {})
    with pytest.raises(LoadError, match=sentence) as raised:
        from_hf(config, name=case)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("case", ["internvl", "internvl_qwen3", "llava_next"])
def test_missing_and_misshapen_tensors_are_refused(case: str, tmp_path: Path) -> None:
    """Each of a kind, by a sentence."""
    weights = make_weights(case)
    own = [name for name in weights if "language_model" not in name and not any(f".{i}." in name for i in (0, 2))]
    kept = [name for name in own if "post_layernorm" not in name]
    for i, name in enumerate(kept):
        rest = {other: values for other, values in weights.items() if other != name}
        wrong = rest | {name: np.zeros((3, *weights[name].shape[:1]), np.float32)}
        for kind, made in (("cut", rest), ("wrong", wrong)):
            if kind == "cut" and (name.endswith(".bias") or "patch" in name or ".layers.2" in name):
                continue  # without these it is another model, or one of texts
            with pytest.raises(LoadError) as raised:
                folder = write_hf(tmp_path / f"{kind}{i}", CASES[case], made)
                load(open_model([], folder), backends_here.backend("reference"))
            assert str(raised.value).endswith(".")
