"""Tensors cut and ordered the way blocks want them, where files have them otherwise: not before they are used."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tahr.errors import CorruptFile
from tahr.weights.formats import FORMATS
from tahr.weights.tensor import HostTensor

PLAIN = {"F32": "<f4", "F16": "<u2", "BF16": "<u2"}  # formats whose numbers can be moved about one by one
Make = Callable[[], HostTensor]


@dataclass(frozen=True, slots=True)
class Joined:
    """A tensor that is made of several, and known by another name than theirs."""

    name: str
    parts: Mapping[str, Make]
    join: Callable[[Mapping[str, Make]], HostTensor]

    def __call__(self) -> HostTensor:
        return self.join(self.parts)


class Tensors(Mapping[str, HostTensor]):
    """Tensors by name; some are made when they are asked for."""

    def __init__(self, stored: Mapping[str, HostTensor]):
        self._made: dict[str, Make] = {name: as_is(tensor) for name, tensor in stored.items()}
        self.made_dense: set[str] = set()  # quantised matrices that became dense ones, as far as they have been made

    def __getitem__(self, name: str) -> HostTensor:
        return self._made[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._made

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    def split(self, part: str, heights: Mapping[str, int], n_groups: int = 1) -> None:
        """Cut the rows of `part` into linears of these heights in every layer, `n_groups` times over."""
        for prefix, kind in self.found(part):
            whole = kept(self._made.pop(f"{prefix}{part}.{kind}"), len(heights))
            first = 0
            for name, height in heights.items():
                rows = Cut(first, height, sum(heights.values()), n_groups, n_axes=1 if kind == "bias" else 2)
                self._made[f"{prefix}{name}.{kind}"] = cut(whole, rows)
                first += height

    def transpose(self, parts: Mapping[str, str]) -> None:
        """Turn the matrices of some linears, stored [n_cols, n_rows], in every layer, and give them other names."""
        for part, name in parts.items():
            for prefix, kind in self.found(part):
                stored = self._made.pop(f"{prefix}{part}.{kind}")
                self._made[f"{prefix}{name}.{kind}"] = turned(stored) if kind == "weight" else stored

    def join_rows(self, parts: Sequence[str], name: str) -> None:
        """Stack several matrices into one, in every layer that has them."""
        for prefix, kind in self.found(parts[0]):
            self._made[f"{prefix}{name}.{kind}"] = joined([self.take(f"{prefix}{p}.{kind}") for p in parts])

    def as_matrix(self, part: str) -> None:
        """Turn a vector into a matrix of one row, in every layer."""
        for prefix, kind in self.found(part):
            stored = self._made[f"{prefix}{part}.{kind}"]
            self._made[f"{prefix}{part}.{kind}"] = one_row(stored)

    def as_stack(self, part: str, n: int) -> None:
        """Turn the rows of a matrix into `n` matrices, in every layer."""
        for prefix, kind in self.found(part):
            stored = self._made[f"{prefix}{part}.{kind}"]
            self._made[f"{prefix}{part}.{kind}"] = stack_of(stored, n)

    def rename(self, pattern: str, replacement: str) -> None:
        """Other names for the tensors whose whole name matches."""
        for name in [name for name in self._made if re.fullmatch(pattern, name)]:
            self._made[re.sub(pattern, replacement, name)] = self._made.pop(name)

    def join_mxfp4(self, part: str) -> None:
        """Make one MXFP4 matrix of a checkpoint's separate codes and scales, in every layer."""
        for prefix, kind in self.found(f"{part}_blocks"):
            codes, scales = (self.take(f"{prefix}{part}_{side}.{kind}") for side in ("blocks", "scales"))
            self._made[f"{prefix}{part}.{kind}"] = mxfp4(codes, scales)

    def replace(self, names: Sequence[str], name: str, make: Callable[[Mapping[str, Make]], HostTensor]) -> None:
        """Have `name` in place of some tensors, made of them when it is asked for."""
        self._made[name] = Joined(name, {old: self._made.pop(old) for old in names}, make)

    def file_name(self, name: str) -> str:
        """A tensor's name in its file; a joined tensor is not computed for this."""
        made = self._made[name]
        return made.name if isinstance(made, Joined) else made().name

    def make_of(self, name: str) -> Make:
        """The maker of a tensor, which must be there, for use in another one."""
        if name not in self._made:
            raise CorruptFile(f"The model has no tensor {name}; the file is incomplete, fetch the model again.")
        return self._made[name]

    def take(self, name: str) -> Make:
        """Move a tensor into another one: its maker is returned and its own name forgotten."""
        made = self.make_of(name)
        self.drop(name)
        return made

    def define(self, name: str, make: Make) -> None:
        """Let `name` be what `make` gives."""
        self._made[name] = make

    def drop(self, name: str) -> None:
        """Forget `name`, if it is there."""
        self._made.pop(name, None)

    def found(self, part: str) -> list[tuple[str, str]]:
        """(prefix, kind) of a part of layers: its weights and biases."""
        pattern = re.compile(rf"(model\.layers\.\d+\.){re.escape(part)}\.(weight|bias)")
        return [(m[1], m[2]) for m in map(pattern.fullmatch, self._made) if m]


def joined(parts: Sequence[Make]) -> Make:
    def make() -> HostTensor:
        tensors = [part() for part in parts]
        if len({(tensor.format.name, len(tensor.shape), tensor.shape[1:]) for tensor in tensors}) > 1:
            names = ", ".join(tensor.name for tensor in tensors)
            raise CorruptFile(
                f"Tensors {names} differ in width or format and make no one matrix; fetch the model again."
            )
        data = np.concatenate([tensor.data for tensor in tensors])
        n_rows = sum(tensor.shape[0] for tensor in tensors)
        return HostTensor(tensors[0].name, tensors[0].format, (n_rows, *tensors[0].shape[1:]), data)

    return make


def kept(make: Make, n_uses: int) -> Make:
    """A tensor that is made once for so many uses, and forgotten with the last of them."""
    uses: list[HostTensor] = []

    def give() -> HostTensor:
        if not uses:
            uses.extend([make()] * n_uses)
        return uses.pop()

    return give


def one_row(stored: Make) -> Make:
    def make() -> HostTensor:
        tensor = stored()
        return replace(tensor, shape=(1, *tensor.shape)) if len(tensor.shape) == 1 else tensor

    return make


def stack_of(stored: Make, n: int) -> Make:
    def make() -> HostTensor:
        tensor = stored()
        if len(tensor.shape) == 2 and tensor.shape[0] % n == 0:
            return replace(tensor, shape=(n, tensor.shape[0] // n, tensor.shape[1]))
        return tensor

    return make


def as_is(tensor: HostTensor) -> Make:
    return lambda: tensor


@dataclass(frozen=True, slots=True)
class Cut:
    """Rows `first .. first + height` of every `of` rows, of which there are `n_groups` times as many."""

    first: int
    height: int
    of: int
    n_groups: int
    n_axes: int  # 2: of a matrix, or of each matrix of a stack; 1: of a bias, or of each bias of a stack


def cut(whole: Make, rows: Cut) -> Make:
    """Some rows of a tensor: a view of the file where they are all in one place."""

    def make() -> HostTensor:
        tensor = whole()
        check_axes(tensor, rows.n_axes)
        n_stacked = len(tensor.shape) - rows.n_axes
        stack = tensor.shape[:n_stacked]
        (n_rows, *cols) = tensor.shape[n_stacked:]
        check_rows(tensor, n_rows, rows.n_groups * rows.of)
        n_cuts = rows.n_groups * math.prod(stack)
        shape = (*stack, rows.n_groups * rows.height, *cols)
        row_bytes = tensor.n_bytes // (n_cuts * rows.of)
        if n_cuts == 1:
            begin = rows.first * row_bytes
            data = tensor.data[begin : begin + rows.height * row_bytes]
            return replace(tensor, shape=shape, data=data, start=tensor.start + begin)
        found = tensor.data.reshape(n_cuts, rows.of, row_bytes)[:, rows.first : rows.first + rows.height]
        return HostTensor(tensor.name, tensor.format, shape, found.reshape(-1))

    return make


def check_axes(tensor: HostTensor, n_axes: int) -> None:
    if len(tensor.shape) < n_axes or 0 in tensor.shape:
        what = "matrix" if n_axes == 2 else "vector"
        raise CorruptFile(
            f"Tensor {tensor.name} has the shape {list(tensor.shape)} and is no {what}; the file is damaged, fetch the "
            "model again."
        )


def check_rows(tensor: HostTensor, n_rows: int, wanted: int) -> None:
    if n_rows != wanted:
        raise CorruptFile(
            f"Tensor {tensor.name} has {n_rows} rows, but the model's configuration asks for {wanted}. "
            "The file is damaged or the two belong to different models; fetch the model again."
        )


def mxfp4(codes: Make, scales: Make) -> Make:
    """Codes `[..., n_blocks, 16]` and scales `[..., n_blocks]` as GGUF has them: a scale, then the codes of its block,
    the second half of which lies in the upper bits."""

    def make() -> HostTensor:
        stored = codes()
        exponents = scales()
        if stored.shape != (*exponents.shape, 16) or {stored.format.name, exponents.format.name} != {"U8"}:
            raise CorruptFile(f"Tensors {stored.name} and {exponents.name} are no MXFP4 pair; fetch the model again.")
        pairs = stored.data.reshape(-1, 16)
        values = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(-1, 32)  # neighbours share a byte
        packed = values[:, :16] | values[:, 16:] << 4
        data = np.concatenate([exponents.data.reshape(-1, 1), packed], axis=1).reshape(-1)
        shape = (*exponents.shape[:-1], 32 * exponents.shape[-1])
        return HostTensor(stored.name, FORMATS["MXFP4"], shape, data)

    return make


def turned(stored: Make) -> Make:
    """A matrix, or every matrix of a stack, with rows and columns exchanged; dense, if it was stored in blocks."""

    def make() -> HostTensor:
        tensor = stored()
        check_axes(tensor, 2)
        if tensor.format.name not in PLAIN:
            dense = np.ascontiguousarray(tensor.dense(), np.float32).reshape(-1).view(np.uint8)
            tensor = HostTensor(tensor.name, FORMATS["F32"], tensor.shape, dense)
        values = tensor.data.view(PLAIN[tensor.format.name]).reshape(tensor.shape).swapaxes(-1, -2)
        data = values.reshape(-1).view(np.uint8)
        return HostTensor(tensor.name, tensor.format, values.shape, data)

    return make
