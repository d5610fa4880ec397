"""Matrices of integer codes with a scale for every group of columns."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]

Floats: TypeAlias = NDArray[np.float32]

# columns
BLOCK = 32

VALUES_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class IntGroups:
    """A matrix of unsigned codes: value = (code - zero) * scale.

    `codes` is [n_rows, n_cols] of eight bits, or [n_rows, n_cols / 2] of four, even columns in the lower halves; as
    bytes, or four of them in a word.
    `scales` and `zeros` are [n_rows, n_groups]; no zeros means the middle code. `group_of` names the group of every
    column where columns are not in the order of their groups (act-order).
    """

    name: str
    n_bits: int
    codes: Bytes | NDArray[np.int32]
    scales: Floats
    zeros: Bytes | None = None
    group_of: NDArray[np.int32] | None = None

    @property
    def n_cols(self) -> int:
        return int(self.codes.shape[1] * self.codes.itemsize * 8 // self.n_bits)

    @property
    def middle(self) -> int:
        return 1 << (self.n_bits - 1)

    def bytes_of(self, rows: slice) -> Bytes:
        """The codes of some rows as bytes."""
        return np.ascontiguousarray(self.codes[rows]).view(np.uint8)


def by_rows(matrix: IntGroups, fill: Callable[[slice], None]) -> None:
    """Fill some rows after others, on all cores: a few that stay in a core's cache are twice as fast as all at once."""
    n_rows = len(matrix.codes)
    n_at_once = max(1, VALUES_AT_ONCE // matrix.n_cols)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, (slice(at, at + n_at_once) for at in range(0, n_rows, n_at_once))))


def nibbles(packed: Bytes) -> Bytes:
    """Codes of four bits, two to a byte, one by one."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)
