"""Images become the numbers that transformers' processors with Pillow make of them, bit for bit."""

import json
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from image_cases import CASES, PATCH_SIZE, PROCESSORS, case_name, digests, png
from tahr.errors import TahrError
from tahr.images.canvases import Centred, Pressed, Tiled
from tahr.images.decoding import decoded
from tahr.images.limits import DecodedBytes, ImageLimits
from tahr.images.processors import ImageProcessor, open_processor
from tahr.images.sizing import LongestEdge, WholePatches
from tahr.images.tiles import Tiling

LIMITS = ImageLimits()
FAMILY = "CLIP"


def processor(folder: Path, config: dict[str, Any], name: str = "preprocessor_config.json") -> ImageProcessor:
    (folder / name).write_text(json.dumps(config))
    return open_processor(folder, FAMILY, PATCH_SIZE)


def numbers(made: ImageProcessor, data: bytes) -> np.ndarray:
    """In the order of transformers: colours first, or rows of patches where it makes these itself; tile by tile."""
    with decoded(data, LIMITS, DecodedBytes(1 << 30)) as image:
        values = made.pixel_values(image)
    if isinstance(made.sizing, Tiled):
        side = values.shape[1]
        return values.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)
    return made.patches(values).values if made.by_pixel else values.transpose(2, 0, 1)


@pytest.mark.parametrize("name", PROCESSORS)
def test_numbers_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    made = processor(tmp_path, PROCESSORS[name])
    found = {
        case_name(*case): sha256(np.ascontiguousarray(numbers(made, png(*case))).tobytes()).hexdigest()[:16]
        for case in CASES
    }
    assert found == digests()[name]


def test_patches_follow_each_other_from_the_top_left(tmp_path: Path) -> None:
    made = processor(tmp_path, {"size": 32, "crop_size": {"height": 32, "width": 48}, "image_processor_type": "CLIP"})
    values = np.random.default_rng(0).standard_normal((33, 50, 3)).astype(np.float32)
    found = made.patches(values)
    assert (found.n_high, found.n_wide, found.values.shape) == (2, 3, (6, 3 * PATCH_SIZE**2))
    fourth = values[16:32, 0:16]
    np.testing.assert_array_equal(found.values[3], fourth.transpose(2, 0, 1).reshape(-1))


def test_patches_of_tiles(tmp_path: Path) -> None:
    """Tile by tile; pixels beside the last patch of a tile are left out."""
    made = processor(tmp_path, PROCESSORS["idefics3_odd"])
    with decoded(png("RGB", 640, 427), LIMITS, DecodedBytes(1 << 30)) as image:
        tiles = made.pixel_values(image).reshape(-1, 130, 130, 3)
        found = made(image)
    assert (found.grid, len(tiles), found.n_wide) == ((2, 3), 7, 8)
    last = tiles[6, 112:128, 112:128].transpose(2, 0, 1).reshape(-1)
    np.testing.assert_array_equal(found.values[-1], last)
    np.testing.assert_array_equal(found.values[64], tiles[1, :16, :16].transpose(2, 0, 1).reshape(-1))


@pytest.mark.parametrize("n_most", [1, 2, 3, 4, 5, 16, 64, 4096])
@pytest.mark.parametrize("size", [(1, 1), (1, 200), (200, 1), (640, 427), (500, 500), (3000, 17), (17, 3000)])
def test_images_of_any_size_keep_a_limit(size: tuple[int, int], n_most: int) -> None:
    width, height = LongestEdge(1540, 28).within(n_most)(*size)
    assert width % 28 == height % 28 == 0 and 0 < width // 28 * (height // 28) <= n_most


@pytest.mark.parametrize("n_most", [1, 2, 4, 5, 9, 10, 17, 64])
@pytest.mark.parametrize("size", [(1, 200), (640, 427), (500, 500), (37, 511), (3000, 17)])
def test_tiles_keep_a_limit(size: tuple[int, int], n_most: int) -> None:
    rule = Tiling(128, 1000).within(n_most)
    n_high, n_wide = rule.grid(*size)
    assert n_high * n_wide + (n_high * n_wide > 1) <= min(n_most, rule.n_most)


@pytest.mark.parametrize("n_most", [9, 27, 28, 40, 100, 4096])
@pytest.mark.parametrize("size", [(1, 200), (640, 427), (500, 500), (37, 511), (3000, 17)])
def test_grids_keep_a_limit(size: tuple[int, int], n_most: int) -> None:
    """Nine tokens a tile, and one behind each line of patches where images stand in the middle."""
    n_high, n_wide = Pressed(48, 1, 12).for_tokens(n_most, 9).grid(*size)
    assert 9 * (n_high * n_wide + (n_high * n_wide > 1)) <= n_most
    rule = Centred(48, ((48, 48), (48, 96), (96, 48), (96, 96), (144, 48))).for_tokens(n_most, 9)
    lines, columns = rule.kept(*size, side=3)
    assert 9 + len(lines) * (len(columns) + 1) <= n_most
    n_high, n_wide = rule.grid(*size)
    assert 9 + 3 * n_high * (3 * n_wide + 1) <= n_most or not rule.sizes


@pytest.mark.parametrize("n_most", [1, 4, 64, 150, 4096])
@pytest.mark.parametrize("size", [(10, 2000), (8000, 40), (40, 114), (1, 1), (3000, 17), (4000, 4000)])
def test_squares_keep_a_limit(size: tuple[int, int], n_most: int) -> None:
    """Lines have a square across, however little that leaves them along."""
    width, height = WholePatches(32, 65_536, 1 << 24).within(n_most)(*size)
    assert width % 32 == height % 32 == 0
    assert 1 <= width * height // 32**2 <= n_most


def test_settings_beside_a_whole_processor(tmp_path: Path) -> None:
    """Newer checkpoints keep them in another file."""
    inside = processor(tmp_path, {"image_processor": PROCESSORS["siglip_384"]}, "processor_config.json")
    plain = processor(tmp_path, PROCESSORS["siglip_384"])
    data = png("RGB", 37, 511)
    np.testing.assert_array_equal(numbers(inside, data), numbers(plain, data))


def test_a_family_has_its_own_where_nothing_is_said(tmp_path: Path) -> None:
    assert open_processor(tmp_path, "Siglip2", 16).by_pixel
    assert open_processor(tmp_path, "CLIP", 16).crop == (224, 224)


ODD: list[Any] = [True, -1, 0, 10**9, 0.5, float("nan"), "x", [], [1], {}, {"width": 3}, {"shortest_edge": "a"}]
ODD += [[[64, 64]] * 65, [[2**31, 64]], [[64, 65]], [[0, 0]], [[64]], ["64"], 2**31, 8192]
FIELDS = [
    *("image_processor_type", "size", "crop_size", "image_mean", "image_std", "rescale_factor", "resample"),
    *("do_resize", "do_center_crop", "do_rescale", "do_normalize", "patch_size", "max_num_patches"),
    *("max_image_size", "do_image_splitting", "do_pad", "do_pan_and_scan"),
    *("image_grid_pinpoints", "min_patches", "max_patches"),
]


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize(
    "kind", ["clip", "siglip2", "llava", "smolvlm", "gemma3", "pixtral", "llava_next_small", "got_ocr2_small"]
)
def test_odd_settings(name: str, kind: str, tmp_path: Path) -> None:
    """Each is read as something, or refused with a sentence."""
    data = png("RGB", 31, 33)
    for odd in ODD:
        try:
            made = processor(tmp_path, PROCESSORS[kind] | {name: odd})
        except TahrError as error:
            assert str(error).endswith(".")
        else:
            assert numbers(made, data).nbytes < 1 << 28


# ---- files ------------------------------------------------------------------------------------------------------


def rgb(data: bytes) -> np.ndarray:
    with decoded(data, LIMITS, DecodedBytes(1 << 30)) as image:
        return np.array(image)


def file_of(image: Image.Image, form: str, **more: Any) -> bytes:
    out = BytesIO()
    image.save(out, form, **more)
    return out.getvalue()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP"])
def test_formats(form: str) -> None:
    data = file_of(Image.open(BytesIO(png("RGB", 31, 33))), form)
    np.testing.assert_array_equal(rgb(data), np.array(Image.open(BytesIO(data)).convert("RGB")))


@pytest.mark.parametrize("turn", range(1, 9))
def test_pictures_are_the_right_way_up(turn: int) -> None:
    exif = Image.Exif()
    exif[0x112] = turn
    plain = np.zeros((24, 16, 3), np.uint8)
    plain[:8, :8] = 255  # bright at the top left
    turned = {
        1: plain, 2: plain[:, ::-1], 3: plain[::-1, ::-1], 4: plain[::-1], 5: plain.swapaxes(0, 1),
        6: np.rot90(plain, 1), 7: np.rot90(plain[::-1], 1), 8: np.rot90(plain, -1),
    }[turn]  # fmt: skip
    data = file_of(Image.fromarray(np.ascontiguousarray(turned)), "PNG", exif=exif)
    np.testing.assert_array_equal(rgb(data), plain)


def test_transparency_is_dropped_and_four_inks_become_colours() -> None:
    clear = np.full((4, 4, 4), (10, 20, 30, 0), np.uint8)
    assert (rgb(file_of(Image.fromarray(clear, "RGBA"), "PNG")) == (10, 20, 30)).all()
    inks = file_of(Image.new("CMYK", (4, 4), (0, 255, 255, 0)), "JPEG")
    assert (np.abs(rgb(inks).astype(int) - (255, 0, 0)) < 8).all()


def test_a_moving_picture_is_its_first_frame() -> None:
    frames = [Image.new("RGB", (8, 8), (i, 0, 0)) for i in (200, 10, 20)]
    for form in ("GIF", "WEBP", "PNG"):
        data = file_of(frames[0], form, save_all=True, append_images=frames[1:])
        assert (rgb(data)[..., 0] > 150).all()
