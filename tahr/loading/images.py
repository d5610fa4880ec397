"""The reader of images that a checkpoint describes."""

from dataclasses import replace
from pathlib import Path

from tahr.config import EngineConfig
from tahr.errors import ConfigError, UnsupportedModel
from tahr.images.canvases import Centred, Pressed, Tiled
from tahr.images.limits import ImageLimits
from tahr.images.processors import ImageProcessor, make_processor, open_processor, read_preprocessor
from tahr.images.reading import ImageReader
from tahr.images.sizing import LongestEdge, WholePatches
from tahr.images.tiles import Tiling
from tahr.models.config.fields import Fields
from tahr.models.config.record import ChatVisionConfig, ModelConfig, VisionConfig
from tahr.models.loader.load import OpenedModel

# Keys say how tiles stand in a prompt.
TILES = {"marked": Tiling, "plain": Pressed, "lines": Centred}


def image_reader(
    directory: Path | None, source: OpenedModel, model: ModelConfig, config: EngineConfig
) -> ImageReader | None:
    """The processor that a checkpoint describes, with the configured limits; None of a model that reads texts alone."""
    if model.chat_vision:
        return picture_reader(preprocessor_of(directory, source), model.chat_vision, config)
    vision = model.vision
    if vision is None or directory is None:
        return None
    processor = open_processor(directory, vision.processor, vision.patch_size)
    check_patches(processor, vision)
    return ImageReader.of(processor, limits_of(config))


def preprocessor_of(directory: Path | None, source: OpenedModel) -> Fields:
    """The description of images in the files of a model that chats about them."""
    if directory:
        return read_preprocessor(directory)
    return Fields(source.config, "The model's mmproj file").part("preprocessor_config")


def picture_reader(described: Fields, vision: ChatVisionConfig, config: EngineConfig) -> ImageReader:
    """The processor of a model that chats about images, which makes no image longer than a tower's step."""
    processor = make_processor(described, vision.processor, vision.patch_size)
    if vision.side:
        return ImageReader.of(of_one_size(processor, vision, config), limits_of(config))
    if isinstance(processor.sizing, LongestEdge):
        squares = replace(processor.sizing, factor=vision.patch_size * vision.merge)
        made = replace(processor, sizing=squares.within(config.image_max_tokens), merge=vision.merge)
        return ImageReader.of(made, limits_of(config))
    if not isinstance(processor.sizing, WholePatches) or processor.merge != vision.merge:
        raise UnsupportedModel(
            f"The model's preprocessor_config.json joins {processor.merge} patches on a side, but its tower joins "
            f"{vision.merge}: the two do not belong together. Fetch the model again."
        )
    sizing = processor.sizing.within(config.image_max_tokens)
    return ImageReader.of(replace(processor, sizing=sizing), limits_of(config))


def of_one_size(processor: ImageProcessor, vision: ChatVisionConfig, config: EngineConfig) -> ImageProcessor:
    """A processor whose images, or tiles of them, have the size that the tower reads; one that makes others is refused,
    and a limit that none of its images keeps."""
    sizing = processor.sizing
    splits = isinstance(sizing, Tiled)
    made = (sizing.tile, sizing.tile) if isinstance(sizing, Tiled) else processor.size
    if splits != bool(vision.place.tiles) or (splits and not isinstance(sizing, TILES[vision.place.tiles])):
        raise UnsupportedModel(
            "The model's preprocessor_config.json splits images otherwise than its tower reads them: the two do not "
            "belong together. Fetch the model again."
        )
    if made is None or [pixels // vision.patch_size for pixels in made] != [vision.side] * 2:
        raise UnsupportedModel(
            f"The model's preprocessor_config.json makes images of {made or 'any size'}, but its tower reads "
            f"{vision.side} patches of {vision.patch_size} pixels on a side: the two do not belong together. Fetch the "
            "model again."
        )
    n_rows = vision.n_fixed_rows
    if n_rows > config.image_max_tokens:
        raise ConfigError(
            f"image_max_tokens is {config.image_max_tokens}, but an image of this model has at least {n_rows} tokens: "
            "allow as many, or choose another model."
        )
    if isinstance(sizing, Tiled):
        sizing = sizing.for_tokens(config.image_max_tokens, n_rows)
    return replace(processor, sizing=sizing, merge=vision.merge)


def limits_of(config: EngineConfig) -> ImageLimits:
    return ImageLimits(config.max_image_bytes, config.max_image_pixels, config.decoded_image_bytes)


def check_patches(processor: ImageProcessor, vision: VisionConfig) -> None:
    """Refuse a processor that makes other images than the tower reads."""
    wanted = vision.n_patches
    if vision.resized:
        fits = processor.n_patches is not None and processor.n_patches <= vision.n_most_patches and processor.by_pixel
        made = f"up to {processor.n_patches} patches"
        wanted = vision.n_most_patches
    else:
        fits = processor.size is not None and n_patches(processor.size, vision.patch_size) == wanted
        made = (
            "images of any size" if processor.size is None else f"images of {processor.size[1]} x {processor.size[0]}"
        )
    if not fits:
        raise UnsupportedModel(
            f"The model's preprocessor_config.json makes {made}, but its tower reads {wanted} patches of "
            f"{vision.patch_size} pixels: the two do not belong together. Fetch the model again."
        )


def n_patches(size: tuple[int, int], patch_size: int) -> int:
    return (size[0] // patch_size) * (size[1] // patch_size)
