"""Images that are split into the grid of tiles that suits them best: pressed into it whole, or in its middle."""

from dataclasses import dataclass, replace
from math import ceil, isqrt
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tahr.images.sizing import Size
from tahr.images.tiles import Tiling

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]
NO_TILES = (0, 0)


def split(pixels: Pixels, tile: int) -> Pixels:
    """The tiles of an image below each other, row by row: [n * tile, tile, 3]."""
    n_high = pixels.shape[0] // tile
    n_wide = pixels.shape[1] // tile
    return pixels.reshape(n_high, tile, n_wide, tile, 3).transpose(0, 2, 1, 3, 4).reshape(-1, tile, 3)


def n_tiles(grid: Size) -> int:
    n_wide, n_high = grid
    return n_wide * n_high


@dataclass(frozen=True, slots=True)
class Pressed:
    """The grid whose proportions are nearest to an image's, which is pressed into it; behind the tiles all of it as one
    more, if there are several."""

    tile: int  # pixels on a side
    least: int  # tiles of a grid
    most: int

    def __call__(self, width: int, height: int) -> Size:
        """The size before an image is cut."""
        n_high, n_wide = self.grid(width, height)
        return n_wide * self.tile, n_high * self.tile

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of tiles. Of grids that are as near the smallest counts, and a larger one as long as half of
        it is smaller than the image."""
        found = 1, 1
        nearest = float("inf")
        for n_wide, n_high in self._grids():
            away = abs(width / height - n_wide / n_high)
            is_filled = width * height > 0.5 * self.tile * self.tile * n_wide * n_high
            if away < nearest or (away == nearest and is_filled):
                nearest = away
                found = n_high, n_wide
        return found

    def _grids(self) -> list[Size]:
        """Columns and rows of all grids, the smallest first."""
        sides = range(1, self.most + 1)
        grids = [(n_wide, n_high) for n_wide in sides for n_high in range(1, self.most // n_wide + 1)]
        enough = [grid for grid in grids if n_tiles(grid) >= self.least]
        return sorted(enough, key=n_tiles)

    def for_tokens(self, n_tokens: int, n_each: int) -> "Pressed":
        """A copy whose images have so many tokens at most, at `n_each` a tile, and never less than a tile."""
        most = min(self.most, max(1, n_tokens // n_each - 1))
        return replace(self, most=most, least=min(self.least, most))

    def pixels(self, image: "Image", resample: int) -> Pixels:
        """The tiles below each other, row by row: [n * tile, tile, 3]."""
        pressed = image.resize(self(*image.size), resample=resample)
        tiles = split(np.array(pressed), self.tile)
        if len(tiles) == self.tile:
            return tiles
        whole = np.array(image.resize((self.tile, self.tile), resample=resample))
        return np.concatenate([tiles, whole])


@dataclass(frozen=True, slots=True)
class Centred:
    """The size, of some in whole tiles, that leaves most of an image; it stands in the middle, with black beside it.
    All of it as one more tile comes first."""

    tile: int  # pixels on a side
    sizes: tuple[Size, ...]  # width and height; none: there is only the image as a whole

    def __call__(self, width: int, height: int) -> Size:
        """The size with what is beside the image. Of those that leave as much the smallest is taken."""
        found = NO_TILES
        most_left = 0
        least_beside = float("inf")
        for size in self.sizes:
            full_width, full_height = size
            scale = min(full_width / width, full_height / height)
            scaled = int(width * scale) * int(height * scale)
            left = min(scaled, width * height)
            beside = full_width * full_height - left
            if left > most_left or (left == most_left and beside < least_beside):
                found = size
                most_left = left
                least_beside = beside
        return found

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of tiles; none: there is only the image as a whole."""
        width, height = self(width, height)
        return height // self.tile, width // self.tile

    def inner(self, width: int, height: int) -> Size:
        """The size of the image itself."""
        full = self(width, height)
        across = full[0] / width
        down = full[1] / height
        if across < down:
            return full[0], min(ceil(height * across), full[1])
        return min(ceil(width * down), full[0]), full[1]

    def kept(self, width: int, height: int, side: int) -> tuple[range, range]:
        """The lines and the columns of patches that the image is in, where a tile has so many on a side."""
        n_high, n_wide = (n * side for n in self.grid(width, height))
        if not n_high:
            return range(0), range(0)
        if width / height > n_wide / n_high:
            beside = (n_high - int(round(height * (n_wide / width), 7))) // 2
            return range(beside, n_high - beside), range(n_wide)
        beside = (n_wide - int(round(width * (n_high / height), 7))) // 2
        return range(n_high), range(beside, n_wide - beside)

    def for_tokens(self, n_tokens: int, n_each: int) -> "Centred":
        """A copy whose images have so many tokens at most, at `n_each` a tile and one behind each line of patches."""
        side = isqrt(n_each)

        def n_of(size: Size) -> int:
            n_high = size[1] // self.tile
            return n_each + n_high * side * (size[0] // self.tile * side + 1)

        return replace(self, sizes=tuple(size for size in self.sizes if n_of(size) <= n_tokens))

    def pixels(self, image: "Image", resample: int) -> Pixels:
        """All of the image, then its tiles, below each other: [n * tile, tile, 3]."""
        whole = np.array(image.resize((self.tile, self.tile), resample=resample))
        width, height = self(*image.size)
        if not width:
            return whole
        size = self.inner(*image.size)
        left = (width - size[0]) // 2
        top = (height - size[1]) // 2
        canvas = np.zeros((height, width, 3), np.uint8)
        canvas[top : top + size[1], left : left + size[0]] = np.array(image.resize(size, resample=resample))
        return np.concatenate([whole, split(canvas, self.tile)])


Tiled = Tiling | Pressed | Centred
