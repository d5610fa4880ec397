"""Prompts of a case as an engine takes them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

import backends_here
from chat_vision_cases import (
    CASES,
    SIZES,
    SPLIT,
    TILES,
    make_weights,
    mark_tokens,
    pixels,
    side_of,
    template_tokens,
)
from engines import Tally
from folders import new_folder
from model_files import write_hf
from tahr.config import EngineConfig, SamplingParams
from tahr.engine.engine import Engine
from tahr.engine.sequences.prompt_rows import PromptRows, spans_of
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.engine.sequences.sequence import Sequence as Seq
from tahr.executor.local import LocalExecutor
from tahr.generation.pictures import ImageRun, MessageImage, Picture, Pictures, PromptImage
from tahr.images.canvases import Centred
from tahr.images.processors import ImageProcessor
from tahr.images.reading import ImageReader
from tahr.images.sizing import Exactly
from tahr.library.inputs.prompt_images import PromptImages
from tahr.loading.builder import build_engine
from tahr.models.config.record import ModelConfig
from tahr.models.loader import Loaded, load, open_model

SMALL = {"context_size": 256, "kv_dtype": "f32", "page_size": 8, "image_max_tokens": 16, "feature_cache_bytes": 1 << 16}


@cache
def loaded_on(case: str, name: str) -> Loaded:
    return load(open_model([], checkpoint(case)), backends_here.backend(name, deterministic=True))


@cache
def checkpoint(case: str) -> Path:
    return write_hf(new_folder("chat-vision"), CASES[case], make_weights(case))


def engine_of(case: str, name: str, **options: object) -> Engine:
    return engine_for(loaded_on(case, name), name, **options)


def engine_for(loaded: Loaded, name: str, **options: object) -> Engine:
    config = EngineConfig(**{**SMALL, **options})  # type: ignore[arg-type]
    return build_engine(backends_here.backend(name, deterministic=True), loaded.decoder, config)[0]


class Facts(NamedTuple):
    """What is known of a text model."""

    has_axes: bool
    line_end: bytes


def reader_of(case: str, config: ModelConfig) -> PromptImages:
    """One that is given the numbers of pixels themselves."""
    vision = config.chat_vision
    assert vision
    blank = np.zeros((256, 3), np.float32)
    processor = ImageProcessor(Exactly(1, 1), 3, None, blank, vision.patch_size, merge=vision.merge)
    has_axes = any(kind.rope.axes for kind in config.kinds)
    row = next((values for name, values in make_weights(case).items() if name.endswith("image_newline")), None)
    facts = Facts(has_axes, b"" if row is None else row.tobytes())
    return PromptImages.of(ImageReader.of(processor), vision, facts, mark_tokens)


def images_of(case: str, config: ModelConfig) -> list[Picture]:
    reader = reader_of(case, config)
    processor = reader.reader.processor
    found = [processor.patches(values.transpose(1, 2, 0)) for values in pixels(case)]
    if case in SPLIT:
        found = [replace(patches, grid=grid) for patches, grid in zip(found, TILES, strict=True)]
    if case == "llava_next":
        sizes = CASES[case]["image_grid_pinpoints"]
        rule = Centred(CASES[case]["vision_config"]["image_size"], tuple((wide, high) for high, wide in sizes))
        kept = [rule.kept(wide, high, side_of(case)) for high, wide in SIZES]
        found = [replace(patches, kept=each) for patches, each in zip(found, kept, strict=True)]
    return [reader.of_image(patches, patches.values.tobytes()) for patches in found]


class Known:
    """A reader of images by their number."""

    def __init__(self, case: str, config: ModelConfig):
        self.images = images_of(case, config)
        reader = reader_of(case, config)
        self.placeholder = reader.placeholder
        self.has_axes = reader.has_axes

    def read(self, sent: MessageImage) -> Picture:
        return self.images[sent.data]


def prompt_of(case: str, name: str, config: ModelConfig) -> tuple[list[int], PromptRows]:
    tokens, images = template_tokens(case, name)
    return Pictures(Known(case, config)).placed(tokens, [MessageImage(i, f"image {i}") for i in images])


def submitted(engine: Engine, case: str, name: str, config: ModelConfig, params: SamplingParams) -> Seq:
    tokens, rows = prompt_of(case, name, config)
    return engine.submit(ResolvedRequest(tokens, params, Tally, rows=rows))


def rows_made(engine: Engine, images: Sequence[Picture]) -> list[np.ndarray]:
    """What the tower makes of images, those of their tiles below each other."""
    made = []
    for image in images:
        pieces = [piece for piece in image if not isinstance(piece, list)]
        made.append(np.concatenate([rows_of_piece(engine, piece) for piece in pieces]))
    return made


def rows_of_piece(engine: Engine, piece: PromptImage | ImageRun) -> np.ndarray:
    if isinstance(piece, PromptImage):
        return rows_of(engine, piece)
    return rows_of(engine, piece.image)[piece.first : piece.first + piece.n_rows]


def rows_of(engine: Engine, image: PromptImage) -> np.ndarray:
    executor, rows = engine.executor, engine.scheduler.rows
    assert isinstance(executor, LocalExecutor) and rows
    store = executor.executed[0].inputs.rows
    assert store
    rows_alone = PromptRows(tuple(spans_of(0, image.digest, image.n_rows)), {image.digest: image.source})
    engine.submit_rows([0] * image.n_rows, lambda _: None, rows=rows_alone)
    while engine.busy:
        engine.step()
    return executor.backend.read_rows(store, rows.slots.targets(image.digest))
