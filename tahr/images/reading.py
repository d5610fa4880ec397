"""Images that somebody sent, as one model reads them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tahr.images.decoding import decoded
from tahr.images.limits import DecodedBytes, ImageLimits
from tahr.images.processors import ImageProcessor, Patches

if TYPE_CHECKING:
    from PIL.Image import Image

USUAL = ImageLimits()


@dataclass(frozen=True, slots=True, eq=False)
class ImageReader:
    """Turns bytes of images into patches. Any thread may call it; all share the memory for pixels."""

    processor: ImageProcessor
    limits: ImageLimits
    memory: DecodedBytes

    @staticmethod
    def of(processor: ImageProcessor, limits: ImageLimits = USUAL) -> "ImageReader":
        """One with memory of its own."""
        return ImageReader(processor, limits, DecodedBytes(limits.decoded_image_bytes))

    def __call__(self, data: "bytes | Image") -> Patches:
        """The patches of a file, or of an image of Pillow's."""
        with decoded(data, self.limits, self.memory) as image:
            return self.processor(image)
