"""Bytes that are no images, damaged ones, and those made to take all memory: each refused with a sentence."""

import re
import time
from collections.abc import Callable
from io import BytesIO
from threading import Event, Thread

import numpy as np
import pytest
from PIL import Image

from image_cases import png_header
from tahr.images.decoding import check_scans, decoded
from tahr.images.errors import BadImage, ImageTooLarge
from tahr.images.limits import DecodedBytes, ImageLimits

LIMITS = ImageLimits()
FORMS = ["JPEG", "PNG", "WEBP", "AVIF"]


def read(data: bytes, limits: ImageLimits = LIMITS) -> tuple[int, int]:
    with decoded(data, limits, DecodedBytes(limits.decoded_image_bytes)) as image:
        return image.size


def photo(form: str, size: int = 48) -> bytes:
    out = BytesIO()
    noise = np.random.default_rng(1).integers(0, 255, (size, size, 3), np.uint8)
    Image.fromarray(noise).save(out, form)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"hello", "no image that Tahr knows"),
        (b"\0" * 5000, "no image that Tahr knows"),
        (b"  <svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        (b"<?xml version='1.0'?><svg/>", "SVG"),
        (b"<!doctype html><p>", "a web page"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "PostScript"),
        (b"%PDF-1.7", "PDF"),
        (b"II*\0\x08\0\0\0", "TIFF"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "HEIC"),
    ],
)
def test_what_is_no_image(data: bytes, words: str) -> None:
    with pytest.raises(BadImage, match=words) as raised:
        read(data)
    assert str(raised.value).endswith(".")


@pytest.mark.parametrize("form", FORMS)
def test_files_cut_off_at_every_tenth(form: str) -> None:
    data = photo(form)
    for tenth in range(10):
        with pytest.raises(BadImage):
            read(data[: len(data) * tenth // 10])


@pytest.mark.parametrize("form", FORMS)
def test_flipped_bits(form: str) -> None:
    """An image, or a refusal: never anything else."""
    data = photo(form, 16)
    rng = np.random.default_rng(2)
    for _ in range(1000):
        flipped = bytearray(data)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            flipped[place] ^= 1 << int(rng.integers(8))
        try:
            width, height = read(bytes(flipped))
        except BadImage as error:
            assert str(error).endswith(".")
        else:
            assert width * height <= LIMITS.max_image_pixels


@pytest.mark.parametrize("size", [(30_000, 30_000), (8_001, 8_000), (60_000, 1), (1, 60_000), (1 << 31, 1 << 31)])
def test_bombs_are_refused_by_their_headers(size: tuple[int, int]) -> None:
    with pytest.raises(BadImage):
        read(png_header(*size))


def scanned(n_scans: int) -> bytes:
    """A progressive JPEG whose first scan comes again and again, with a file behind its end."""
    out = BytesIO()
    Image.new("RGB", (64, 64), "red").save(out, "JPEG", progressive=True)
    data = out.getvalue()
    begin = data.index(b"\xff\xda")
    end = begin + re.search(rb"\xff[^\x00\xd0-\xd7]", data[begin + 2 :]).start() + 2  # type: ignore[union-attr]
    behind = data.rindex(b"\xff\xd9")
    return data[:behind] + data[begin:end] * n_scans + data[behind:] + b"\xff\xda\0\x02" * 1000


def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded() -> None:
    check_scans(scanned(20))
    for n_scans in (64, 60_000):
        began = time.process_time()
        with pytest.raises(BadImage, match="more than 64 scans"):
            check_scans(scanned(n_scans))
        assert time.process_time() - began < 2
    with pytest.raises(BadImage, match="or 10000 segments"):
        check_scans(b"\xff\xd8" + b"\xff\xe1\0\x02" * 20_000)


def test_lines_are_refused() -> None:
    with pytest.raises(BadImage, match="200 times as long"):
        read(png_header(2010, 10))


def test_a_file_with_too_many_bytes_or_pixels() -> None:
    data = photo("PNG")
    with pytest.raises(ImageTooLarge, match=f"has {len(data)} bytes, but 100 are allowed"):
        read(data, ImageLimits(max_image_bytes=100))
    with pytest.raises(ImageTooLarge, match="48 x 48 pixels, but 2303 are allowed"):
        read(data, ImageLimits(max_image_pixels=2303))


def test_a_picture_of_many_frames_is_one_picture() -> None:
    frames = [Image.new("P", (40, 40), i % 250) for i in range(1000)]
    out = BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
    assert read(out.getvalue()) == (40, 40)


def test_decoded_pixels_share_one_limit() -> None:
    """Who comes too much waits; an image larger than the limit has all of it for itself."""
    memory = DecodedBytes(100)
    entered = Event()

    def waits(n: int) -> Callable[[], None]:
        def work() -> None:
            with memory.reserved(n):
                assert memory.n_used <= 100
                entered.set()

        return work

    with memory.reserved(60):
        thread = Thread(target=waits(1000))
        thread.start()
        assert not entered.wait(0.1)
        with memory.reserved(40):
            assert memory.n_used == 100
    thread.join(10)
    assert entered.is_set() and memory.n_used == 0
