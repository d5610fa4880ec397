"""Messages of a driver to its ranks, and their answers, as bytes: numbers, arrays and texts, and no code."""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tahr import _native as native
from tahr._native import address_of
from tahr.errors import TahrError

MAGIC = 0x7A4852A1
HEAD = struct.Struct("<IIIIQ")  # magic, number, kind, checksum, bytes that follow
COUNTS = struct.Struct("<HH")  # numbers, arrays
ARRAY = struct.Struct("<BBHIII")  # type, axes, nothing, lengths
TYPES: tuple[Any, ...] = (np.int32, np.float32, np.uint8)
MOST_NUMBERS = 64
MOST_ARRAYS = 32
MOST_AXES = 3


class BadMessage(TahrError):
    """Bytes that are no message: the memory between the processes was written to by somebody else."""


class RankMessage(NamedTuple):
    """Numbers and arrays of one kind of message."""

    kind: int
    numbers: Sequence[int]
    arrays: Sequence[NDArray[Any]] = ()

    @property
    def text(self) -> str:
        """The first array as text."""
        return bytes(self.arrays[0]).decode()


def text_message(kind: int, text: str, *numbers: int) -> RankMessage:
    return RankMessage(kind, numbers, (np.frombuffer(text.encode(), np.uint8),))


def write_message(place: NDArray[np.uint8], number: int, message: RankMessage) -> None:
    """Write a message; refused if the place does not hold it."""
    counts = COUNTS.pack(len(message.numbers), len(message.arrays))
    parts = [counts, struct.pack(f"<{len(message.numbers)}q", *message.numbers)]
    for array in message.arrays:
        lengths = (*array.shape, *[1] * (MOST_AXES - array.ndim))
        parts += [ARRAY.pack(TYPES.index(array.dtype.type), array.ndim, 0, *lengths), array.tobytes()]
    content = b"".join(parts)
    if HEAD.size + len(content) > len(place):
        raise BadMessage(f"A message of {len(content)} bytes does not fit into {len(place)}.")
    place[HEAD.size : HEAD.size + len(content)] = np.frombuffer(content, np.uint8)
    head = HEAD.pack(MAGIC, number & 0xFFFFFFFF, message.kind, checksum(content), len(content))
    place[: HEAD.size] = np.frombuffer(head, np.uint8)


def read_message(place: NDArray[np.uint8], number: int) -> RankMessage:
    """The message of that number, whose arrays are copies."""
    magic, found, kind, its_sum, n_bytes = HEAD.unpack(bytes(place[: HEAD.size]))
    if magic != MAGIC or found != number & 0xFFFFFFFF:
        raise BadMessage("Bytes between ranks are no message, or not the one that is due.")
    if n_bytes > len(place) - HEAD.size:
        raise BadMessage(f"A message between ranks says that it has {n_bytes} bytes, which is more than there are.")
    content = bytes(place[HEAD.size : HEAD.size + n_bytes])
    if checksum(content) != its_sum:
        raise BadMessage("A message between ranks was changed on its way.")
    try:
        return RankMessage(kind, *parts_of(content))
    except (struct.error, ValueError, IndexError, TypeError) as error:
        raise BadMessage(f"A message between ranks cannot be read: {error}.") from error


def parts_of(content: bytes) -> tuple[tuple[int, ...], list[NDArray[Any]]]:
    """Numbers and arrays, which are all of the content."""
    n_numbers, n_arrays = COUNTS.unpack_from(content)
    if n_numbers > MOST_NUMBERS or n_arrays > MOST_ARRAYS:
        raise ValueError(f"it has {n_numbers} numbers and {n_arrays} arrays")
    numbers = struct.unpack_from(f"<{n_numbers}q", content, COUNTS.size)
    at = COUNTS.size + 8 * n_numbers
    arrays = []
    for _ in range(n_arrays):
        array, at = array_at(content, at)
        arrays.append(array)
    if at != len(content):
        raise ValueError(f"{len(content) - at} bytes are left over")
    return numbers, arrays


def array_at(content: bytes, at: int) -> tuple[NDArray[Any], int]:
    """An array, and where it ends."""
    kind, n_axes, _, *lengths = ARRAY.unpack_from(content, at)
    if n_axes > MOST_AXES or any(length != 1 for length in lengths[n_axes:]):
        raise ValueError(f"an array has {n_axes} axes")
    dtype = np.dtype(TYPES[kind])
    n = int(np.prod(lengths[:n_axes], dtype=object))
    begin = at + ARRAY.size
    end = begin + n * dtype.itemsize
    if end > len(content):
        raise ValueError("an array goes beyond the end")
    return np.frombuffer(content, dtype, n, begin).reshape(lengths[:n_axes]), end


def checksum(content: bytes) -> int:
    return native.crc32c(address_of(content), len(content)) if content else 0
