"""Sampling fields of a request become `SamplingParams`, for all APIs."""

from collections.abc import Callable, Mapping
from typing import Any

from tahr.config import SamplingParams
from tahr.errors import ConfigError
from tahr.server.http.errors import bad_field, http_error

MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 128
MOST = {  # entries of a list or a mapping
    "stop": 16,
    "stop_token_ids": 64,
    "logit_bias": 1024,
    "banned_tokens": 1024,
    "allowed_tokens": 4096,
    "dry_sequence_breakers": 64,
}
MAX_CHARS = 1024  # limit on a stop string, a breaker or a salt
MAX_ID_DIGITS = 10
NO_NAMES: Mapping[str, str] = {}


def params_of(given: Mapping[str, Any], names: Mapping[str, str] = NO_NAMES) -> SamplingParams:
    """Check a request's settings; null is open. `names` are the client's names of our settings."""
    values = {name: value for name, value in given.items() if value is not None}
    check_sizes(values)  # goes first: later work grows with them
    for name, clean in CLEAN.items():
        if name in values:
            values[name] = clean(values[name])
    try:
        return SamplingParams.of(values)
    except ConfigError as error:
        raise http_error(error, names) from error


def check_sizes(values: Mapping[str, Any]) -> None:
    for name, most in MOST.items():
        if name in values:
            check_size(name, values[name], most)
    if len(values.get("cache_salt", "")) > MAX_CHARS:
        raise bad_field("cache_salt", f"cache_salt has more than {MAX_CHARS} characters: shorten it.")
    if values.get("prompt_logprobs", 0) > MAX_TOP_LOGPROBS:
        raise bad_field("prompt_logprobs", f"prompt_logprobs must be at most {MAX_TOP_LOGPROBS}.")
    n = values.get("n", 1)
    if n > MAX_CHOICES:
        raise bad_field("n", f"n is {n}, but this server gives {MAX_CHOICES} choices at most.")


def check_size(name: str, value: Any, most: int) -> None:
    if not isinstance(value, str) and len(value) > most:
        raise bad_field(name, f"{name} has {len(value)} entries, but this server takes {most} at most.")
    texts = value if isinstance(value, list) else [value]
    if any(isinstance(text, str) and len(text) > MAX_CHARS for text in texts):
        raise bad_field(name, f"{name} holds a text of more than {MAX_CHARS} characters: shorten it.")


def check_choices(n_prompts: int, n: int) -> None:
    if n_prompts * n > MAX_CHOICES:
        message = f"{n_prompts} prompts and n {n} are more than the {MAX_CHOICES} choices of one request."
        raise bad_field("prompt", message)


def within(name: str, n_top: int) -> int:
    """How many likeliest tokens to list, if that many may be listed."""
    if not 0 <= n_top <= MAX_TOP_LOGPROBS:
        raise bad_field(name, f"{name} is {n_top}, but it must be between 0 and {MAX_TOP_LOGPROBS}.")
    return n_top


def clean_bias(bias: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    """JSON has no integer keys."""
    if not all(key.isascii() and key.isdigit() and len(key) <= MAX_ID_DIGITS for key in bias):
        raise bad_field("logit_bias", "logit_bias must map token ids, written as digits, to numbers from -100 to 100.")
    return tuple({int(key): value for key, value in bias.items()}.items())


def clean_stop(stop: str | list[str]) -> list[str]:
    """An empty stop string stops nothing."""
    return [text for text in ([stop] if isinstance(stop, str) else stop) if text]


CLEAN: Mapping[str, Callable[[Any], Any]] = {"logit_bias": clean_bias, "stop": clean_stop}
