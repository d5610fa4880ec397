"""Bytes become pixels, with Pillow: few formats, sizes checked before a pixel is decoded, damaged files refused."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING

from tahr.errors import ConfigError, install_extra
from tahr.images.errors import BadImage, ImageTooLarge
from tahr.images.limits import MAX_RATIO, MAX_SIDE, DecodedBytes, ImageLimits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP")
READABLE = "send JPEG, PNG, WebP, AVIF, GIF or BMP"
# First bytes of files that people send in vain.
FOREIGN = (
    (b"<svg", "SVG"),
    (b"<?xml", "SVG or another XML file"),
    (b"<!DOCTYPE", "a web page"),
    (b"<html", "a web page"),
    (b"%!PS", "PostScript"),
    (b"%PDF", "PDF"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
)
# A JPEG: its beginning, its markers but for those inside of coded data, and how much of it is decoded.
JPEG = b"\xff\xd8\xff"
MARKER = re.compile(rb"\xff+[^\x00\xff\xd0-\xd7]")
SCAN = 0xDA
END_OF_IMAGE = 0xD9
MAX_SCANS = 64  # a progressive file has about ten
MAX_SEGMENTS = 10_000
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1")
# Pillow keeps 4 bytes of a pixel, and twice while it turns or converts an image.
PIXEL_BYTES = 8


def check_pillow() -> None:
    """Refuse to read images where the library is missing that does it."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"Images need Pillow, which is not installed: run {install_extra('images')}.") from error


@contextmanager
def decoded(data: "bytes | Image", limits: ImageLimits, memory: DecodedBytes) -> Iterator["Image"]:
    """The image of a file, or one of Pillow's, in RGB and upright; of a moving picture the first frame.

    Its memory is counted inside.
    """
    check_pillow()
    if isinstance(data, bytes):
        image = opened(data, limits)
    else:
        image = data
        check_size(*image.size, limits)
    width, height = image.size
    with memory.reserved(PIXEL_BYTES * width * height):
        yield upright(image)


def image_of(pixels: "NDArray[np.uint8]") -> "Image":
    """An image of pixels in RGB."""
    check_pillow()
    from PIL import Image

    return Image.fromarray(pixels)


def opened(data: bytes, limits: ImageLimits) -> "Image":
    """The image of a file whose header alone was read."""
    from PIL import Image

    if not data:
        raise BadImage("The image is empty: send its bytes.")
    if len(data) > limits.max_image_bytes:
        raise ImageTooLarge(
            f"The image has {len(data)} bytes, but {limits.max_image_bytes} are allowed: make it smaller."
        )
    check_scans(data)
    try:
        image = Image.open(BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise ImageTooLarge(
            f"The image has more pixels than the {limits.max_image_pixels} allowed: shrink it."
        ) from error
    except Exception as error:  # whatever a damaged header makes of a decoder
        raise BadImage(f"{kind_of(data)}: {READABLE}.") from error
    check_size(*image.size, limits)
    return image


def check_scans(data: bytes) -> None:
    """Refuse a JPEG with so many scans that each pixel would be decoded thousands of times."""
    if not data.startswith(JPEG):
        return
    n_scans = 0
    at = len(JPEG) - 1
    for _ in range(MAX_SEGMENTS):
        found = MARKER.search(data, at)
        if not found or data[found.end() - 1] == END_OF_IMAGE:
            return
        n_scans += data[found.end() - 1] == SCAN
        if n_scans > MAX_SCANS:
            break
        at = found.end() + max(2, int.from_bytes(data[found.end() : found.end() + 2], "big"))
    raise BadImage(f"The image is a JPEG of more than {MAX_SCANS} scans or {MAX_SEGMENTS} segments: save it anew.")


def kind_of(data: bytes) -> str:
    """A name for the bytes, where their beginning says so."""
    start = data[:64].lstrip()
    if data[4:8] == b"ftyp" and data[8:12] in HEIC_BRANDS:
        return "The image is HEIC, which Tahr does not read"
    for magic, name in FOREIGN:
        if start.lower().startswith(magic.lower()):
            return f"The image is {name}, which Tahr does not read"
    return "The bytes are no image that Tahr knows, or its beginning is damaged"


def check_size(width: int, height: int, limits: ImageLimits) -> None:
    if width * height > limits.max_image_pixels or max(width, height) > MAX_SIDE:
        raise ImageTooLarge(
            f"The image has {width} x {height} pixels, but {limits.max_image_pixels} are allowed, and {MAX_SIDE} on a "
            "side: shrink it."
        )
    if max(width, height) > MAX_RATIO * min(width, height):
        raise BadImage(
            f"The image has {width} x {height} pixels: one side may be {MAX_RATIO} times as long as the other: crop it."
        )


def upright(image: "Image") -> "Image":
    """The pixels, turned as the camera says, without transparency."""
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image).convert("RGB")
    except Exception as error:  # decoders have many ways to fail at damaged data
        raise BadImage("The image is damaged or cut off: send the whole file.") from error
