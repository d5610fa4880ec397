"""Image processors, as a checkpoint's preprocessor_config.json describes them: bit for bit those of transformers that
work with Pillow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tahr.errors import UnsupportedModel
from tahr.images.canvases import Centred, Pressed, Tiled
from tahr.images.sizing import Exactly, LongestEdge, MostPatches, ShortestEdge, Sizing, WholePatches
from tahr.images.tiles import MOST_EDGE, Tiling
from tahr.models.config.fields import Fields
from tahr.models.files.json_files import read_json

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]  # [height, width, 3]
Floats = NDArray[np.float32]

FILE = "preprocessor_config.json"
MOST_JSON_BYTES = 1 << 20
MOST_SIDE = 4096
MOST_PATCHES = 4096
MOST_MERGE = 16
MOST_PIXELS = 1 << 28
LONG = 64  # limit on the tiles of a grid, and on sizes to choose from
PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
BILINEAR = 2
BICUBIC = 3
LANCZOS = 1
CLIP_MEAN = [0.48145466, 0.4578275, 0.40821073]
CLIP_STD = [0.26862954, 0.26130258, 0.27577711]
HALVES = [0.5, 0.5, 0.5]


@dataclass(frozen=True, slots=True)
class Patches:
    """An image as rows of pixels, one row per patch, from the top left on; square by square where these are merged. The
    tiles of an image that was split lie below each other."""

    values: Floats  # [n, patch_size * patch_size * 3]
    n_high: int
    n_wide: int
    grid: tuple[int, int] | None = None  # rows and columns of tiles; None: the image is whole
    kept: tuple[range, range] | None = None  # lines and columns of tiles' patches with the image; None: all


@dataclass(frozen=True, slots=True, eq=False)
class ImageProcessor:
    """Resizes, crops, turns levels of colour into numbers, and cuts into patches."""

    sizing: Sizing
    resample: int  # Pillow's number of a filter
    crop: tuple[int, int] | None  # height, width
    table: Floats  # [256, 3], the number for each level of each colour
    patch_size: int
    by_pixel: bool = False  # the colours of a pixel are neighbours in a row; otherwise the pixels of a colour are
    merge: int = 1  # patches on a side of a square whose patches are neighbours
    on_white: bool = True  # a colour that a file declares transparent becomes white; channels of transparency never do

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of what it makes; None: they follow from the image."""
        if self.crop or not isinstance(self.sizing, Exactly):
            return self.crop
        return self.sizing.height, self.sizing.width

    @property
    def n_patches(self) -> int | None:
        """Limit on the patches of an image whose size is not settled."""
        return self.sizing.n_patches if isinstance(self.sizing, MostPatches) else None

    def __call__(self, image: "Image") -> Patches:
        """The patches of an RGB image."""
        values = self.pixel_values(image)
        if not isinstance(self.sizing, Tiled):
            return self.patches(values)
        # What is left of a tile beside its patches is nobody's.
        length = values.shape[1] // self.patch_size * self.patch_size
        tiles = values.reshape(-1, *values.shape[1:2] * 2, 3)[:, :length, :length]
        made = self.patches(tiles.reshape(-1, length, 3))
        grid = self.sizing.grid(*image.size)
        kept = self.sizing.kept(*image.size, made.n_wide) if isinstance(self.sizing, Centred) else None
        return replace(made, grid=grid, kept=kept)

    def pixel_values(self, image: "Image") -> Floats:
        """The numbers of all pixels, tiles below each other: [height, width, 3]."""
        image = laid_on_white(image) if self.on_white else image
        if isinstance(self.sizing, Tiled):
            pixels = self.sizing.pixels(image, self.resample)
        else:
            pixels = np.array(image.resize(self.sizing(*image.size), resample=self.resample))
        if self.crop:
            pixels = centre(pixels, *self.crop)
        values: Floats = self.table[pixels, np.arange(3)]
        return values

    def patches(self, values: Floats) -> Patches:
        """Whole patches alone: what is left at the right and at the bottom is nobody's."""
        p = self.patch_size
        m = self.merge
        n_high = values.shape[0] // (p * m) * m
        n_wide = values.shape[1] // (p * m) * m
        grid = values[: n_high * p, : n_wide * p].reshape(n_high // m, m, p, n_wide // m, m, p, 3)
        axes = (0, 3, 1, 4, 2, 5, 6) if self.by_pixel else (0, 3, 1, 4, 6, 2, 5)
        return Patches(np.ascontiguousarray(grid.transpose(axes)).reshape(n_high * n_wide, -1), n_high, n_wide)


def laid_on_white(image: "Image") -> "Image":
    """The image with the colour that counts as transparent, if there is one, replaced."""
    if image.info.get("transparency") is None:
        return image
    from PIL import Image

    clear = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), clear).convert("RGB")


def centre(pixels: Pixels, height: int, width: int) -> Pixels:
    """The middle of an image; black surrounds one that is smaller."""
    have = pixels.shape[:2]
    want = (height, width)
    if have[0] < height or have[1] < width:
        pads = [max(0, w - h) for h, w in zip(have, want, strict=True)]
        before = [-(-pad // 2) for pad in pads]
        around = [(first, pad - first) for first, pad in zip(before, pads, strict=True)]
        pixels = np.pad(pixels, [*around, (0, 0)])
        # Rounded down before the padding is added, as in transformers.
        top, left = ((h - w) // 2 + first for h, w, first in zip(have, want, before, strict=True))
    else:
        top, left = ((h - w) // 2 for h, w in zip(have, want, strict=True))
    return pixels[max(0, top) : top + height, max(0, left) : left + width]


def colour_table(f: Fields, mean: list[float], std: list[float]) -> Floats:
    """The number for each level: scaled in f64, rounded, then the mean taken away and divided in f32."""
    scale = f.number("rescale_factor", 0, 1e6, default=1 / 255) if f.flag("do_rescale", True) else 1.0
    levels = (np.arange(256, dtype=np.float64) * scale).astype(np.float32)[:, None]
    if not f.flag("do_normalize", True):
        return np.repeat(levels, 3, axis=1)
    shift = colours(f, "image_mean", mean, low=-1e6)
    divisor = colours(f, "image_std", std, low=0)
    table: Floats = (levels - shift) / divisor
    return table


def colours(f: Fields, name: str, default: list[float], low: float) -> Floats:
    """A number for each of red, green and blue."""
    stated = f.get(name)
    several = [stated] * 3 if isinstance(stated, int | float) else f.items(name, 3 if stated is not None else None)
    numbers = [Fields({name: each}, f.where).number(name, low, 1e6) for each in several or default]
    return np.array(numbers, np.float32)


def resized_to(f: Fields, sides: int | None, square: int | None) -> Sizing:
    """The rule that `size` states: one number, an edge, or both sides."""
    if not f.flag("do_resize", True):
        raise UnsupportedModel(f"{f.where} leaves images at their sizes, but the model reads one size.")
    size = f.get("size")
    if isinstance(size, Mapping) and "shortest_edge" not in size:
        part = f.part("size")
        return Exactly(part.count("width", MOST_SIDE), part.count("height", MOST_SIDE))
    if isinstance(size, Mapping) and size.get("longest_edge") is not None:
        raise UnsupportedModel(f"{f.where} limits the longest edge of images, which Tahr does not do for this model.")
    if size is None and square:
        return Exactly(square, square)
    where = f.part("size") if isinstance(size, Mapping) else Fields({"shortest_edge": size}, f.where)
    return ShortestEdge(where.count("shortest_edge", MOST_SIDE, default=sides))


def converts(f: Fields) -> bool:
    """Whether it converts images to RGB; null, as some released files have it, is no."""
    return f.flag("do_convert_rgb", "do_convert_rgb" not in f.values)


def cropped_to(f: Fields, default: bool) -> tuple[int, int] | None:
    if not f.flag("do_center_crop", default):
        return None
    size = f.get("crop_size")
    if not isinstance(size, Mapping):
        side = f.count("crop_size", MOST_SIDE, default=224)
        return side, side
    part = f.part("crop_size")
    return part.count("height", MOST_SIDE), part.count("width", MOST_SIDE)


def clip(f: Fields, patch_size: int) -> ImageProcessor:
    return ImageProcessor(
        sizing=resized_to(f, sides=224, square=None),
        resample=resample(f, BICUBIC),
        crop=cropped_to(f, default=True),
        table=colour_table(f, CLIP_MEAN, CLIP_STD),
        patch_size=patch_size,
        on_white=converts(f),
    )


def siglip(f: Fields, patch_size: int) -> ImageProcessor:
    return ImageProcessor(
        sizing=resized_to(f, sides=None, square=224),
        resample=resample(f, BICUBIC),
        crop=cropped_to(f, default=False),
        table=colour_table(f, HALVES, HALVES),
        patch_size=patch_size,
        on_white=converts(f),
    )


def siglip2(f: Fields, patch_size: int) -> ImageProcessor:
    stated = f.count("patch_size", MOST_SIDE, default=16)
    if stated != patch_size:
        raise UnsupportedModel(f"{f.where} cuts patches of {stated} pixels, but the model reads {patch_size}.")
    if not f.flag("do_resize", True):
        raise UnsupportedModel(f"{f.where} leaves images at their sizes, but patches need whole ones.")
    return ImageProcessor(
        sizing=MostPatches(f.count("max_num_patches", MOST_PATCHES, default=256), patch_size),
        resample=resample(f, BILINEAR),
        crop=None,
        table=colour_table(f, HALVES, HALVES),
        patch_size=patch_size,
        by_pixel=True,
        on_white=f.flag("do_convert_rgb"),
    )


def qwen2_vl(f: Fields, patch_size: int) -> ImageProcessor:
    stated = f.count("patch_size", MOST_SIDE, default=14)
    if stated != patch_size:
        raise UnsupportedModel(f"{f.where} cuts patches of {stated} pixels, but the model reads {patch_size}.")
    if not f.flag("do_resize", True):
        raise UnsupportedModel(f"{f.where} leaves images at their sizes, but patches need whole ones.")
    merge = f.count("merge_size", MOST_MERGE, default=2)
    size = f.part("size")
    least = f.count("min_pixels", MOST_PIXELS, default=size.count("shortest_edge", MOST_PIXELS, default=56 * 56))
    most = f.count("max_pixels", MOST_PIXELS, default=size.count("longest_edge", MOST_PIXELS, default=28 * 28 * 1280))
    return ImageProcessor(
        sizing=WholePatches(merge * patch_size, least, most),
        resample=resample(f, BICUBIC),
        crop=None,
        table=colour_table(f, CLIP_MEAN, CLIP_STD),
        patch_size=patch_size,
        merge=merge,
        on_white=converts(f),
    )


def llava(f: Fields, patch_size: int) -> ImageProcessor:
    if f.flag("do_pad"):
        raise UnsupportedModel(f"{f.where} makes images square with a border, which Tahr does not do for this model.")
    return clip(f, patch_size)


def llava_next(f: Fields, patch_size: int) -> ImageProcessor:
    made = clip(f, patch_size)
    edge = (made.sizing.length,) * 2 if isinstance(made.sizing, ShortestEdge) else made.sizing(1, 1)
    tile = edge[0]
    if any(side != tile for side in (*edge, *(made.crop or ()))):
        raise UnsupportedModel(f"{f.where} cuts tiles of {made.crop or edge} pixels out of {edge}: Tahr cuts squares.")
    return replace(made, sizing=Centred(tile, pinpoints(f, tile)), crop=None)


def pinpoints(f: Fields, tile: int) -> tuple[tuple[int, int], ...]:
    """The sizes in whole tiles that images may get: width and height."""
    stated = f.items("image_grid_pinpoints") or PINPOINTS
    wholes = range(tile, MOST_SIDE + 1, tile)
    found = [tuple(each) for each in stated[:LONG] if isinstance(each, Sequence)]
    if len(found) != len(stated) or any(len(each) != 2 or any(n not in wholes for n in each) for each in found):
        raise f.wrong("image_grid_pinpoints", f"at most {LONG} heights and widths in whole tiles of {tile} pixels")
    return tuple((int(width), int(height)) for height, width in found)


def got_ocr2(f: Fields, patch_size: int) -> ImageProcessor:
    """InternVL's, which splits images whatever its file says."""
    tiles = f.part("size")
    sides = [tiles.count(name, MOST_SIDE, default=384) for name in ("height", "width")]
    if sides[0] != sides[1] or not f.flag("do_resize", True):
        raise UnsupportedModel(
            f"{f.where} makes tiles of {sides} pixels or leaves images as they are; Tahr cuts squares."
        )
    most = f.count("max_patches", max(1, min(LONG, MOST_SIDE**2 // sides[0] ** 2)), default=12)
    return ImageProcessor(
        sizing=Pressed(sides[0], f.count("min_patches", most, default=1), most),
        resample=resample(f, BICUBIC),
        crop=None,
        table=colour_table(f, CLIP_MEAN, CLIP_STD),
        patch_size=patch_size,
        on_white=converts(f),
    )


def gemma3(f: Fields, patch_size: int) -> ImageProcessor:
    if f.flag("do_pan_and_scan"):
        raise UnsupportedModel(f"{f.where} cuts images into crops (do_pan_and_scan), which Tahr does not do.")
    return replace(siglip(f, patch_size), resample=resample(f, BILINEAR))


def idefics3(f: Fields, patch_size: int) -> ImageProcessor:
    tile = f.part("max_image_size").count("longest_edge", MOST_SIDE, default=364)
    if tile % 2 or tile < patch_size:
        raise UnsupportedModel(f"{f.where} makes tiles of {tile} pixels, but they must be even and hold a patch.")
    if not f.flag("do_resize", True):
        raise UnsupportedModel(f"{f.where} leaves images at their sizes, but tiles need whole ones.")
    longest = f.part("size").count("longest_edge", MOST_EDGE, default=4 * 364)
    return ImageProcessor(
        sizing=Tiling(tile, longest, f.flag("do_image_splitting", True)),
        resample=resample(f, LANCZOS),
        crop=None,
        table=colour_table(f, HALVES, HALVES),
        patch_size=patch_size,
        on_white=converts(f),
    )


def pixtral(f: Fields, patch_size: int) -> ImageProcessor:
    if not f.flag("do_resize", True):
        raise UnsupportedModel(f"{f.where} leaves images at their sizes, but patches need whole ones.")
    stated = f.get("patch_size")
    sides = (
        [f.part("patch_size").count(name, MOST_SIDE) for name in ("height", "width")]
        if isinstance(stated, Mapping)
        else [f.count("patch_size", MOST_SIDE, default=16)]
    )
    if any(side != patch_size for side in sides):
        raise UnsupportedModel(f"{f.where} cuts patches of {sides} pixels, but the model reads {patch_size}.")
    longest = f.part("size").count("longest_edge", MOST_SIDE, default=1024)
    return ImageProcessor(
        sizing=LongestEdge(longest, patch_size),
        resample=resample(f, BICUBIC),
        crop=None,
        table=colour_table(f, CLIP_MEAN, CLIP_STD),
        patch_size=patch_size,
        on_white=converts(f),
    )


def resample(f: Fields, default: int) -> int:
    return f.count("resample", 5, default=default, least=0)


PROCESSORS: dict[str, Callable[[Fields, int], ImageProcessor]] = {
    "CLIP": clip,
    "ChineseCLIP": clip,
    "Siglip": siglip,
    "Siglip2": siglip2,
    "Qwen2VL": qwen2_vl,
    "Qwen3VL": qwen2_vl,
    "Llava": llava,
    "LlavaNext": llava_next,
    "GotOcr2": got_ocr2,
    "Gemma3": gemma3,
    "Idefics3": idefics3,
    "Pixtral": pixtral,
    "SmolVLM": idefics3,
}
ENDINGS = ("Fast", "Pil", "ImageProcessor", "FeatureExtractor")


def open_processor(directory: Path, family: str, patch_size: int) -> ImageProcessor:
    """The processor of a checkpoint; where its files name none, that of its family."""
    return make_processor(read_preprocessor(directory), family, patch_size)


def read_preprocessor(directory: Path) -> Fields:
    """Reads the file in which a checkpoint describes its images."""
    found: Mapping[str, Any] | None = read_json(directory / FILE, dict, MOST_JSON_BYTES)
    if found is None:
        whole = read_json(directory / "processor_config.json", dict, MOST_JSON_BYTES) or {}
        found = Fields(whole, "processor_config.json").part("image_processor").values
    return Fields(found, FILE)


def make_processor(f: Fields, family: str, patch_size: int) -> ImageProcessor:
    """A processor as its description says; where this names none, that of the family."""
    name = f.text("image_processor_type") or f.text("feature_extractor_type") or family
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    if name not in PROCESSORS:
        raise UnsupportedModel(
            f"{FILE} names the image processor {name[:80]!r}; Tahr has those of {', '.join(PROCESSORS)}."
        )
    return PROCESSORS[name](f, patch_size)
