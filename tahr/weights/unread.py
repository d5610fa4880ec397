"""Stand-ins for the bytes of a tensor where only sizes count: one zero, seen as an array of the right shape."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tahr.weights.tensor import HostTensor

# Parts of quantised matrices whose values say in which format the matrix is stored; a hundredth of the matrix at most.
TELLING = ("qzeros", "g_idx", "weight_zero_point", "weight_g_idx", "weight_shape", "scales", "weight_scale")


class Unread(np.ndarray):
    """An array that holds one zero, whatever its shape: cutting, joining and arithmetic keep it so."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Equal numbers give equal numbers, so one of them is computed; what meets real numbers becomes real."""
        arrays = [each for each in inputs if isinstance(each, np.ndarray) and each.ndim]
        if method != "__call__" or options or not all(isinstance(each, Unread) for each in arrays):
            return getattr(ufunc, method)(*map(plain, inputs), **options)
        result = ufunc(*[plain(each).flat[0] if isinstance(each, Unread) else each for each in inputs])
        shape = np.broadcast_shapes(*[each.shape for each in arrays])
        if np.any(result):
            return np.broadcast_to(result, shape)
        return unread(shape, np.asarray(result).dtype)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Pieces that are joined are as unread as before; all else becomes real."""
        if func in (np.concatenate, np.stack) and all(isinstance(each, Unread) for each in args[0]):
            return joined(func, args[0], *args[1:], **kwargs)
        return func(*tree(args), **{name: plain(value) for name, value in kwargs.items()})

    def view(self, dtype: Any = None, type: Any = None) -> Any:
        """View the bytes as numbers of another size."""
        if type is not None or dtype is None or dtype is np.ndarray:
            return super().view(type or dtype or Unread)
        new = np.dtype(dtype)
        return unread((*self.shape[:-1], self.shape[-1] * self.itemsize // new.itemsize), new)

    def astype(self, dtype: Any, *_: Any, **__: Any) -> Any:
        return unread(self.shape, np.dtype(dtype))

    def copy(self, order: Any = "C") -> Any:
        return self


def unread(shape: Sequence[int], dtype: Any = np.uint8) -> Unread:
    """An array of that shape without memory."""
    return np.broadcast_to(np.zeros((), dtype), tuple(shape)).view(Unread)


def joined(func: Any, parts: Sequence[Unread], axis: int = 0) -> Unread:
    """Pieces one behind the other, or stacked."""
    shape = list(parts[0].shape)
    if func is np.stack:
        shape.insert(axis % (len(shape) + 1), len(parts))
    else:
        shape[axis] = sum(part.shape[axis] for part in parts)
    return unread(shape, parts[0].dtype)


def plain(value: Any) -> Any:
    return np.ndarray.view(value, np.ndarray) if isinstance(value, Unread) else value


def tree(args: Sequence[Any]) -> list[Any]:
    """Arguments, and lists among them, with real arrays."""
    return [[plain(each) for each in arg] if isinstance(arg, list | tuple) else plain(arg) for arg in args]


def without_data(tensor: HostTensor) -> HostTensor:
    """The tensor as its header tells it. Vectors stay: they are small, and some say what is made of a matrix."""
    if len(tensor.shape) < 2 or tensor.name.rpartition(".")[2] in TELLING:
        return tensor
    return replace(tensor, data=unread((tensor.n_bytes,)))
