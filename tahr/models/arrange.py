"""Tensors cut and ordered the way blocks want them, where files have them otherwise: not before they are used."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from tahr.errors import CorruptFile, QuantError
from tahr.weights.tensor import HostTensor

PLAIN = {"F32": "<f4", "F16": "<u2", "BF16": "<u2"}  # formats whose numbers can be moved about one by one
Make = Callable[[], HostTensor]


class Tensors(Mapping[str, HostTensor]):
    """Tensors by name; some are made when they are asked for."""

    def __init__(self, stored: Mapping[str, HostTensor]):
        self._made: dict[str, Make] = {name: as_is(tensor) for name, tensor in stored.items()}

    def __getitem__(self, name: str) -> HostTensor:
        return self._made[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._made

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    def split(self, part: str, heights: Mapping[str, int], n_groups: int = 1) -> None:
        """In every layer, cut the rows of `part` into those of other linears: so many each, `n_groups` times over."""
        for prefix, kind in self.found(part):
            whole, first = self._made.pop(f"{prefix}{part}.{kind}"), 0
            for name, height in heights.items():
                self._made[f"{prefix}{name}.{kind}"] = cut(whole, first, height, sum(heights.values()), n_groups)
                first += height

    def transpose(self, parts: Mapping[str, str]) -> None:
        """Turn the matrices of some linears, stored [n_cols, n_rows], in every layer, and give them other names."""
        for part, name in parts.items():
            for prefix, kind in self.found(part):
                stored = self._made.pop(f"{prefix}{part}.{kind}")
                self._made[f"{prefix}{name}.{kind}"] = turned(stored) if kind == "weight" else stored

    def rename(self, pattern: str, replacement: str) -> None:
        """Other names for the tensors whose whole name matches."""
        for name in [name for name in self._made if re.fullmatch(pattern, name)]:
            self._made[re.sub(pattern, replacement, name)] = self._made.pop(name)

    def drop(self, name: str) -> None:
        """Forget `name`, if it is there."""
        self._made.pop(name, None)

    def found(self, part: str) -> list[tuple[str, str]]:
        """(prefix, kind) of a part of layers: its weights and biases."""
        pattern = re.compile(rf"(model\.layers\.\d+\.){re.escape(part)}\.(weight|bias)")
        return [(m[1], m[2]) for m in map(pattern.fullmatch, self._made) if m]


def as_is(tensor: HostTensor) -> Make:
    return lambda: tensor


def cut(whole: Make, first: int, height: int, of: int, n_groups: int) -> Make:
    """Rows `first .. first + height` of every `of` rows of a matrix, of each matrix of a stack, or of a bias."""

    def make() -> HostTensor:
        tensor = whole()
        stack, (n_rows, *cols) = (tensor.shape[:1], tensor.shape[1:]) if len(tensor.shape) == 3 else ((), tensor.shape)
        check_rows(tensor, n_rows, n_groups * of)
        n_cuts, shape = n_groups * (stack[0] if stack else 1), (*stack, n_groups * height, *cols)
        row_bytes = tensor.n_bytes // (n_cuts * of)
        if n_cuts == 1:
            begin = first * row_bytes
            data = tensor.data[begin : begin + height * row_bytes]
            return replace(tensor, shape=shape, data=data, start=tensor.start + begin)
        rows = tensor.data.reshape(n_cuts, of, row_bytes)[:, first : first + height]
        return HostTensor(tensor.name, tensor.format, shape, np.ascontiguousarray(rows).reshape(-1))

    return make


def check_rows(tensor: HostTensor, n_rows: int, wanted: int) -> None:
    if n_rows != wanted:
        raise CorruptFile(
            f"Tensor {tensor.name} has {n_rows} rows, but the model's configuration asks for {wanted}. "
            "The file is damaged or the two belong to different models; fetch the model again."
        )


def turned(stored: Make) -> Make:
    """A matrix, or every matrix of a stack, with rows and columns exchanged."""

    def make() -> HostTensor:
        tensor = stored()
        if tensor.format.name not in PLAIN:
            raise QuantError(
                f"Tensor {tensor.name} is stored as {tensor.format.name} and cannot be turned; use a GGUF of the model."
            )
        values = tensor.data.view(PLAIN[tensor.format.name]).reshape(tensor.shape).swapaxes(-1, -2)
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return HostTensor(tensor.name, tensor.format, values.shape, data)

    return make
