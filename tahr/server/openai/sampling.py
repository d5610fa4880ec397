"""From the fields of a request to `SamplingParams`."""

from collections.abc import Callable, Sized
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tahr.config import SamplingParams, precedence, sampling_names
from tahr.errors import ConfigError
from tahr.server.http.errors import Refusal, bad_field, refusal_of
from tahr.server.openai.bodies import ChatBody, CompletionBody, Generation

MAX_TOP_LOGPROBS = 20
MAX_ANSWERS = 128

# Fields that clients spell in another way too; the first spelling that is given counts.
SPELLINGS = {
    "max_tokens": ("max_completion_tokens", "max_tokens"),
    "repetition_penalty": ("repetition_penalty", "repeat_penalty"),
}
NAMES = tuple(name for name in sampling_names() if name != "logprobs")
SPELLED = {name: SPELLINGS.get(name, (name,)) for name in NAMES}
MOST = {  # entries of a list or a mapping
    "stop": 16,
    "stop_token_ids": 64,
    "logit_bias": 1024,
    "banned_tokens": 1024,
    "allowed_tokens": 4096,
    "dry_sequence_breakers": 64,
}
N_REMEMBERED = 256  # options that were checked before: most requests ask for the same
LONGEST = 1024  # characters of a stop string, a breaker or a salt


@dataclass(frozen=True, slots=True)
class Room:
    """What a prompt leaves for its reply."""

    n_prompt: int
    context_size: int
    cap: int | None  # of this server
    field: str  # where the prompt came from

    @property
    def left(self) -> int:
        return self.context_size - self.n_prompt


def params_of(body: Generation) -> SamplingParams:
    """What the request asks for, checked; None where it asks for nothing."""
    given, spelled = collect(body)
    check_sizes(body)
    try:
        return made_of((*given.items(), ("logprobs", logprobs_asked(body))))
    except ConfigError as error:
        raise refusal_of(error, spelled) from error


@lru_cache(maxsize=N_REMEMBERED)
def made_of(given: tuple[tuple[str, Any], ...]) -> SamplingParams:
    return SamplingParams.of(dict(given))


def collect(body: Generation) -> tuple[dict[str, Any], dict[str, str]]:
    """The values by our name, and the name the client used for each."""
    given: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for name, ways in SPELLED.items():
        for way in ways:
            value = getattr(body, way, None)
            if value is not None:
                value = CLEAN[name](value) if name in CLEAN else value
                given[name] = tuple(value) if isinstance(value, list) else value
                spelled[name] = way
                break
    return given, spelled


def check_sizes(body: Generation) -> None:
    for name, most in MOST.items():
        value = getattr(body, name)
        if isinstance(value, Sized) and not isinstance(value, str) and len(value) > most:
            raise bad_field(name, f"{name} has {len(value)} entries, but this server takes {most} at most.")
        texts = value if isinstance(value, list) else [value]
        if any(isinstance(text, str) and len(text) > LONGEST for text in texts):
            raise bad_field(name, f"{name} holds a text of more than {LONGEST} characters: shorten it.")
    if body.cache_salt and len(body.cache_salt) > LONGEST:
        raise bad_field("cache_salt", f"cache_salt has more than {LONGEST} characters: shorten it.")
    if body.n is not None and body.n > MAX_ANSWERS:
        raise bad_field("n", f"n is {body.n}, but this server gives {MAX_ANSWERS} answers at most.")
    if body.prompt_logprobs is not None and body.prompt_logprobs > MAX_TOP_LOGPROBS:
        raise bad_field("prompt_logprobs", f"prompt_logprobs must be at most {MAX_TOP_LOGPROBS}.")


def logprobs_asked(body: Generation) -> int | None:
    """How many likeliest tokens to list; None: no log-probabilities at all."""
    if isinstance(body, ChatBody):
        if body.top_logprobs is not None and not body.logprobs:
            raise bad_field("top_logprobs", "top_logprobs needs logprobs to be true: set it, or leave both out.")
        return within("top_logprobs", body.top_logprobs or 0) if body.logprobs else None
    assert isinstance(body, CompletionBody)
    return None if body.logprobs is None else within("logprobs", body.logprobs)


def within(name: str, n_top: int) -> int:
    if not 0 <= n_top <= MAX_TOP_LOGPROBS:
        raise bad_field(name, f"{name} is {n_top}, but it must be between 0 and {MAX_TOP_LOGPROBS}.")
    return n_top


def clean_bias(bias: dict[str, float]) -> tuple[tuple[int, float], ...]:
    """JSON has no integer keys."""
    if not all(key.isascii() and key.isdigit() for key in bias):
        raise bad_field("logit_bias", "logit_bias must map token ids, written as digits, to numbers from -100 to 100.")
    return tuple({int(key): value for key, value in bias.items()}.items())


def clean_stop(stop: str | list[str]) -> list[str]:
    """An empty stop string stops nothing."""
    return [text for text in ([stop] if isinstance(stop, str) else stop) if text]


CLEAN: dict[str, Callable[[Any], Any]] = {"logit_bias": clean_bias, "stop": clean_stop}


def fit(asked: SamplingParams, defaults: SamplingParams, room: Room) -> SamplingParams:
    """All values filled in. A length beyond the room is refused if it was asked for, else cut."""
    if room.left < 1:
        raise too_long(room.field, f"The prompt has {room.n_prompt} tokens, but the context holds {room.context_size}")
    check_length(asked.max_tokens, room)
    wanted = defaults.max_tokens if asked.max_tokens is None else asked.max_tokens
    return filled(asked, defaults, min(wanted or room.left, room.left, room.cap or room.left))


@lru_cache(maxsize=N_REMEMBERED)
def filled(asked: SamplingParams, defaults: SamplingParams, max_tokens: int) -> SamplingParams:
    merged = precedence(asked, defaults)
    least = merged.min_tokens if asked.asks_for("min_tokens") else min(merged.min_tokens, max_tokens)
    return replace(merged, max_tokens=max_tokens, min_tokens=least)


def check_length(max_tokens: int | None, room: Room) -> None:
    if max_tokens is not None and room.cap is not None and max_tokens > room.cap:
        raise bad_field("max_tokens", f"max_tokens is {max_tokens}, but this server gives {room.cap} at most.")
    if max_tokens is not None and max_tokens > room.left:
        message = f"{room.n_prompt} tokens of prompt and max_tokens {max_tokens} exceed the context length"
        raise too_long("max_tokens", f"{message} of {room.context_size}")


def too_long(param: str, message: str) -> Refusal:
    return bad_field(param, f"{message}: shorten the prompt or ask for less.", "context_length_exceeded")
