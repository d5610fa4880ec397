"""Sampling parameters by subject: each part with the values it allows."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from tahr.config.checks import TOKEN, Range, are_tokens, clean_stops, clean_tokens, whole
from tahr.config.lora import LoraChoice, clean_lora
from tahr.errors import ConfigError
from tahr.grammar.spec import Grammar

UNLIMITED_TOKENS = 2**31 - 1  # the length ends with the context
Ranges = dict[str, Range]
# Makers of tuples from lists and mappings, by setting.
Cleaners = Mapping[str, Callable[[Any], Any]]

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


@dataclass(frozen=True)
class CandidateParams:
    """Which tokens are likely enough, and how sharply the likelier ones are preferred.

    The stages run in the order of `backends.sampling.stages`; a stage whose setting stays None is off.
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
    mirostat: int | None = None  # 2: version 2 instead of all truncation; 0: off
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    seed: int | None = None  # None: a fresh one per request

    RANGES: ClassVar[Ranges] = {
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
        "mirostat_tau": Range(0, 100, low_included=False),
        "mirostat_eta": Range(0, 1, low_included=False),
        "seed": whole(-(2**63), 2**64 - 1),
    }


@dataclass(frozen=True)
class PenaltyParams:
    """How much less likely a token becomes that repeats the text."""

    dry_multiplier: float | None = None  # 0: off
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1  # -1: the whole text
    dry_sequence_breakers: tuple[Breaker, ...] = ("\n", ":", '"', "*")
    repetition_penalty: float | None = None
    repeat_last_n: int | None = None  # -1: the whole text, 0: off
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    RANGES: ClassVar[Ranges] = {
        "dry_multiplier": Range(0, 100),
        "dry_base": Range(1, 100),
        "dry_allowed_length": whole(1),
        "dry_penalty_last_n": whole(-1),
        "repetition_penalty": Range(0.01, 100),  # logits divided by much less overflow
        "repeat_last_n": whole(-1),
        "presence_penalty": Range(-2, 2),
        "frequency_penalty": Range(-2, 2),
    }
    CLEAN: ClassVar[Cleaners] = {"dry_sequence_breakers": clean_breakers}


@dataclass(frozen=True)
class AllowedTokenParams:
    """Which tokens may come at all."""

    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    banned_tokens: tuple[int, ...] = ()
    allowed_tokens: tuple[int, ...] = ()  # empty: all
    grammar: Grammar | None = None  # the text must be in this language
    grammar_after: tuple[int, ...] = ()  # tokens in a row that it begins after, such as </think>; empty: at once

    CLEAN: ClassVar[Cleaners] = {
        "logit_bias": clean_bias,
        "banned_tokens": partial(clean_tokens, "banned_tokens"),
        "allowed_tokens": partial(clean_tokens, "allowed_tokens"),
    }


@dataclass(frozen=True)
class StopParams:
    """Where the text ends."""

    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n_indent: int = 0  # spaces or tabs that lines after the first begin with; the text ends before one with fewer
    t_max_predict_ms: int = 0  # the text ends with the line in which so much time has passed since its first; 0: any
    thinking_budget: int | None = None  # tokens of a block of thinking, which is then closed; None: as many as it takes

    RANGES: ClassVar[Ranges] = {
        "max_tokens": whole(1),
        "min_tokens": whole(0),
        "n_indent": whole(0, 1024),
        "t_max_predict_ms": whole(0),
        "thinking_budget": whole(0),
    }
    CLEAN: ClassVar[Cleaners] = {"stop": clean_stops, "stop_token_ids": partial(clean_tokens, "stop_token_ids")}


@dataclass(frozen=True)
class ServiceParams:
    """Outputs beside the text, and how the engine works on the request."""

    n: int = 1
    logprobs: int | None = None  # likeliest tokens to list beside the sampled one; 0: none
    prompt_logprobs: int | None = None
    priority: int = 0  # higher goes first
    cache_salt: str = ""
    cache_prompt: bool = True
    speculative: bool = True  # whether its tokens may be guessed ahead, where the engine does so: the reply is the same
    lora: str | tuple[LoraChoice, ...] = ()  # adapters to add to the model, by name

    RANGES: ClassVar[Ranges] = {
        "n": whole(1, 1024),
        "logprobs": whole(0, 1024),
        "prompt_logprobs": whole(0, 1024),
        "priority": whole(-(2**31)),
    }
    CLEAN: ClassVar[Cleaners] = {"lora": clean_lora}
