"""The size an image is brought to before it is cut into patches."""

import math
from dataclasses import dataclass, replace
from typing import Protocol

Size = tuple[int, int]  # width, height


class Sizing(Protocol):
    """A rule of an image processor."""

    def __call__(self, width: int, height: int) -> Size: ...


@dataclass(frozen=True, slots=True)
class ShortestEdge:
    """The shorter side gets this length; the other follows."""

    length: int

    def __call__(self, width: int, height: int) -> Size:
        longer = int(self.length * max(width, height) / min(width, height))
        return (self.length, longer) if width <= height else (longer, self.length)


@dataclass(frozen=True, slots=True)
class Exactly:
    """One size for all images, whatever their proportions."""

    width: int
    height: int

    def __call__(self, width: int, height: int) -> Size:
        return self.width, self.height


@dataclass(frozen=True, slots=True)
class MostPatches:
    """The largest size near an image's proportions that is cut into so many patches at most."""

    n_patches: int
    patch_size: int
    precision: float = 1e-5  # error allowed in the scale, which is found by halving

    def __call__(self, width: int, height: int) -> Size:
        low = self.precision / 10
        high = 100.0
        while high - low >= self.precision:
            middle = (low + high) / 2
            n_wide, n_high = self._patches(middle * width), self._patches(middle * height)
            if n_wide * n_high <= self.n_patches:
                low = middle
            else:
                high = middle
        return self.patch_size * self._patches(low * width), self.patch_size * self._patches(low * height)

    def _patches(self, length: float) -> int:
        return max(1, math.ceil(length / self.patch_size))


@dataclass(frozen=True, slots=True)
class LongestEdge:
    """Both sides shrink until neither is longer than this; then they grow to multiples of a factor."""

    length: int
    factor: int

    def __call__(self, width: int, height: int) -> Size:
        ratio = max(width, height) / self.length
        if ratio > 1:
            width, height = max(1, math.floor(width / ratio)), max(1, math.floor(height / ratio))
        return self._up(width), self._up(height)

    def _up(self, length: int) -> int:
        return math.ceil(length / self.factor) * self.factor

    def within(self, n_merged: int) -> "LongestEdge":
        """A copy that gives so many squares of the factor at most."""
        return replace(self, length=min(self.length, math.isqrt(n_merged) * self.factor))


@dataclass(frozen=True, slots=True)
class WholePatches:
    """The size near an image's own whose sides are multiples of a factor, and whose pixels are within bounds."""

    factor: int
    least_pixels: int
    most_pixels: int

    def __call__(self, width: int, height: int) -> Size:
        f = self.factor
        size = round(width / f) * f, round(height / f) * f
        n_pixels = size[0] * size[1]
        if n_pixels > self.most_pixels:
            shrunk = math.sqrt(width * height / self.most_pixels)
            return self._held(max(1, math.floor(width / shrunk / f)), max(1, math.floor(height / shrunk / f)))
        if n_pixels < self.least_pixels:
            grown = math.sqrt(self.least_pixels / (width * height))
            return self._held(math.ceil(width * grown / f), math.ceil(height * grown / f))
        return size

    def _held(self, n_wide: int, n_high: int) -> Size:
        """The size of so many squares, of which a long or small image has more by rounding than it may."""
        n_most = max(1, self.most_pixels // self.factor**2)
        if n_wide * n_high > n_most:
            shorter = min(n_wide, n_high, n_most)
            longer = n_most // shorter
            n_wide, n_high = (longer, shorter) if n_wide > n_high else (shorter, longer)
        return n_wide * self.factor, n_high * self.factor

    def within(self, n_merged: int) -> "WholePatches":
        """A copy that gives so many squares of the factor at most."""
        most = n_merged * self.factor**2
        return WholePatches(self.factor, min(self.least_pixels, most), min(self.most_pixels, most))
