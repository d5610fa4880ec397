"""The layout of pages: what must be equal before the bytes of one page may be taken for those of another.

Its digest names the folder of files with pages, and tells whether a snapshot fits a model. Heads are counted as the
model counts them, so that parts of a layer are never taken for the whole of it, nor for another part.
"""

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

DIGEST_BYTES = 16


class LayerRows(NamedTuple):
    """A layer's rows of one token: the heads from `first_head` on, each a key and a value of so many bytes."""

    first_head: int
    n_heads: int
    n_bytes: int


@dataclass(frozen=True)
class PageLayout:
    """How the bytes of pages lie."""

    order: str  # inside a page, by the name that a backend gives it
    page_size: int
    dtype: str  # type of keys and values
    groups: tuple[tuple[LayerRows, ...], ...]  # the layers of each
    states: tuple[int, ...] = ()  # bytes, by layer that has one

    @cached_property
    def digest(self) -> bytes:
        """Equal for equal layouts alone."""
        return blake2b(repr(astuple(self)).encode(), digest_size=DIGEST_BYTES).digest()

    def page_bytes(self, group: int) -> int:
        """The memory of a page."""
        return self.page_size * sum(rows.n_heads * rows.n_bytes for rows in self.groups[group])

    @property
    def state_bytes(self) -> int:
        """The memory of a sequence's states."""
        return sum(self.states)


def token_layout(dtype: str, shapes: Iterable[tuple[int, int]], states: Iterable[int]) -> PageLayout:
    """The layout of texts that are copied token by token, as snapshots are; by layer its heads, and their bytes."""
    rows = tuple(LayerRows(0, *shape) for shape in shapes)
    return PageLayout("tokens", 1, dtype, (rows,), tuple(states))
