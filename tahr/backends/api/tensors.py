"""Arguments and results of ops: rows of activations, weights, vectors, linears."""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Bytes = NDArray[np.uint8]

INT8_BLOCK = 32  # activations meeting block-quantised weights are rounded to int8 in groups of this many columns


class Rows(Enum):
    """Which count of the step inputs says how many rows of a tensor are alive."""

    TOKENS = 0
    LOGITS = 1
    FIXED = 2  # rows the tensor was made with: eager use, tests


@dataclass(frozen=True, slots=True)
class Tensor:
    """Activation rows on a device; `data` is the backend's own handle."""

    width: int
    rows: Rows
    data: Any


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix `[n_rows, n_cols]` (or a stack of `n_stack` such) as a device keeps it.

    `format` is the name in the file, `kernel` what this backend will run for it: a reader of the load log sees both.
    """

    name: str
    format: str
    kernel: str
    n_rows: int
    n_cols: int
    n_bytes: int
    data: Any
    n_stack: int = 1
    # bytes of a table that is looked up in its file: `n_bytes` come on top if a linear multiplies it
    file_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Vector:
    """A norm gain or a bias: f32 on every backend."""

    width: int
    data: Any


# What becomes of a product where each rank has a part of the matrix: nothing, the sum over ranks, or all their columns.
Reduce = Literal["", "sum", "join"]


@dataclass(frozen=True, slots=True)
class Linear:
    """x @ weight.T + bias. `name` is the model's name of it (`model.layers.0.mlp.down_proj`), by which an adapter or a
    sharding finds it. `reduce` is for who gives ranks their ops: no backend looks at it."""

    weight: Weight
    bias: Vector | None = None
    name: str = ""
    reduce: Reduce = ""


@dataclass(frozen=True, slots=True)
class JoinedLinears:
    """Linears of the same rows, such as queries, keys and values. `Backend.join` makes them when a model is loaded.

    `data` is what the backend keeps to compute them together; the matrices of `parts` may be views of it. `room` is
    where it keeps the first factors of adapters of these linears, if it does so behind the matrices.
    """

    parts: tuple[Linear, ...]
    data: Any = None
    spare_rows: Any = None
