"""The size an image is brought to before it is cut into patches."""

import math
from dataclasses import dataclass
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
