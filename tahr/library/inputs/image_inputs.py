"""Images on their way into a tower: read, cut into patches, made rows."""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from tahr.backends.api import Floats
from tahr.engine.sequences.prompt_rows import RowSource
from tahr.errors import ConfigError
from tahr.images.reading import ImageReader
from tahr.library.inputs.arguments import short
from tahr.models.config.record import VisionConfig
from tahr.models.towers.rows import input_rows
from tahr.regular_file import read_bytes

# A file's bytes, a path, an image of Pillow's, or its pixels in RGB [height, width, 3].
ImageInput = Any
NO_IMAGES = "This model embeds texts alone: leave the images out, or choose one that embeds both, such as CLIP."


@dataclass(frozen=True, slots=True, eq=False)
class ImageRows:
    """An image as a tower reads it."""

    source: RowSource  # a row per patch and perhaps one more; its vector is made of the last
    n_patches: int


@dataclass(frozen=True, slots=True, eq=False)
class ImageInputs:
    """Turns images into the rows that one model's tower reads. Any thread may use it."""

    reader: ImageReader
    config: VisionConfig

    def read(self, image: ImageInput) -> ImageRows:
        """One image, in any of the forms that are taken."""
        patches = self.reader(opened(image, self.reader.limits.max_image_bytes))
        values = input_rows(patches.values, patches.n_high, patches.n_wide, self.config)
        return ImageRows(whole_image(values), len(patches.values))


def whole_image(values: Floats) -> RowSource:
    """Input of a tower that gives one row: what becomes of the last of these."""
    return RowSource(values, np.array([len(values) - 1], np.int32))


def opened(image: Any, most_bytes: int) -> Any:
    """Bytes, or an image of Pillow's."""
    if isinstance(image, str | PathLike):
        return bytes_at(Path(image), most_bytes)
    if isinstance(image, bytes) or hasattr(image, "getbands"):
        return image
    if isinstance(image, bytearray | memoryview):
        return bytes(image)
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3:
        from tahr.images.decoding import image_of

        return image_of(image)
    raise ConfigError(
        f"The image is {short(image)}, but it must be a path, the bytes of a file, an image of Pillow's, or an array "
        "of bytes [height, width, 3]."
    )


def bytes_at(path: Path, most_bytes: int) -> bytes:
    try:
        return read_bytes(path, most_bytes)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"The image {path} cannot be read ({reason}): check the path and its size.") from error


def several_images(images: Any) -> tuple[list[ImageInput], bool]:
    """The images, and whether it was one alone."""
    if images is None:
        return [], False
    if isinstance(images, list | tuple):
        return list(images), False
    return [images], True


Images = ImageInput | ListOf[ImageInput] | None
