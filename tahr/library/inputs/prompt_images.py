"""Images of conversations as the rows that a tower reads."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np

from tahr.engine.sequences.prompt_rows import RowSource
from tahr.errors import ConfigError, UnsupportedModel
from tahr.generation.pictures import ImageText, MessageImage, Picture, PromptImage
from tahr.images.canvases import Tiled
from tahr.images.data_uri import data_of
from tahr.images.processors import Floats, Patches
from tahr.images.reading import ImageReader
from tahr.images.sizing import LongestEdge, WholePatches
from tahr.kv.prefix import HASH_BYTES
from tahr.library.inputs.image_inputs import opened
from tahr.library.inputs.tile_marks import line_by_line, marked, tiles_of
from tahr.models.config.record import ChatVisionConfig
from tahr.models.towers.rows import merged_rows, places_of, windows_of


class PromptFacts(Protocol):
    """Facts of a text model that images depend on."""

    @property
    def has_axes(self) -> bool:
        """Whether rope turns rows of images by their lines and columns."""

    @property
    def line_end(self) -> bytes:
        """The row behind each line of an image's tiles, in f32; empty: there is none."""


@dataclass(frozen=True, eq=False)
class PromptImages:
    """Turns the images of conversations into rows. Any thread may use it."""

    reader: ImageReader
    config: ChatVisionConfig
    has_axes: bool
    encode: Callable[[str], list[int]]  # tokens of a text with names of special ones, for the marks of tiles
    line_ends: tuple[int, int] | None  # tokens behind a line of an image and behind its last; None: there are none
    row_behind_lines: PromptImage | None = None  # row behind lines of tiles; None: there is none

    @staticmethod
    def of(
        reader: ImageReader, config: ChatVisionConfig, facts: PromptFacts, encode: Callable[[str], list[int]]
    ) -> "PromptImages":
        """One whose tokens the vocabulary has."""
        names = config.place.line_ends
        found = [encode(name) for name in names or ()]
        if any(len(tokens) != 1 for tokens in found):
            raise UnsupportedModel(f"The vocabulary has no {' or no '.join(names or ())}, which end lines of images.")
        ends = (found[0][0], found[1][0]) if found else None
        row = np.frombuffer(facts.line_end, np.float32)
        return PromptImages(reader, config, facts.has_axes, encode, ends, as_prompt_image(row) if len(row) else None)

    @property
    def placeholder(self) -> int:
        """The token that the model's template writes for an image."""
        return self.config.placeholder

    @property
    def reworded(self) -> dict[str, str]:
        """The text that the model's template writes for an image, and what takes its place."""
        place = self.config.place
        return {place.written: place.around} if place.written else {}

    def read(self, sent: MessageImage) -> Picture:
        """An image; an error names its place."""
        try:
            return self._read(sent.data, sent.n_most)
        except ConfigError as error:
            raise type(error)(f"{sent.place}: {error}") from error

    def _read(self, image: Any, n_most: int | None) -> Picture:
        limits = self.reader.limits
        if isinstance(image, ImageText):
            image = data_of(image.text, limits.max_image_bytes)
        data = opened(image, limits.max_image_bytes)
        patches = (self._shrinking(n_most) if n_most else self.reader)(data)
        # The same pixels in another form are the same rows.
        return self.of_image(patches, data if isinstance(data, bytes) else patches.values.tobytes())

    def of_image(self, patches: Patches, content: bytes) -> Picture:
        """An image as rows; one in tiles as those of each, between the tokens that say where it is."""
        if patches.grid is None:
            image = self.of_patches(patches, content)
            if self.line_ends is None:
                return (image,)
            line_end, last = self.line_ends
            return replace(image, line_end=line_end), [last]
        n_high, n_wide = patches.grid
        tiles = [
            self.of_patches(tile, f"tile {i} of {n_high}x{n_wide} ".encode() + content)
            for i, tile in enumerate(tiles_of(patches))
        ]
        if self.row_behind_lines:
            return line_by_line(tiles, patches, self.row_behind_lines)
        return marked(tiles, n_high, n_wide, self.encode) if self.config.place.tiles == "marked" else tiles

    def of_patches(self, patches: Patches, content: bytes) -> PromptImage:
        """An image whose pixels are read; all its rows depend on is in `content` and its size."""
        n_high, n_wide = patches.n_high, patches.n_wide
        digest = blake2b(f"{n_high}x{n_wide} ".encode() + content, digest_size=HASH_BYTES, key=self._settings).digest()
        table = self.reader.processor.table  # numbers of all pixels
        source = replace(source_of(patches, self.config), is_finite=bool(np.isfinite(table).all()))
        return PromptImage(source, digest, n_high // self.config.merge, n_wide // self.config.merge)

    def _shrinking(self, n_most: int) -> ImageReader:
        """A reader whose images have so many tokens at most, unless all of the model's have one size."""
        processor = self.reader.processor
        if isinstance(processor.sizing, Tiled):
            made = replace(processor, sizing=processor.sizing.for_tokens(n_most, self.config.n_fixed_rows))
        elif isinstance(processor.sizing, WholePatches | LongestEdge):
            made = replace(processor, sizing=processor.sizing.within(n_most))
        else:
            return self.reader
        return replace(self.reader, processor=made)

    @cached_property
    def _settings(self) -> bytes:
        """A digest of all that rows depend on beside the image."""
        processor = replace(self.reader.processor, table=np.zeros((0, 3), np.float32))
        text = f"{processor} {self.config}".encode()
        return blake2b(text + self.reader.processor.table.tobytes(), digest_size=HASH_BYTES).digest()


def as_prompt_image(row: Floats) -> PromptImage:
    """A row that is the model's own."""
    digest = blake2b(row.tobytes(), digest_size=HASH_BYTES, key=b"row").digest()
    return PromptImage(RowSource(row.reshape(1, -1), is_made=True), digest, 1, 1)


def source_of(patches: Patches, cfg: ChatVisionConfig) -> RowSource:
    """The patches of an image as its tower reads them: square by square, and window by window if it has windows."""
    values = merged_rows(patches.values, patches.n_high, patches.n_wide, cfg)
    outputs = np.arange(0, len(patches.values), cfg.n_merged, dtype=np.int32)
    if cfg.side:
        return RowSource(values, outputs)
    places = places_of(patches.n_high, patches.n_wide, cfg.merge)
    places = np.concatenate([np.zeros_like(places[:1]), places])
    if not cfg.window:
        return RowSource(values, outputs, places)
    n_high = patches.n_high // cfg.merge
    n_wide = patches.n_wide // cfg.merge
    order, n_squares = windows_of(n_high, n_wide, cfg.window)
    of_square = np.arange(cfg.n_merged)
    rows = (order[:, None] * cfg.n_merged + of_square).reshape(-1)
    return RowSource(
        values[rows],
        outputs,
        places[:, rows],
        windows=n_squares * cfg.n_merged,
        order=order,
    )
