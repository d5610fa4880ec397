"""What can be asked for: frozen, checked once, at the door. What is worked out later lives elsewhere."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from tahr.errors import ConfigError

DEFAULT_MAX_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Range:
    """The values a numeric option may take."""

    low: float
    high: float
    low_included: bool = True

    def holds(self, value: float) -> bool:
        above = value >= self.low if self.low_included else value > self.low
        return math.isfinite(value) and above and value <= self.high

    def __str__(self) -> str:
        return f"{'at least' if self.low_included else 'above'} {self.low:g}" + (
            "" if math.isinf(self.high) else f" and at most {self.high:g}"
        )


def check_ranges(thing: Any, ranges: dict[str, Range]) -> None:
    """Refuse a number outside its range, naming the option, the value and what is allowed."""
    for name, allowed in ranges.items():
        value = getattr(thing, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not allowed.holds(value):
            raise ConfigError(f"{name} is {value!r}, but it must be a number {allowed}.")


def clean_stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    """Stop strings as a tuple; an empty one would stop everything, so it is refused."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(s, str) and s for s in stops):
        raise ConfigError("stop must be a non-empty string or a list of non-empty strings.")
    return stops


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request picks its tokens. None means: not asked for, so the model's own recommendation applies."""

    temperature: float | None = None  # 0: always the most likely token
    top_k: int | None = None  # 0: off
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    repeat_last_n: int | None = None
    seed: int | None = None  # None: a fresh one per request
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    RANGES: ClassVar[dict[str, Range]] = {
        "temperature": Range(0, 100),
        "top_k": Range(0, 2**31 - 1),
        "top_p": Range(0, 1, low_included=False),
        "min_p": Range(0, 1),
        "repetition_penalty": Range(0, 100, low_included=False),
        "repeat_last_n": Range(0, 2**31 - 1),
        "seed": Range(0, 2**64 - 1),
        "max_tokens": Range(1, 2**31 - 1),
    }

    def __post_init__(self) -> None:
        check_ranges(self, self.RANGES)
        object.__setattr__(self, "stop", clean_stops(self.stop))

    def over(self, defaults: "SamplingParams") -> "SamplingParams":
        """These values, with `defaults` filling in what was not asked for."""
        unset = {f.name: getattr(defaults, f.name) for f in fields(self) if getattr(self, f.name) is None}
        return replace(self, **unset)


NEUTRAL_SAMPLING = SamplingParams(
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    repetition_penalty=1.0,
    repeat_last_n=64,
    max_tokens=DEFAULT_MAX_TOKENS,
)
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine is asked to be."""

    backend: str = "auto"
    n_threads: int | None = None  # None: one per core
    context_size: int | None = None  # None: the model's own, as far as memory allows
    kv_dtype: str | None = None  # None: the backend's default
    page_size: int = 32
    kv_bytes: int | None = None  # None: enough for max_batch_size sequences, at most a quarter of free memory
    prefill_chunk_size: int = 512
    max_batch_size: int = 16

    RANGES: ClassVar[dict[str, Range]] = {
        "n_threads": Range(1, 1024),
        "context_size": Range(8, 2**31 - 1),
        "page_size": Range(1, 4096),
        "kv_bytes": Range(1, 2**62),
        "prefill_chunk_size": Range(1, 65536),
        "max_batch_size": Range(1, 4096),
    }

    def __post_init__(self) -> None:
        check_ranges(self, self.RANGES)
