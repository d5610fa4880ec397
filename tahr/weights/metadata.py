"""Reading the typed metadata of a GGUF file, trusting nothing in it."""

import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from tahr.errors import CorruptFile
from tahr.weights.limits import MODEL, HeaderLimits
from tahr.weights.source import Source

# The number of a value type in the file -> its code, which `struct` and NumPy share.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
BOOL = 7
STRING = 8
ARRAY = 9

MAX_NAME_BYTES = 65535
MAX_DEPTH = 4  # nesting of arrays
MAX_NESTED = 1 << 12  # arrays in arrays, in all: each is an object, many times larger than its bytes in the file

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")


class MetadataArray(Sequence[Any]):
    """An array of the metadata: reads like a list, and is decoded when it is first read."""

    __slots__ = ("_decode", "_items", "_n_items")

    def __init__(self, n_items: int, decode: Callable[[], list[Any]]) -> None:
        self._n_items = n_items
        self._decode = decode
        self._items: list[Any] | None = None

    def tolist(self) -> list[Any]:
        """The items as plain Python values."""
        if self._items is None:
            self._items = self._decode()
        return self._items

    def __len__(self) -> int:
        return self._n_items

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self.tolist()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and not isinstance(other, str | bytes) and self.tolist() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"MetadataArray(n_items={len(self)})"


class Cursor:
    """A place in a GGUF file that moves forward as things are read and refuses to leave the file."""

    def __init__(self, source: Source, limits: HeaderLimits = MODEL) -> None:
        self.source = source
        self.limits = limits
        self.view = source.data.data
        self.at = 0
        self.n_nested = 0  # arrays in arrays so far
        self.n_items = 0  # array items so far
        self.n_text_bytes = 0  # string bytes so far
        self.size = U64  # type of a count or a length; version 1 files use U32

    @property
    def n_left(self) -> int:
        return len(self.view) - self.at

    def damage(self, what: str, at: int | None = None) -> CorruptFile:
        """The error to raise when `what` is wrong at a byte, by default the current one."""
        where = self.at if at is None else at
        return CorruptFile(f"{self.source.label} is damaged: at byte {where}, {what}. Download the file again.")

    def skip(self, n_bytes: int, field: str) -> int:
        """Step over bytes that must be there; returns where they begin."""
        if n_bytes > self.n_left:
            raise self.damage(f"{field} needs {n_bytes} bytes and {self.n_left} are left")
        self.at += n_bytes
        return self.at - n_bytes

    def number(self, kind: struct.Struct, field: str) -> Any:
        return kind.unpack_from(self.view, self.skip(kind.size, field))[0]

    def count(self, field: str, item_bytes: int, most: int | None = None) -> int:
        """A number of items that take at least `item_bytes` each; more than fit in the rest of the file are refused."""
        start = self.at
        n_items: int = self.number(self.size, f"the number of {field}")
        if n_items * item_bytes > self.n_left:
            raise self.damage(f"there cannot be {n_items} {field} in the {self.n_left} bytes left", start)
        if most is not None and n_items > most:
            raise self.damage(f"there are {n_items} {field}, which is more than {most}", start)
        return n_items

    def name(self, field: str) -> str:
        """A short string: a key or a tensor's name."""
        start = self.at
        text = self.string(field)
        if self.at - start > MAX_NAME_BYTES + self.size.size:
            raise self.damage(f"{field} is longer than {MAX_NAME_BYTES} bytes", start)
        return text

    def string(self, field: str) -> str:
        n_bytes = self.number(self.size, f"the length of {field}")
        start = self.skip(n_bytes, field)
        self._refuse_long(start, field)
        return _text(bytes(self.view[start : self.at]))

    def _refuse_long(self, start: int, field: str) -> None:
        """Strings may not bring the text of the whole header beyond bounds."""
        self.n_text_bytes += self.at - start
        if self.n_text_bytes > self.limits.n_text_bytes:
            most = self.limits.n_text_bytes
            raise self.damage(f"{field} brings the header to more than {most} bytes of text", start)

    def value(self, field: str) -> Any:
        """A value of any type, after its type number."""
        start = self.at
        return self._typed(self.number(U32, f"the type of {field}"), field, start, depth=0)

    def _typed(self, kind: int, field: str, start: int, depth: int) -> Any:
        if kind == STRING:
            return self.string(field)
        if kind == ARRAY:
            return self._array(field, depth)
        if kind not in NUMBERS:
            raise self.damage(f"{field} has the unknown type {kind}", start)
        first = self.at
        value = self.number(struct.Struct("<" + NUMBERS[kind]), field)
        if kind == BOOL and self.view[first] > 1:
            raise self.damage(f"{field} is neither true nor false", first)
        return value

    def _array(self, field: str, depth: int) -> Any:
        start = self.at
        kind = self.number(U32, f"the item type of {field}")
        if kind == STRING:
            return self._strings(field)
        if kind == ARRAY:
            return self._arrays(field, depth, start)
        if kind not in NUMBERS:
            raise self.damage(f"{field} has items of the unknown type {kind}", start)
        return self._numbers(kind, field)

    def _n_items(self, field: str, item_bytes: int) -> int:
        """The number of items of an array, which may not bring that of all arrays beyond bounds."""
        start = self.at
        n_items = self.count(f"items of {field}", item_bytes)
        self.n_items += n_items
        if self.n_items > self.limits.n_items:
            most = self.limits.n_items
            raise self.damage(f"{field} brings the number of items of arrays to more than {most}", start)
        return n_items

    def _numbers(self, kind: int, field: str) -> MetadataArray:
        dtype = np.dtype("<" + NUMBERS[kind])
        n_items = self._n_items(field, dtype.itemsize)
        start = self.skip(n_items * dtype.itemsize, field)
        stored = self.source.data[start : self.at]
        if kind == BOOL and stored.max(initial=0) > 1:
            raise self.damage(f"{field} has items that are neither true nor false", start)
        return MetadataArray(n_items, stored.view(dtype).tolist)

    def _strings(self, field: str) -> MetadataArray:
        # The hot loop of opening a model: a vocabulary has up to hundreds of thousands of strings.
        head = self.size.size
        n_items = self._n_items(field, head)
        if not n_items:
            return MetadataArray(0, list)
        start = self.at
        ends = self._short_ends(n_items)
        if ends is None:
            ends = self._any_ends(n_items, field)
        self.at = int(ends[-1])
        self._refuse_long(start, field)
        stored = self.source.data[start : self.at]
        return MetadataArray(n_items, lambda: _decode_strings(stored, ends - np.uint64(start), head))

    def _short_ends(self, n_items: int) -> NDArray[np.uint64] | None:
        """Where strings end; None unless all are shorter than 256 bytes, so that a length is one byte and zeros."""
        at = self.at
        head = self.size.size
        view = self.view
        ends = array("Q")
        append = ends.append
        try:
            for _ in range(n_items):
                at += view[at] + head
                append(at)
        except IndexError:
            return None
        found = np.frombuffer(ends, np.uint64)
        begins = np.append(np.uint64(self.at), found[:-1])
        if at > len(view) or any(self.source.data[begins + np.uint64(i)].any() for i in range(1, head)):
            return None
        return found

    def _any_ends(self, n_items: int, field: str) -> NDArray[np.uint64]:
        """End offsets of strings of any length."""
        head = self.size.size
        unpack = self.size.unpack_from
        view = self.view
        end = len(self.view)
        at = self.at
        ends = array("Q")
        try:
            for _ in range(n_items):
                at += head + unpack(view, at)[0]
                if at > end:
                    raise self.damage(f"the items of {field} run past the end of the file")
                ends.append(at)
        except struct.error as error:
            raise self.damage(f"the items of {field} run past the end of the file") from error
        return np.frombuffer(ends, np.uint64)

    def _arrays(self, field: str, depth: int, start: int) -> MetadataArray:
        if depth + 1 >= MAX_DEPTH:
            raise self.damage(f"{field} has arrays in arrays more than {MAX_DEPTH} deep", start)
        n_items = self.count(f"items of {field}", U32.size + self.size.size)
        self.n_nested += n_items
        if self.n_nested > MAX_NESTED:
            raise self.damage(f"{field} brings the number of arrays in arrays to more than {MAX_NESTED}", start)
        items = [self._array(field, depth + 1) for _ in range(n_items)]
        return MetadataArray(n_items, lambda: items)


def _decode_strings(stored: NDArray[np.uint8], ends: NDArray[np.uint64], head: int) -> list[str]:
    """Strings that lie one after the other, each behind its length; `ends` counts from the first byte of `stored`."""
    # All at once: a zero in place of each length, and then cut there.
    begins = np.append(np.uint64(0), ends[:-1])
    marked = stored.copy()
    kept = np.ones(len(stored), np.bool_)
    marked[begins] = 0
    for i in range(1, head):
        kept[begins + np.uint64(i)] = False
    texts = _text(marked[kept].tobytes()).split("\0")[1:]
    if len(texts) == len(ends):
        return texts
    # Some string has a zero in it.
    whole = stored.tobytes()
    return [_text(whole[begin + head : end]) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def _text(stored: bytes) -> str:
    """UTF-8, except that tokens may be pieces of characters: such bytes become lone surrogates, and can be had back."""
    return stored.decode("utf-8", "surrogateescape")
