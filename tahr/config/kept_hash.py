"""A hash that is computed once: caches ask for it at every request, and some keys have many fields."""

from dataclasses import fields
from typing import Any


class KeptHash:
    """For frozen dataclasses with slots, which say `__hash__ = KeptHash.__hash__`."""

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:
        if not hasattr(self, "_hash"):
            of: Any = self
            object.__setattr__(self, "_hash", hash(tuple(getattr(self, f.name) for f in fields(of))))
        return self._hash
