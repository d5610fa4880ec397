"""Fingerprints of models: what tells the weights of one from those of another, read in no time."""

import hashlib
import os
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from functools import partial
from pathlib import Path

from tahr.regular_file import open_regular

PROBE_BYTES = 8 << 20  # part of each end of a file that its fingerprint covers
# of what is between: matrices of layers are about as large, or larger
SAMPLE_BYTES = 4096
SAMPLE_EVERY = 4 << 20
MAX_SAMPLES = 4096


def fingerprint_of_files(files: ListOf[Path]) -> str:
    """Content only, so that a copied or touched file is still the same: sizes, both ends of each file, and samples of
    what is between, because a model with an adapter merged into its layers has the ends of the one without."""
    digest = hashlib.sha256()
    for path in files:
        with open(open_regular(path), "rb") as file:  # noqa: PTH123 (of a descriptor)
            add(digest, os.fstat(file.fileno()).st_size, partial(os.pread, file.fileno()))
    return digest.hexdigest()


def fingerprint_of_bytes(data: bytes) -> str:
    """The fingerprint of a file with this content."""
    digest = hashlib.sha256()
    add(digest, len(data), lambda size, at: data[at : at + size])
    return digest.hexdigest()


def add(digest: "hashlib._Hash", n_bytes: int, read: Callable[[int, int], bytes]) -> None:
    """Count in a file of `n_bytes`; `read` takes a number of bytes and where they begin."""
    n_samples = min(n_bytes // SAMPLE_EVERY, MAX_SAMPLES)
    places = [n_bytes * i // n_samples for i in range(1, n_samples)]
    ends = [(PROBE_BYTES, 0), (PROBE_BYTES, max(0, n_bytes - PROBE_BYTES))]
    digest.update(n_bytes.to_bytes(8, "little"))
    for size, at in [*ends, *((SAMPLE_BYTES, place) for place in places)]:
        digest.update(read(size, at))
