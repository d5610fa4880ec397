"""The memory that a driver and its ranks share. It has no name: the last process that maps it takes it along.

A message lies in one place until all ranks have answered it; each rank has a place for its answer, and the first one
another for rows. Behind them are the places of meetings, see `native/ranks/meeting.h`.
"""

import mmap
import os
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tahr import _native as native
from tahr._native import address_of
from tahr.errors import ConfigError

PAGE = 4096
REPLY_BYTES = 16 * PAGE
SENT = 1  # the word that counts messages
FIRST = 2  # the words behind it: those of answers by rank, then those of meetings


@dataclass(frozen=True, slots=True)
class RegionSizes:
    """Numbers that both sides lay the memory out by."""

    n_ranks: int
    message_bytes: int
    row_bytes: int  # all rows of a step that come back
    place_bytes: int  # rows that a rank hands in at a meeting

    def __post_init__(self) -> None:
        for name in ("message_bytes", "row_bytes", "place_bytes"):
            object.__setattr__(self, name, -(-max(1, getattr(self, name)) // PAGE) * PAGE)

    @property
    def n_words(self) -> int:
        return FIRST + 2 * self.n_ranks

    @property
    def begins(self) -> tuple[int, ...]:
        """Where messages, answers, rows and meetings begin, and the end."""
        parts = (
            -(-self.n_words * native.WORD_BYTES // PAGE) * PAGE,
            self.message_bytes,
            self.n_ranks * REPLY_BYTES,
            self.row_bytes,
            self.n_ranks * native.MEETING_PLACES * self.place_bytes,
        )
        return tuple(sum(parts[: i + 1]) for i in range(len(parts)))


class Region:
    """One process's view of it."""

    def __init__(self, descriptor: int, sizes: RegionSizes):
        self.descriptor = descriptor
        self.sizes = sizes
        *_, end = sizes.begins
        self._map = mmap.mmap(descriptor, end)
        self._bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.words = native.SharedWords(address_of(self._bytes), sizes.n_words)

    @cached_property
    def message(self) -> NDArray[np.uint8]:
        return self._part(0)

    @cached_property
    def rows(self) -> NDArray[np.float32]:
        return self._part(2).view(np.float32)

    def reply(self, rank: int) -> NDArray[np.uint8]:
        """The place of a rank's answer."""
        return self._part(1)[rank * REPLY_BYTES : (rank + 1) * REPLY_BYTES]

    def answered(self, rank: int) -> int:
        """The word that counts a rank's answers."""
        return FIRST + rank

    def met(self, rank: int) -> int:
        """The word that counts a rank's meetings."""
        return FIRST + self.sizes.n_ranks + rank

    def meeting(self, rank: int, limit_s: float) -> native.Meeting:
        """The meetings of this process as one of the ranks."""
        return native.Meeting(
            words=self.words,
            first_word=self.met(0),
            memory=address_of(self._part(3)),
            place_bytes=self.sizes.place_bytes,
            n_ranks=self.sizes.n_ranks,
            rank=rank,
            limit_s=limit_s,
        )

    def _part(self, i: int) -> NDArray[np.uint8]:
        begin, end = self.sizes.begins[i : i + 2]
        return self._bytes[begin:end]


def new_region(sizes: RegionSizes) -> Region:
    """Memory for a group; pages of it that nobody writes to cost nothing. The caller closes its descriptor."""
    if not (hasattr(os, "memfd_create") and hasattr(os, "pidfd_open")):
        raise ConfigError(
            "tensor_parallel needs memory without a name and descriptors of processes, which Linux has from 5.3 on: "
            "leave it out."
        )
    descriptor = os.memfd_create("tahr-ranks")
    *_, end = sizes.begins
    os.truncate(descriptor, end)
    return Region(descriptor, sizes)
