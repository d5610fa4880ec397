"""Noticing that a weight file changes while its model is in use.

Backends keep most weights in their own memory, but some, like the CPU backend's embedding table, are read from the
mapped file. If another program overwrites the file in place, such reads give garbage; if it cuts the file short, they
give zeros. (A file that is replaced by another of its name does no harm: the mapping keeps the old one.)
"""

import hashlib
import os
from collections.abc import Callable, Iterable

from tahr.errors import WeightsChanged
from tahr.weights.source import OpenFile, Source, Stamp, file_stamp

SAMPLE_BYTES = 4096
N_SAMPLES = 64
END_BYTES = 1 << 20  # length of both ends that are compared: headers, and the tensors that come last


class FileWatch:
    """The files that a loaded model still reads, as they were when they were opened."""

    def __init__(self, sources: Iterable[Source | None]) -> None:
        self._watched = [_Watched(file) for file in _files(sources)]

    def check(self, stamp_of: Callable[[int], Stamp] = file_stamp) -> None:
        """Raise `WeightsChanged` if a file is no longer what was loaded; `stamp_of` takes a descriptor."""
        for file in self._watched:
            if file.stamp != stamp_of(file.descriptor):
                file.look_again()
        self.refuse_cut()

    @property
    def has_changed(self) -> bool:
        """Whether `check` would raise; any thread may ask."""
        try:
            self.check()
        except WeightsChanged:
            return True
        return False

    def refuse_cut(self) -> None:
        """Raise `WeightsChanged` if something was read that a file had no more of, be it there again or not."""
        for file in self._watched:
            if file.opened.was_cut:
                raise _changed(file.opened)


class _Watched:
    def __init__(self, opened: OpenFile) -> None:
        self.opened = opened
        self.descriptor = opened.descriptor
        self.stamp = opened.first_stamp
        self.digest = _digest(opened, self.stamp[0])
        self._refused: Stamp | None = None  # stamp of other content, which need not be compared again

    def look_again(self) -> None:
        """Refuse a file with other content; one that was only touched is the same as before."""
        stamp = self.opened.stamp()
        if stamp[0] != self.stamp[0] or stamp == self._refused or _digest(self.opened, stamp[0]) != self.digest:
            self._refused = stamp
            raise _changed(self.opened)
        self.stamp = stamp


def refuse_changed(sources: Iterable[Source | None]) -> None:
    """Raise `WeightsChanged` if a file was written to since it was opened: what was read of it may be of two kinds."""
    for file in _files(sources):
        if file.was_cut or file.stamp() != file.first_stamp:
            raise _changed(file)


def _files(sources: Iterable[Source | None]) -> list[OpenFile]:
    return list({id(source.file): source.file for source in sources if source and source.file}.values())


def _changed(file: OpenFile) -> WeightsChanged:
    return WeightsChanged(
        f"The file {file.label} was changed while its model was in use, so the model cannot go on. "
        "Load the model again; to update a file, write a new one and rename it to the old name."
    )


def _digest(file: OpenFile, n_bytes: int) -> bytes:
    """Both ends and places in between; read, not mapped, so that a file that is cut short does no harm."""
    last = max(0, n_bytes - END_BYTES)
    places = [last * i // N_SAMPLES for i in range(1, N_SAMPLES)]
    samples = [(0, END_BYTES), *((place, SAMPLE_BYTES) for place in places), (last, END_BYTES)]
    digest = hashlib.sha256()
    for place, size in samples:
        digest.update(os.pread(file.descriptor, size, place))
    return digest.digest()
