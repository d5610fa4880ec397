"""Memory of keys, values and states whose content nobody needs: the system takes it back, and gives zeros later."""

import ctypes
import mmap
import sys
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tahr._native import address_of
from tahr.backends.api import KVStore
from tahr.backends.cpu.kv import PagedLayer


def drop_contents(kv: KVStore) -> int:
    """Drop what is in the memory of all layers; the bytes that are free then. Addresses stay: kernels know them."""
    return sum(dropped(array) for layer in kv.layers for array in arrays_of(layer))


def arrays_of(layer: PagedLayer | NDArray[Any]) -> list[NDArray[Any]]:
    return layer.sides if isinstance(layer, PagedLayer) else [layer]


def dropped(array: NDArray[Any]) -> int:
    """Fill an array with zeros; the whole pages of the system inside it by giving them back."""
    first = -(-address_of(array) // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (address_of(array) + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    taken_back = give_pages_back()
    if taken_back is None or last <= first or taken_back(first, last - first, mmap.MADV_DONTNEED):
        array.view(np.uint8).fill(0)
        return 0
    whole = array.reshape(-1).view(np.uint8)
    begin = first - address_of(array)
    whole[:begin] = 0
    whole[begin + last - first :] = 0
    return last - first


@cache
def give_pages_back() -> Any:
    """The call that lets the system take pages back at once, so that they are zeros afterwards; Linux has one."""
    if sys.platform != "linux":
        return None
    found = ctypes.CDLL(None).madvise
    found.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return found
