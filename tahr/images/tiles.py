"""Images that are split into square tiles, with the whole of it, made as small as a tile, behind them."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tahr.images.sizing import Size

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_EDGE = 4096  # limit on `longest`; transformers shrinks what would be larger once more


@dataclass(frozen=True, slots=True)
class Tiling:
    """The longer side gets a length; then both become whole tiles."""

    tile: int  # pixels on a side
    longest: int
    splits: bool = True  # an image larger than a tile is several; otherwise it is shrunk to one

    def __call__(self, width: int, height: int) -> Size:
        """The size before an image is cut."""
        return self.whole(*self.scaled(width, height))

    def whole(self, width: int, height: int) -> Size:
        """A size in whole tiles."""
        if not self.splits:
            return self.tile, self.tile
        ratio = width / height
        if width >= height:
            width = self._up(width)
            height = self._up(int(width / ratio))
        else:
            height = self._up(height)
            width = self._up(int(height * ratio))
        return width, height

    def _up(self, length: int) -> int:
        return math.ceil(length / self.tile) * self.tile

    def scaled(self, width: int, height: int) -> Size:
        """The size of which tiles are made; the shorter side is even."""
        ratio = width / height
        if width >= height:
            width = self.longest
            height = int(width / ratio)
            height += height % 2
        else:
            height = self.longest
            width = int(height * ratio)
            width += width % 2
        return max(width, 1), max(height, 1)

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of tiles; 1 by 1 is the image alone, with no smaller one behind it."""
        width, height = self(width, height)
        return height // self.tile, width // self.tile

    @property
    def n_most(self) -> int:
        """Limit on the tiles of an image, the whole one among them."""
        side = math.ceil(self.longest / self.tile) if self.splits else 1
        return side**2 + 1 if side > 1 else 1

    def within(self, n_tiles: int) -> "Tiling":
        """A copy that gives so many tiles at most, and never fewer than one."""
        if self.n_most <= n_tiles:
            return self
        side = max(1, math.isqrt(max(0, n_tiles - 1)))
        return replace(self, longest=side * self.tile)

    def for_tokens(self, n_tokens: int, n_each: int) -> "Tiling":
        """A copy whose images have so many tokens at most, at `n_each` a tile, and never less than a tile."""
        return self.within(n_tokens // n_each)

    def pixels(self, image: "Image", resample: int) -> NDArray[np.uint8]:
        """The tiles below each other, row by row: [n * tile, tile, 3]."""
        image = image.resize(self.scaled(*image.size), resample=resample)
        size = self.whole(*image.size)
        image = image.resize(size, resample=resample)
        pixels = np.array(image)
        n_high = size[1] // self.tile
        n_wide = size[0] // self.tile
        if n_high * n_wide == 1:
            return pixels
        tiles = pixels.reshape(n_high, self.tile, n_wide, self.tile, 3).transpose(0, 2, 1, 3, 4)
        whole = np.array(image.resize((self.tile, self.tile), resample=resample))
        return np.concatenate([tiles.reshape(-1, self.tile, 3), whole])
