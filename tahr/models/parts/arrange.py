"""Tensors cut and ordered the way blocks want them, where files have them otherwise: not before they are used."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tahr.errors import CorruptFile
from tahr.models.parts.makers import Cut, Make, as_is, cut, joined, kept, mxfp4, one_row, stack_of, turned
from tahr.weights.tensor import HostTensor


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

    def split(
        self,
        part: str,
        heights: Mapping[str, int],
        n_groups: int = 1,
        stem: str = "model",
    ) -> None:
        """Cut the rows of `part` into linears of these heights in every layer, `n_groups` times over."""
        for prefix, kind in self.found(part, stem):
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

    def replace(
        self,
        names: Sequence[str],
        name: str,
        make: Callable[[Mapping[str, Make]], HostTensor],
    ) -> None:
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

    def found(self, part: str, stem: str = "model") -> list[tuple[str, str]]:
        """(prefix, kind) of a part of layers, of the text model's or others: its weights and biases."""
        pattern = re.compile(rf"({stem}\.layers\.\d+\.){re.escape(part)}\.(weight|bias)")
        return [(m[1], m[2]) for m in map(pattern.fullmatch, self._made) if m]
