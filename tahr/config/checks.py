"""Allowed values of options, and their tidy form."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tahr.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Range:
    """The values a numeric option may take."""

    low: float
    high: float
    low_included: bool = True
    whole: bool = False

    def holds(self, value: Any) -> bool:
        kinds = (int,) if self.whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            return False
        above = value >= self.low if self.low_included else value > self.low
        return above and value <= self.high and value != math.inf  # a NaN is not above anything

    def __str__(self) -> str:
        kind, form = ("a whole number", "d") if self.whole else ("a number", "g")
        low = f"{kind} {'at least' if self.low_included else 'above'} {self.low:{form}}"
        return low if math.isinf(self.high) else f"{low} and at most {self.high:{form}}"


def whole(low: int, high: int = 2**31 - 1) -> Range:
    """The whole numbers from low to high."""
    return Range(low, high, whole=True)


def check_ranges(thing: Any, ranges: dict[str, Range]) -> None:
    """Refuse a number outside its range, naming the option, the value and what is allowed."""
    for name, allowed in ranges.items():
        value = getattr(thing, name)
        if value is not None and not allowed.holds(value):
            raise ConfigError(f"{name} is {value!r}, but it must be {allowed}.")


def keep_conventions(thing: Any, conventions: Mapping[str, tuple[int, int | float | None]]) -> None:
    """Replace values that other programs write by what they mean here."""
    for name, (written, meaning) in conventions.items():
        value = getattr(thing, name)
        if value == written and not isinstance(value, bool):
            object.__setattr__(thing, name, meaning)


def clean_stops(stop: Any, most: int = 1024) -> tuple[str, ...]:
    """Stop strings as a tuple. An empty one would stop everything, and for too many each token is searched too long."""
    stops = (stop,) if isinstance(stop, str) or not isinstance(stop, Collection) else tuple(stop)
    if not all(isinstance(s, str) and s for s in stops) or len(stops) > most:
        raise ConfigError(f"stop must be a non-empty string or a list of up to {most} non-empty strings.")
    return stops


def refuse_empty(thing: Any, names: Collection[str]) -> None:
    """A shell's variable that is not set must not turn an option off without a word."""
    for name in names:
        value = getattr(thing, name)
        if value is not None and not str(value).strip():
            raise ConfigError(f"{name} is empty: give it a value, or leave it out.")


TOKEN = whole(0)


def are_tokens(value: Any) -> bool:
    return isinstance(value, Collection) and all(TOKEN.holds(token) for token in value)


def clean_tokens(name: str, tokens: Any) -> tuple[int, ...]:
    """Token ids as a tuple, each of them once."""
    if not are_tokens(tokens):
        raise ConfigError(f"{name} is {tokens!r}, but it must be a list of token ids.")
    return tuple(dict.fromkeys(tokens))
