"""Where the bytes of a weight file are: mapped from disk or already in memory, never copied."""

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tahr._native import MappedFile, address_of
from tahr.errors import CorruptFile, LoadError, ModelNotFound
from tahr.regular_file import open_regular

Stamp = tuple[int, int]  # the size of a file, and when its content was last changed: one differs after any writing


def file_stamp(descriptor: int) -> Stamp:
    """The stamp of an open file."""
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns


class OpenFile:
    """A file held open, so that what happens to it can be seen whatever becomes of its name."""

    def __init__(self, descriptor: int, label: str) -> None:
        self.descriptor = descriptor
        self.label = label
        self.first_stamp = self.stamp()

        self.mapped: MappedFile | None = None

    def stamp(self) -> Stamp:
        return file_stamp(self.descriptor)

    @property
    def was_cut(self) -> bool:
        """Whether something was read from the mapping that the file has no more of."""
        return self.mapped is not None and self.mapped.was_cut

    def __del__(self) -> None:
        os.close(self.descriptor)


class Mapping(mmap.mmap):
    """A file in memory, which gives zeros in place of what is cut off it: reading that would else end the process."""

    mapped: MappedFile | None = None

    def __del__(self) -> None:
        if self.mapped:
            self.mapped.unmapped()


@dataclass(frozen=True, eq=False)
class Source:
    """The bytes of one file; `label` names it in errors. The mapping lives as long as any view of `data` does."""

    label: str
    data: NDArray[np.uint8]
    path: Path | None = None
    mapping: mmap.mmap | None = None
    file: OpenFile | None = None

    def forget(self, start: int, n_bytes: int) -> None:
        """Let the system take back the whole pages inside a range; reading them again fetches them from the file."""
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (start + n_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if self.mapping is not None and hasattr(self.mapping, "madvise") and last > first:
            self.mapping.madvise(mmap.MADV_DONTNEED, first, last - first)


def in_memory(content: bytes | bytearray | memoryview) -> Source:
    """Bytes that are already here."""
    view = memoryview(content)
    if not view.c_contiguous:
        raise LoadError("The bytes of the model are not contiguous. Pass `bytes(view)` instead of the view.")
    return Source("The model in memory", np.frombuffer(view, np.uint8))


def map_file(path: Path) -> Source:
    """A file mapped read-only."""
    try:
        if not path.exists():
            raise ModelNotFound(f"There is no file {str(path)!r}. Check the path, or pull the model first.")
        return _map(path)
    except OSError as error:
        raise LoadError(
            f"{str(path)!r} cannot be read: {error.strerror}. Give the path of a model file that you may read."
        ) from error


def _map(path: Path) -> Source:
    file = OpenFile(open_regular(path), repr(str(path)))
    if file.first_stamp[0] == 0:
        raise CorruptFile(f"{str(path)!r} is empty. Download the file again.")
    mapping = Mapping(file.descriptor, 0, access=mmap.ACCESS_READ)
    data = np.frombuffer(mapping, np.uint8)
    file.mapped = mapping.mapped = MappedFile(address_of(data), data.size)
    return Source(str(path), data, path, mapping, file)
