"""Keys and values of the Vulkan backend: [page, head, token of the page, number], as the kernels read them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tahr import _vulkan as native
from tahr.backends.api import Bytes, KVShape
from tahr.backends.vulkan.memory import DeviceMemory
from tahr.errors import UnsupportedModel

KV_TYPES = {"f16": 2, "f32": 4, "bf16": 2}  # bytes of a number; the default first
MAX_HEAD_DIM = 256


@dataclass(frozen=True, slots=True)
class PagedBuffers:
    """The keys and the values of one layer; a latent layer has keys alone."""

    shape: KVShape
    dtype: str
    page_size: int
    sides: tuple[native.Buffer, ...]

    @property
    def page_bytes(self) -> int:
        """Bytes of the keys, or of the values, of a page."""
        return self.shape.n_heads * self.page_size * self.shape.head_dim * KV_TYPES[self.dtype]

    def read(self, pages: Sequence[int], memory: DeviceMemory) -> Bytes:
        """Keys and values of all tokens of some pages: [n_tokens, n_heads, bytes of a key and a value]."""
        sides = [gathered(side, pages, self.page_bytes, memory) for side in self.sides]
        return np.concatenate([self._by_token(side) for side in sides], axis=2)

    def write(self, pages: Sequence[int], content: Bytes, memory: DeviceMemory) -> None:
        """The reverse of `read`."""
        by_token = len(pages), self.page_size, self.shape.n_heads, -1
        halves = np.split(content, len(self.sides), axis=2)
        for side, half in zip(self.sides, halves, strict=True):
            by_page = half.reshape(by_token).transpose(0, 2, 1, 3)
            scattered(side, pages, np.ascontiguousarray(by_page).reshape(-1), memory)

    def _by_token(self, content: Bytes) -> Bytes:
        head_bytes = self.shape.head_dim * KV_TYPES[self.dtype]
        by_page = content.reshape(-1, self.shape.n_heads, self.page_size, head_bytes)
        return by_page.transpose(0, 2, 1, 3).reshape(-1, self.shape.n_heads, by_page.shape[3])

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies of pages that are not themselves written."""
        n = self.page_bytes
        parts = [(source * n, to * n, n) for source, to in pairs]
        for side in self.sides:
            side.copy(side, parts)


def gathered(buffer: native.Buffer, pages: Sequence[int], n_bytes: int, memory: DeviceMemory) -> Bytes:
    """The bytes of some pages, one after the other."""
    if not len(pages):
        return np.zeros(0, np.uint8)
    together = native.Buffer(memory.device, len(pages) * n_bytes, native.Home.HOST)
    together.copy(buffer, [(page * n_bytes, i * n_bytes, n_bytes) for i, page in enumerate(pages)])
    found: Bytes = together.view()[: len(pages) * n_bytes].copy()
    return found


def scattered(buffer: native.Buffer, pages: Sequence[int], content: Bytes, memory: DeviceMemory) -> None:
    """The reverse of `gathered`."""
    if not len(pages):
        return
    n_bytes = len(content) // len(pages)
    together = native.Buffer(memory.device, len(content), native.Home.HOST)
    together.view()[: len(content)] = content
    buffer.copy(together, [(i * n_bytes, page * n_bytes, n_bytes) for i, page in enumerate(pages)])


def make_layer(shape: KVShape, n_pages: int, page_size: int, dtype: str, memory: DeviceMemory) -> PagedBuffers:
    """Zeroed keys and values."""
    n_bytes = max(1, n_pages) * shape.n_heads * page_size * shape.head_dim * KV_TYPES[dtype]
    n_sides = 1 if shape.latent else 2
    sides = tuple(native.Buffer(memory.device, n_bytes, native.Home.DEVICE) for _ in range(n_sides))
    for side in sides:
        side.fill(0, side.n_bytes, 0)
    return PagedBuffers(shape, dtype, page_size, sides)


def check_heads(shape: KVShape) -> None:
    """Refuse heads that the attention kernel has no room for."""
    if shape.latent:
        raise UnsupportedModel(
            "This model keeps one compressed vector per token in place of keys and values, which the vulkan backend "
            "does not attend to yet: choose another model, or a backend that does."
        )
    if shape.head_dim > MAX_HEAD_DIM or shape.head_dim % 2:
        raise UnsupportedModel(
            f"The vulkan backend handles heads of an even number of numbers up to {MAX_HEAD_DIM}; this model has heads "
            f"of {shape.head_dim}: choose another model or backend."
        )
