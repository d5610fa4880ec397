"""One file: some pages of a text, one after the other by group, and perhaps the state after them.

    header | pages of group 0 | pages of group 1 | ... | state

It is written once, under the block hash of its last page, and never changed. Nothing in it is believed before its
checksum, which covers every byte, and its header agree with what was looked for.
"""

import errno
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from struct import Struct, error
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tahr import _native as native
from tahr.kv.tiers.folders import fault_of
from tahr.kv.tiers.seal import EXTRA_BYTES, Seal

Bytes: TypeAlias = NDArray[np.uint8]
MAGIC = b"TAHRKV\r\n"
VERSION = 1
# magic, version, checksum, layout, block hash, pages, whether it is sealed, groups (a bit each), bytes of the payload
HEADER = Struct("<8sII16s16sIIQQ")
CHECKED = slice(16, None)  # part of a header that must be as expected: all behind the checksum
MAX_GROUPS = 63
STATE_BIT = 1 << MAX_GROUPS
READ_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
MOST_VECTORS = 512  # runs of bytes of one system call
RUN, STATE, UNFINISHED = ".kv", ".st", ".tmp"  # ends of names
_numbers = count()


class Damaged(ValueError):
    """A file is not what its name says."""


class KvFile(NamedTuple):
    """Which file: the block hash of its last page, how many pages it has, and whether a state follows them."""

    block_hash: bytes
    n_pages: int
    has_state: bool = False

    @property
    def name(self) -> str:
        return self.block_hash.hex() + (STATE if self.has_state else RUN)


class Page(Protocol):
    """Memory of a page, or of a state, which is given back with the last reference to it."""

    @property
    def data(self) -> Bytes: ...


@dataclass(frozen=True, slots=True)
class Contents:
    """Pages by group, and a state; groups without the pages of a file are left out."""

    groups: Mapping[int, Sequence[Page]]
    state: Page | None = None

    @property
    def parts(self) -> list[memoryview]:
        pages = [page.data.data for group in sorted(self.groups) for page in self.groups[group]]
        return pages if self.state is None else [*pages, self.state.data.data]

    @property
    def n_bytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def mask(self) -> int:
        return sum(1 << group for group in self.groups) | (0 if self.state is None else STATE_BIT)

    def only(self, mask: int) -> "Contents":
        """The groups that a mask names."""
        groups = {group: pages for group, pages in self.groups.items() if mask >> group & 1}
        return Contents(groups, self.state if mask & STATE_BIT else None)


def pack_header(layout: bytes, which: KvFile, contents: Contents, is_sealed: bool, checksum: int = 0) -> bytes:
    """The header of a file with these contents."""
    n_bytes = payload_bytes(contents, is_sealed)
    facts = (layout, which.block_hash, which.n_pages, int(is_sealed), contents.mask, n_bytes)
    return HEADER.pack(MAGIC, VERSION, checksum, *facts)


def payload_bytes(contents: Contents, is_sealed: bool) -> int:
    """The bytes of a file behind its header."""
    return contents.n_bytes + (EXTRA_BYTES if is_sealed else 0)


def checksum(parts: Iterable[Any]) -> int:
    """CRC-32C of runs of bytes, one after the other."""
    found = 0
    for part in parts:
        run = np.frombuffer(part, np.uint8)
        found = native.crc32c(run.ctypes.data, len(run), found)
    return found


# ---- writing ----------------------------------------------------------------------------------------------------


def write_file(folder: int, layout: bytes, which: KvFile, contents: Contents, seal: Seal | None = None) -> int:
    """Write a file in a directory; it has its name only when it is whole. Gives its bytes."""
    blank = pack_header(layout, which, contents, seal is not None)
    parts: list[Any] = [seal.close(contents.parts, blank)] if seal else list(contents.parts)
    header = pack_header(layout, which, contents, seal is not None, checksum([blank, *parts]))
    unfinished = f"{which.name}.{os.getpid()}.{next(_numbers)}{UNFINISHED}"
    descriptor = os.open(unfinished, NEW_FILE, 0o600, dir_fd=folder)
    try:
        try:
            n_bytes = write_all(descriptor, [header, *parts])
        finally:
            os.close(descriptor)
        os.rename(unfinished, which.name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        remove(folder, unfinished)
        raise
    return n_bytes


def write_all(descriptor: int, parts: Sequence[Any]) -> int:
    """Write runs of bytes, one after the other; gives how many bytes they are."""
    left = [memoryview(part).cast("B") for part in parts]
    n_bytes = sum(map(len, left))
    while left:
        n = os.writev(descriptor, left[:MOST_VECTORS])
        if n == 0:
            raise OSError(errno.EIO, "the disk takes no bytes")
        left = behind(left, n)
    return n_bytes


def behind(parts: list[memoryview], n_bytes: int) -> list[memoryview]:
    """The rest of runs of bytes behind the first so many."""
    for place, part in enumerate(parts):
        if n_bytes < len(part):
            return [part[n_bytes:], *parts[place + 1 :]]
        n_bytes -= len(part)
    return []


def remove(folder: int, name: str) -> None:
    """Remove a file, if it is there and the disk lets us."""
    with suppress(OSError):
        os.unlink(name, dir_fd=folder)


def remove_all(folder: int, names: Iterable[str]) -> None:
    """Remove files, those of them that can be removed."""
    for name in names:
        remove(folder, name)


# ---- reading ----------------------------------------------------------------------------------------------------


def read_file(folder: int, layout: bytes, which: KvFile, memory: Contents, seal: Seal | None = None) -> Contents:
    """Read a file into memory for all that it may hold; gives the part that it does hold.

    Raises `FileNotFoundError`, `Damaged`, or what a failing disk says.
    """
    descriptor = os.open(which.name, READ_FILE, dir_fd=folder)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or fault_of(found):
            raise Damaged("it is not a file of ours")
        head = os.pread(descriptor, HEADER.size, 0)
        contents, expected = check_header(head, layout, which, memory, seal is not None)
        blank = pack_header(layout, which, contents, seal is not None)
        if head[CHECKED] != blank[CHECKED] or found.st_size != len(blank) + payload_bytes(contents, seal is not None):
            raise Damaged("its size is not that of its pages")
        if seal:
            unseal(descriptor, blank, contents, expected, seal)
        else:
            read_all(descriptor, contents.parts, len(blank))
            if checksum([blank, *contents.parts]) != expected:
                raise Damaged("its checksum does not match")
        return contents
    finally:
        os.close(descriptor)


def check_header(head: bytes, layout: bytes, which: KvFile, memory: Contents, is_sealed: bool) -> tuple[Contents, int]:
    """The contents that a header announces, and the checksum; `Damaged` if it is another file's."""
    try:
        magic, version, expected, *facts, mask, _ = HEADER.unpack(head)
    except error:
        raise Damaged("it has no header") from None
    wanted = [layout, which.block_hash, which.n_pages, int(is_sealed)]
    if (magic, version) != (MAGIC, VERSION) or facts != wanted or mask & ~memory.mask:
        raise Damaged("its header is another file's")
    if bool(mask & STATE_BIT) != which.has_state:
        raise Damaged("it has no state, or one that belongs elsewhere")
    return memory.only(mask), expected


def read_all(descriptor: int, parts: Sequence[memoryview], begin: int) -> None:
    """Fill runs of bytes from a place in a file on."""
    left = [part for part in parts if part.nbytes]
    while left:
        n = os.preadv(descriptor, left[:MOST_VECTORS], begin)
        if n == 0:
            raise Damaged("it is cut off")
        begin += n
        left = behind(left, n)


def unseal(descriptor: int, blank: bytes, contents: Contents, expected: int, seal: Seal) -> None:
    """Fill the memory of a sealed file's contents."""
    sealed = bytearray(payload_bytes(contents, is_sealed=True))
    read_all(descriptor, [memoryview(sealed)], len(blank))
    if checksum([blank, sealed]) != expected:
        raise Damaged("its checksum does not match")
    try:
        payload = seal.open(bytes(sealed), blank)
    except ValueError as fault:
        raise Damaged(str(fault)) from None
    begin = 0
    for part in contents.parts:
        part[:] = memoryview(payload)[begin : begin + part.nbytes]
        begin += part.nbytes
