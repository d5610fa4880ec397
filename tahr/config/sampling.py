"""How one request is sampled: the parameters, and which of several places decides each."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, reduce
from typing import Any, ClassVar

from tahr.config.checks import check_ranges, keep_conventions
from tahr.config.sampling_parts import (
    UNLIMITED_TOKENS,
    AllowedTokenParams,
    CandidateParams,
    Cleaners,
    PenaltyParams,
    Ranges,
    ServiceParams,
    StopParams,
    clean_grammar_after,
)
from tahr.errors import ConfigError

DEFAULT_MAX_TOKENS = 1024


# Bases from the last to the first: a dataclass takes its fields in that order.
@dataclass(frozen=True)
class SamplingParams(ServiceParams, StopParams, AllowedTokenParams, PenaltyParams, CandidateParams):
    """How one request picks its tokens. What is not asked for is filled in by `precedence`.

    Hashable: what is given as a list or a mapping is kept as a tuple.
    """

    # Settings asked for with the very value they have by default: only `of` can tell that from silence.
    pinned: frozenset[str] = field(default=frozenset(), repr=False, kw_only=True)

    RANGES: ClassVar[Ranges] = CandidateParams.RANGES | PenaltyParams.RANGES | StopParams.RANGES | ServiceParams.RANGES
    CLEAN: ClassVar[Cleaners] = {
        **PenaltyParams.CLEAN,
        **AllowedTokenParams.CLEAN,
        **StopParams.CLEAN,
        **ServiceParams.CLEAN,
    }
    KINDS: ClassVar[dict[str, type]] = {
        "ignore_eos": bool,
        "cache_prompt": bool,
        "cache_salt": str,
        "speculative": bool,
    }
    TOKEN_LISTS: ClassVar[tuple[str, ...]] = ("banned_tokens", "allowed_tokens", "stop_token_ids")
    # Values that other programs give a meaning of their own, and the value that means it here.
    CONVENTIONS: ClassVar[dict[str, tuple[int, int | float | None]]] = {
        "top_k": (-1, 0),
        "top_p": (0, 1e-6),  # the likeliest token alone
        "seed": (-1, None),
        "max_tokens": (-1, UNLIMITED_TOKENS),
        "t_max_predict_ms": (-1, 0),
    }

    def __post_init__(self) -> None:
        self._check([name for name, default in sampling_defaults().items() if getattr(self, name) is not default])

    def _check(self, given: Collection[str]) -> None:
        """Refuse what these fields cannot be, and tidy them up; the others have their defaults."""
        keep_conventions(self, self.CONVENTIONS)
        check_ranges(self, {name: self.RANGES[name] for name in given if name in self.RANGES})
        check_given(self, [name for name in given if name in self.RANGES])
        check_kinds(self, {name: self.KINDS[name] for name in given if name in self.KINDS})
        keep = object.__setattr__  # frozen from here on, so this is the one moment to tidy up
        for name in given:
            if name in self.CLEAN:
                keep(self, name, self.CLEAN[name](getattr(self, name)))
        if self.grammar is not None or self.grammar_after != ():
            keep(self, "grammar_after", clean_grammar_after(self.grammar, self.grammar_after))
        defaults = sampling_defaults()
        keep(self, "pinned", frozenset(name for name in self.pinned if getattr(self, name) == defaults[name]))
        check_together(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "SamplingParams":
        """The settings that were written down, each of them asked for, also where the value is the default."""
        if unknown := values.keys() - sampling_defaults().keys():
            raise TypeError(f"SamplingParams has no setting {min(unknown)!r}.")
        pinned = frozenset(name for name, value in values.items() if value is not None)
        made = made_of({**sampling_defaults(), **values, "pinned": pinned})
        made._check(values.keys())
        return made

    def asks_for(self, name: str) -> bool:
        """Whether this setting was asked for."""
        return name in self.pinned or getattr(self, name) != sampling_defaults()[name]

    def over(self, defaults: "SamplingParams") -> "SamplingParams":
        """A copy whose open values come from `defaults`."""
        filled = {
            name: getattr(defaults, name)
            for name in sampling_names()
            if defaults.asks_for(name) and not self.asks_for(name)
        }
        if not filled:
            return self
        return replace(self, **give_way(self, filled), pinned=self.pinned | defaults.pinned)

    def completed(self, defaults: "SamplingParams", changes: Mapping[str, Any]) -> "SamplingParams":
        """A copy whose open values come from complete `defaults`, with `changes` over both.

        All of them were checked when they were made, so that only what must hold together is checked again.
        """
        pinned = self.pinned | {*PER_REQUEST}
        own = vars(self)
        other = vars(defaults)
        values = {
            name: other[name] if own[name] == default and name not in pinned else own[name]
            for name, default in sampling_defaults().items()
        }
        made = made_of({**values, **changes, "pinned": self.pinned | defaults.pinned})
        check_together(made)
        return made


PER_REQUEST = ("grammar", "grammar_after", "lora", "pinned")  # no defaults of a model or a server


@cache
def sampling_names() -> tuple[str, ...]:
    """The settings of `SamplingParams` that have defaults, in order."""
    return tuple(f.name for f in fields(SamplingParams) if f.name not in PER_REQUEST)


@cache
def sampling_defaults() -> Mapping[str, Any]:
    """Every field with its default, in order."""
    return {f.name: f.default for f in fields(SamplingParams) if f.name != "pinned"}


def made_of(values: Mapping[str, Any]) -> SamplingParams:
    """Parameters with these values, which are checked elsewhere."""
    made = object.__new__(SamplingParams)
    vars(made).update(values)
    return made


def sampling_values(params: SamplingParams) -> dict[str, Any]:
    """All settings by name, as plain values."""
    return {name: getattr(params, name) for name in sampling_names()}


def give_way(requested: SamplingParams, filled: dict[str, Any]) -> dict[str, Any]:
    """A length that was asked for moves the other one, where that is only a default."""
    least = filled.get("min_tokens")
    most = filled.get("max_tokens")
    if least and requested.max_tokens is not None:
        filled["min_tokens"] = min(least, requested.max_tokens)
    if most is not None and requested.min_tokens:
        filled["max_tokens"] = max(most, requested.min_tokens)
    return filled


def check_given(params: SamplingParams, names: Iterable[str]) -> None:
    """None means not asked for; it is refused for settings that have a value of their own by default."""
    for name in names:
        if getattr(params, name) is None and sampling_defaults()[name] is not None:
            raise ConfigError(f"{name} is None, but it must be {params.RANGES[name]}: leave it out for its default.")


def check_kinds(params: SamplingParams, kinds: Mapping[str, type]) -> None:
    for name, kind in kinds.items():
        if not isinstance(getattr(params, name), kind):
            what = "a text" if kind is str else "True or False"
            raise ConfigError(f"{name} is {getattr(params, name)!r}, but it must be {what}.")


def check_together(params: SamplingParams) -> None:
    """Refuse values that are fine alone but cannot be had together."""
    if params.mirostat not in (None, 0, 2) or isinstance(params.mirostat, bool):
        raise ConfigError(f"mirostat is {params.mirostat!r}, but it must be 0 (off) or 2 (version 2).")
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise ConfigError(f"min_tokens is {params.min_tokens}, but max_tokens is {params.max_tokens}: lower the first.")
    if params.allowed_tokens and set(params.allowed_tokens) <= set(params.banned_tokens):
        raise ConfigError("allowed_tokens and banned_tokens leave no token to pick: loosen one of them.")


NEUTRAL_SAMPLING = SamplingParams(
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    repetition_penalty=1.0,
    repeat_last_n=64,
    max_tokens=DEFAULT_MAX_TOKENS,
)


def precedence(*levels: SamplingParams) -> SamplingParams:
    """Sampling settings from several places: of those that set one, the first counts.

    The order is the same everywhere: the request, the server's flags and files, the model's generation_config.json
    or GGUF metadata, its family, and last `NEUTRAL_SAMPLING`, which changes no probability.
    """
    return reduce(SamplingParams.over, (*levels, NEUTRAL_SAMPLING))


GREEDY = SamplingParams(temperature=0.0)
PRESETS = {
    "greedy": GREEDY,
    "precise": SamplingParams(temperature=0.3, top_p=0.9),
    "creative": SamplingParams(temperature=1.0, min_p=0.05),
}


def preset(name: str) -> SamplingParams:
    """The sampling parameters that go by that name."""
    if name not in PRESETS:
        raise ConfigError(f"There is no sampling preset {name!r}: take one of {', '.join(PRESETS)}.")
    return PRESETS[name]
