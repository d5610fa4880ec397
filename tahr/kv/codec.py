"""Keys, values and states of a text in the one form that leaves the engine: in sessions, snapshots and prefix files.

A layer with pages is bytes [n_tokens, n_heads, bytes of a key and a value], whatever the backend's own layout is; a
state is f32 [1, *shape]. As bytes, layers follow each other, then states.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tahr.kv.layout import PageLayout, token_layout
from tahr.kv.pages import pages_for

Rows: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]
Array = TypeVar("Array", bound=NDArray[Any])
Shape = tuple[int, int, int]
MAX_SIDE = 1 << 24  # heads of a layer, or bytes of a head's key and value


class PageRows(Protocol):
    """Reads and writes pages and states of an executor."""

    def read(self, pages: Sequence[int], group: int = 0) -> list[Rows]: ...
    def write(self, pages: Sequence[int], layers: Sequence[Rows], group: int = 0) -> None: ...
    def read_states(self, slots: Sequence[int]) -> list[Floats]: ...
    def write_states(self, slots: Sequence[int], layers: Sequence[Floats]) -> None: ...


@dataclass(frozen=True, slots=True)
class TextRows:
    """Memory of a text in all layers."""

    layers: tuple[Rows, ...]
    states: tuple[Floats, ...] = ()  # states after the last token

    @property
    def n_bytes(self) -> int:
        paged = sum(layer.nbytes for layer in self.layers)
        return paged + sum(self.state_bytes)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Shapes of the layers."""
        found: list[Shape] = []
        for layer in self.layers:
            n_tokens, n_heads, n_bytes = layer.shape
            found.append((n_tokens, n_heads, n_bytes))
        return tuple(found)

    @property
    def state_bytes(self) -> tuple[int, ...]:
        return tuple(state.nbytes for state in self.states)

    def first(self, n_tokens: int) -> "TextRows":
        """The beginning of a text without states; views."""
        assert not self.states, "states are those after the last token"
        return TextRows(tuple(layer[:n_tokens] for layer in self.layers))

    def compact(self) -> "TextRows":
        """A copy in memory of its own: a view would keep all of the larger array."""
        return TextRows(tuple(map(alone, self.layers)), tuple(map(alone, self.states)))

    def parts(self) -> list[memoryview]:
        """The bytes, in their order. Nothing is copied that lies in one run: long texts take gigabytes."""
        parts: list[memoryview] = []
        for each in (*self.layers, *self.states):
            in_one_run = np.ascontiguousarray(each)
            parts.append(in_one_run.view(np.uint8).data)
        return parts


def alone(rows: Array) -> Array:
    """An array that keeps no other memory than its own."""
    base = rows.base
    return rows if base is None or getattr(base, "nbytes", sys.maxsize) == rows.nbytes else rows.copy()


def check_shapes(n_tokens: int, shapes: Sequence[Shape], state_bytes: Sequence[int]) -> None:
    """Refuse, by a ValueError, shapes from outside that no layer has. Products of zeros say nothing of a size."""
    if any(len(shape) != 3 or shape[0] != n_tokens for shape in shapes):
        raise ValueError("keys and values do not fit the tokens")
    if not all(0 < n <= MAX_SIDE for _, *sides in shapes for n in sides):
        raise ValueError("keys and values have a side that no layer has")
    if any(n % 4 or n < 0 for n in state_bytes):
        raise ValueError("a state is no row of numbers")


def parse(data: bytes, begin: int, shapes: Sequence[Shape], state_bytes: Sequence[int]) -> TextRows:
    """Read the result of `parts` from bytes at a place, as views. States are flat: their shapes are the model's."""
    layers: list[Rows] = []
    for shape in shapes:
        size = prod(shape)
        rows = np.frombuffer(data, np.uint8, size, begin)
        layers.append(rows.reshape(shape))
        begin += size
    states: list[Floats] = []
    for n_bytes in state_bytes:
        state = np.frombuffer(data, np.uint8, n_bytes, begin)
        states.append(state.view(np.float32))
        begin += n_bytes
    return TextRows(tuple(layers), tuple(states))


def layout_of(dtype: str, shapes: Sequence[Shape], state_bytes: Sequence[int]) -> PageLayout:
    """The layout of the rows of a text, whatever its length."""
    rows = [(n_heads, n_bytes) for _, n_heads, n_bytes in shapes]
    return token_layout(dtype, rows, state_bytes)


def read_text(port: PageRows, pages: Sequence[int], slot: int, n_tokens: int) -> TextRows:
    """Read a text from pages of the first group, and its states from a slot (0: there is none)."""
    layers = [layer[:n_tokens] for layer in port.read(pages)]
    states = port.read_states([slot]) if slot else []
    return TextRows(tuple(layers), tuple(states))


def write_text(port: PageRows, pages: Sequence[int], slot: int, page_size: int, rows: TextRows) -> None:
    """The reverse of `read_text`; rows behind the text are zeros."""
    if pages:
        port.write(pages, [padded(layer, page_size) for layer in rows.layers])
    if slot:
        port.write_states([slot], rows.states)


def padded(layer: Rows, page_size: int) -> Rows:
    """Rows of whole pages."""
    n_tokens = len(layer)
    n_padding = pages_for(n_tokens, page_size) * page_size - n_tokens
    if n_padding == 0:
        return layer
    margins: Any = ((0, n_padding), (0, 0), (0, 0))
    return np.pad(layer, margins)
