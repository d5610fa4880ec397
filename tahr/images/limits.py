"""How much an image that somebody sends may take."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition

MAX_SIDE = 16384
MAX_RATIO = 200  # limit on the longer side, times the shorter: resized to a shortest edge, a line becomes very long


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Limits of one image, and on the memory of all that are being decoded."""

    max_image_bytes: int = 20_000_000
    max_image_pixels: int = 64_000_000
    decoded_image_bytes: int = 2**30


class DecodedBytes:
    """A count of the memory that images take while they are decoded: who would exceed the limit waits."""

    def __init__(self, limit: int):
        self.limit = limit
        self.n_used = 0
        self._changed = Condition()

    @contextmanager
    def reserved(self, n_bytes: int) -> Iterator[None]:
        """Inside, so many bytes are taken; an image that needs more than there are has all of them."""
        n = min(n_bytes, self.limit)
        with self._changed:
            self._changed.wait_for(lambda: self.n_used + n <= self.limit)
            self.n_used += n
        try:
            yield
        finally:
            with self._changed:
                self.n_used -= n
                self._changed.notify_all()
