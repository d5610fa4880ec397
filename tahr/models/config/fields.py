"""Fields of untrusted model files: every value is checked where it is read."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from tahr.errors import CorruptFile

MOST_SHOWN = 8  # items of a list in a sentence


@dataclass(frozen=True, slots=True)
class Fields:
    """The values of a config.json or of GGUF metadata; None counts as absent. `where` names them in errors."""

    values: Mapping[str, Any]
    where: str
    prefix: str = ""

    def get(self, name: str) -> Any:
        return self.values.get(self.prefix + name)

    def part(self, name: str) -> "Fields":
        """The object called `name`; an empty one if it is absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(name, "an object")
        return Fields(value or {}, f"{self.where}, {name}")

    def count(self, name: str, most: int, default: int | None = None, least: int = 1) -> int:
        """A whole number from `least` to `most`. A list counts as one number if all its items are equal."""
        value = one_value(self.get(name))
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(name, f"a whole number from {least} to {most}")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number above `low` and at most `high`."""
        value = self.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, Real) or not holds(low, value, high):
            raise self.wrong(name, f"a number above {low:g} and at most {high:g}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str, default: str = "") -> str:
        value = self.get(name)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def items(self, name: str, n: int | None = None) -> list[Any]:
        """A list, of exactly `n` items if given; an empty one if it is absent."""
        value = self.get(name)
        if value is None:
            return []
        if isinstance(value, str) or not isinstance(value, Sequence) or (n is not None and len(value) != n):
            raise self.wrong(name, "a list" if n is None else f"a list of {n} items")
        return list(value)

    def wrong(self, name: str, wanted: str) -> CorruptFile:
        value = self.get(name)
        found = "is missing" if value is None else f"is {shown(value)}"
        return CorruptFile(
            f"In {self.where}, {self.prefix}{name} {found}, but it must be {wanted}. "
            "The file is damaged or belongs to another model; fetch the model again."
        )


def shown(value: Any) -> str:
    """A value as a sentence says it; a list of a GGUF may have millions of items."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    if is_list and len(value) > MOST_SHOWN:
        return f"a list of {len(value)} items"
    return repr(list(value) if is_list else value)[:80]


def holds(low: float, value: Any, high: float) -> bool:
    # Compared first: a whole number may be too large to become a float, and then the conversion raises.
    return bool(low < value <= high) and math.isfinite(value)


def one_value(value: Any) -> Any:
    """The common value of a list that repeats one value, or the value itself."""
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0:
        first = value[0]
        return first if all(item == first for item in value) else value
    return value
