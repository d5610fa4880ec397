"""The reader of images that a checkpoint describes."""

from pathlib import Path

from tahr.config import EngineConfig
from tahr.errors import UnsupportedModel
from tahr.images.limits import ImageLimits
from tahr.images.processors import ImageProcessor, open_processor
from tahr.images.reading import ImageReader
from tahr.models.config.record import VisionConfig


def image_reader(directory: Path | None, vision: VisionConfig | None, config: EngineConfig) -> ImageReader | None:
    """The processor that a checkpoint describes, with the configured limits; None of a model that reads texts alone."""
    if vision is None or directory is None:
        return None
    processor = open_processor(directory, vision.processor, vision.patch_size)
    check_patches(processor, vision)
    limits = ImageLimits(config.max_image_bytes, config.max_image_pixels, config.decoded_image_bytes)
    return ImageReader.of(processor, limits)


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
