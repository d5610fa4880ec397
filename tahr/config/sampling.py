"""How one request is sampled: the parameters, and which of several places decides each."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial, reduce
from operator import attrgetter
from typing import Any, ClassVar

from tahr.config.checks import (
    TOKEN,
    Range,
    are_tokens,
    check_ranges,
    clean_stops,
    clean_tokens,
    keep_conventions,
    whole,
)
from tahr.config.kept_hash import KeptHash
from tahr.config.lora import LoraChoice, clean_lora
from tahr.errors import ConfigError
from tahr.grammar.spec import Grammar

DEFAULT_MAX_TOKENS = 1024
UNLIMITED_TOKENS = 2**31 - 1  # the length ends with the context

BIAS = Range(-100, 100)
Breaker = str | tuple[int, ...]  # a text, or the ids of the tokens that make it up


def clean_grammar_after(grammar: Any, tokens: Any) -> tuple[int, ...]:
    """The tokens a grammar begins after, with a grammar that is one."""
    if grammar is not None and not isinstance(grammar, Grammar):
        raise ConfigError(f"grammar is {grammar!r}, but it must be a Grammar: write Grammar('regex', '[0-9]+').")
    if not are_tokens(tokens):
        raise ConfigError(f"grammar_after is {tokens!r}, but it must be a list of token ids.")
    if tokens and grammar is None:
        raise ConfigError("grammar_after is given without a grammar: give both, or neither.")
    return tuple(tokens)


def clean_bias(bias: Any) -> tuple[tuple[int, float], ...]:
    """A bias per token, as pairs in the order of the ids, so that equal biases are equal parameters."""
    try:
        pairs = dict(bias)
    except (TypeError, ValueError):
        pairs = {None: None}
    if not all(TOKEN.holds(token) and BIAS.holds(value) for token, value in pairs.items()):
        raise ConfigError(f"logit_bias is {bias!r}, but it must map token ids to {BIAS}.")
    return tuple(sorted(pairs.items()))


def clean_breakers(breakers: Any) -> tuple[Breaker, ...]:
    """Texts stay texts, token sequences become tuples; an empty one would break everywhere, so it is refused."""
    fine = isinstance(breakers, Collection) and not isinstance(breakers, str)
    if not fine or not all(b and (isinstance(b, str) or are_tokens(b)) for b in breakers):
        raise ConfigError(
            f"dry_sequence_breakers is {breakers!r}, but it must be a list of texts or lists of token ids, none empty."
        )
    return tuple(b if isinstance(b, str) else tuple(b) for b in breakers)


@dataclass(frozen=True, slots=True)
class SamplingParams(KeptHash):
    """How one request picks its tokens. What is not asked for is filled in by `precedence`.

    Hashable: what is given as a list or a mapping is kept as a tuple. The stages run in the order of
    `backends.sampling.stages`; a stage whose setting stays None is off.
    """

    temperature: float | None = None  # 0: always the most likely token
    top_k: int | None = None  # 0: off
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None  # 1: off
    top_n_sigma: float | None = None  # 0: off
    top_a: float | None = None  # 0: off
    eta_cutoff: float | None = None  # 0: off
    xtc_probability: float | None = None  # 0: off
    xtc_threshold: float = 0.1
    dry_multiplier: float | None = None  # 0: off
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1  # -1: the whole text
    dry_sequence_breakers: tuple[Breaker, ...] = ("\n", ":", '"', "*")
    mirostat: int | None = None  # 2: version 2 instead of all truncation; 0: off
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    repetition_penalty: float | None = None
    repeat_last_n: int | None = None  # -1: the whole text, 0: off
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    banned_tokens: tuple[int, ...] = ()
    allowed_tokens: tuple[int, ...] = ()  # empty: all
    seed: int | None = None  # None: a fresh one per request
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n_indent: int = 0  # spaces or tabs that lines after the first begin with; the text ends before one with fewer
    t_max_predict_ms: int = 0  # the text ends with the line in which so much time has passed since its first; 0: any
    logprobs: int | None = None  # likeliest tokens to list beside the sampled one; 0: none
    prompt_logprobs: int | None = None
    priority: int = 0  # higher goes first
    cache_salt: str = ""
    cache_prompt: bool = True
    thinking_budget: int | None = None  # tokens of a block of thinking, which is then closed; None: as many as it takes
    grammar: Grammar | None = None  # the text must be in this language
    grammar_after: tuple[int, ...] = ()  # tokens in a row that it begins after, such as </think>; empty: at once
    speculative: bool = True  # whether its tokens may be guessed ahead, where the engine does so: the reply is the same
    lora: str | tuple[LoraChoice, ...] = ()  # adapters to add to the model, by name
    # Settings asked for with the very value they have by default: only `of` can tell that from silence.
    pinned: frozenset[str] = field(default=frozenset(), repr=False, kw_only=True)

    RANGES: ClassVar[dict[str, Range]] = {
        "temperature": Range(0, 100),
        "top_k": whole(0),
        "top_p": Range(0, 1, low_included=False),
        "min_p": Range(0, 1),
        "typical_p": Range(0, 1, low_included=False),
        "top_n_sigma": Range(0, 100),
        "top_a": Range(0, 1),
        "eta_cutoff": Range(0, 1),
        "xtc_probability": Range(0, 1),
        "xtc_threshold": Range(0, 0.5, low_included=False),  # two tokens cannot both have more than half
        "dry_multiplier": Range(0, 100),
        "dry_base": Range(1, 100),
        "dry_allowed_length": whole(1),
        "dry_penalty_last_n": whole(-1),
        "mirostat_tau": Range(0, 100, low_included=False),
        "mirostat_eta": Range(0, 1, low_included=False),
        "repetition_penalty": Range(0.01, 100),  # logits divided by much less overflow
        "repeat_last_n": whole(-1),
        "presence_penalty": Range(-2, 2),
        "frequency_penalty": Range(-2, 2),
        "seed": whole(-(2**63), 2**64 - 1),
        "n": whole(1, 1024),
        "max_tokens": whole(1),
        "min_tokens": whole(0),
        "n_indent": whole(0, 1024),
        "t_max_predict_ms": whole(0),
        "logprobs": whole(0, 1024),
        "prompt_logprobs": whole(0, 1024),
        "priority": whole(-(2**31)),
        "thinking_budget": whole(0),
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
            if name in CLEAN:
                keep(self, name, CLEAN[name](getattr(self, name)))
        if self.grammar is not None or self.grammar_after != ():
            keep(self, "grammar_after", clean_grammar_after(self.grammar, self.grammar_after))
        keep(
            self, "pinned", frozenset(name for name in self.pinned if getattr(self, name) == sampling_defaults()[name])
        )
        check_together(self)

    __hash__ = KeptHash.__hash__

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "SamplingParams":
        """The settings that were written down, each of them asked for, also where the value is the default."""
        if unknown := values.keys() - PUT.keys():
            raise TypeError(f"SamplingParams has no setting {min(unknown)!r}.")
        made = object.__new__(cls)
        for name, default in sampling_defaults().items():
            PUT[name](made, default)
        for name, value in values.items():
            PUT[name](made, value)
        PUT["pinned"](made, frozenset(name for name, value in values.items() if value is not None))
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
        made = object.__new__(SamplingParams)
        pinned = self.pinned | {*PER_REQUEST}
        fields_of = zip(sampling_defaults().items(), VALUES(self), VALUES(defaults), strict=True)
        for (name, default), own, other in fields_of:
            PUT[name](made, other if own == default and name not in pinned else own)
        for name, value in {**changes, "pinned": self.pinned | defaults.pinned}.items():
            PUT[name](made, value)
        check_together(made)
        return made


# How lists and mappings become tuples.
CLEAN: Mapping[str, Callable[[Any], Any]] = {
    "stop": clean_stops,
    "logit_bias": clean_bias,
    "dry_sequence_breakers": clean_breakers,
    "lora": clean_lora,
    **{name: partial(clean_tokens, name) for name in SamplingParams.TOKEN_LISTS},
}
PER_REQUEST = ("grammar", "grammar_after", "lora", "pinned")  # no defaults of a model or a server


@cache
def sampling_names() -> tuple[str, ...]:
    """The settings of `SamplingParams` that have defaults, in order."""
    return tuple(f.name for f in fields(SamplingParams) if f.name not in PER_REQUEST)


@cache
def sampling_defaults() -> Mapping[str, Any]:
    """Every field with its default, in order."""
    return {f.name: f.default for f in fields(SamplingParams) if f.name != "pinned"}


VALUES = attrgetter(*sampling_defaults())
# Setters for parameters that are being made; they are frozen from then on.
PUT: Mapping[str, Callable[[SamplingParams, Any], None]] = {
    f.name: getattr(SamplingParams, f.name).__set__ for f in fields(SamplingParams)
}


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
