"""Additions for a model that embeds images: the reader of its checkpoint, and steps that hold an image."""

from dataclasses import replace
from pathlib import Path

from tahr.backends.api import StepLimits
from tahr.config import EngineConfig
from tahr.engine.scheduling.work import SchedulerLimits
from tahr.errors import UnsupportedModel
from tahr.images.limits import ImageLimits
from tahr.images.processors import ImageProcessor, open_processor
from tahr.images.reading import ImageReader
from tahr.kv.pages import pages_for
from tahr.models.config.record import VisionConfig
from tahr.models.parts.image_tower import ImageTower


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


def with_images(
    sizes: SchedulerLimits, limits: StepLimits, tower: ImageTower, page_size: int
) -> tuple[SchedulerLimits, StepLimits]:
    """Steps that hold an image, which may be longer than any text of the model."""
    sizes = replace(
        sizes,
        prefill_chunk=max(sizes.prefill_chunk, tower.n_most),
        n_prefill_tokens=max(sizes.n_prefill_tokens, tower.n_most),
    )
    n_pages = max(limits.n_pages_per_seq, pages_for(tower.n_most, page_size))
    return sizes, replace(limits, n_tokens=sizes.n_tokens, n_pages_per_seq=n_pages)
