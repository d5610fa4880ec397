"""The backends this machine can run; TAHR_TEST_BACKENDS narrows them."""

import os
from collections.abc import Sequence

import numpy as np

from tahr.backends import BACKENDS, open_backend
from tahr.backends.api import Backend, KVStore, LayerShape, MemoryLayout, Weight
from tahr.backends.cuda import presence as cuda_presence
from tahr.backends.reference import DenseMatrix, ReferenceBackend
from tahr.weights.tensor import HostTensor

USABLE = [name for name in BACKENDS if name != "cuda" or not cuda_presence.problem()]
NAMES = [n for n in os.environ.get("TAHR_TEST_BACKENDS", ",".join(USABLE)).split(",") if n]
_opened: dict[tuple[str, bool], Backend] = {}


def backend(name: str, deterministic: bool = False) -> Backend:
    """One instance of a kind, so that thread pools are not made again for every test."""
    kind = name, deterministic and name == "cuda"  # the others always are
    if kind not in _opened:
        _opened[kind] = open_backend(name, 2 if name == "cpu" else None, deterministic)
    return _opened[kind]


class DenseReference(ReferenceBackend):
    """The oracle of a backend that keeps block-quantised weights dense in bf16 and never rounds rows to int8."""

    def weight(self, tensor: HostTensor) -> Weight:
        weight = super().weight(tensor)
        if weight.data.int8:
            object.__setattr__(weight, "data", DenseMatrix(round_to_bf16(weight.data.values), int8=False))
        return weight


def round_to_bf16(values: np.ndarray) -> np.ndarray:
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def kv_store(
    be: Backend,
    layers: Sequence[LayerShape],
    n_pages: Sequence[int],
    page_size: int,
    dtype: str,
    groups: Sequence[Sequence[int]] | None = None,
    n_slots: int = 1,
) -> KVStore:
    """A store from plain lists."""
    of_groups = None if groups is None else tuple(map(tuple, groups))
    return be.kv_store(MemoryLayout(tuple(layers), tuple(n_pages), page_size, dtype, of_groups, n_slots))


def oracle(name: str) -> ReferenceBackend:
    """What computes the values that backend must reach."""
    return DenseReference() if name == "cuda" else ReferenceBackend()
