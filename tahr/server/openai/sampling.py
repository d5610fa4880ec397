"""From the fields of a request to `SamplingParams`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from msgspec import Struct

from tahr.config import SamplingParams, precedence, sampling_names
from tahr.errors import ConfigError
from tahr.server.http.errors import HttpError, bad_field, http_error
from tahr.server.openai.bodies import ChatBody, CompletionBody, GenerationBody

MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 128
MAX_LOGPROB_ENTRIES = 2**18  # of prompts in one response: tokens times alternatives times repetitions
MAX_OUTPUT_ENTRIES = 2**20  # of choices: tokens they may have, times alternatives, which the engine keeps to the end

# Fields that clients spell in another way too; the first spelling that is given counts.
SPELLINGS = {
    "max_tokens": ("max_completion_tokens", "max_tokens"),
    "repetition_penalty": ("repetition_penalty", "repeat_penalty"),
    "thinking_budget": ("thinking_budget", "thinking_token_budget", "thinking_budget_tokens"),
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
N_CACHED = 256  # parameters that were checked before: most requests ask for the same
MAX_CHARS = 1024  # of a stop string, a breaker or a salt
MAX_ID_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for, and how it spelled the fields."""

    params: SamplingParams
    sent_names: Mapping[str, str] = field(default_factory=dict)

    def sent_name(self, name: str) -> str:
        return self.sent_names.get(name, name)


class Room(Struct, frozen=True):
    """What a prompt leaves for its reply."""

    n_prompt: int
    context_size: int
    cap: int | None  # of this server
    field: str  # where the prompt came from
    cuts: bool = False  # a length beyond it is cut, also if it was asked for

    @property
    def left(self) -> int:
        return self.context_size - self.n_prompt


def params_of(body: GenerationBody) -> Asked:
    """What the request asks for, checked; what it does not say is left open."""
    check_sizes(body)  # before what grows with them
    given, sent_names = collect(body)
    try:
        return Asked(made_of((*given.items(), ("logprobs", n_logprobs(body)))), sent_names)
    except ConfigError as error:
        raise http_error(error, sent_names) from error


@lru_cache(maxsize=N_CACHED)
def made_of(given: tuple[tuple[str, Any], ...]) -> SamplingParams:
    return SamplingParams.of(dict(given))


def collect(body: GenerationBody) -> tuple[dict[str, Any], dict[str, str]]:
    """The values by our name, and the name the client used for each."""
    given: dict[str, Any] = {}
    sent_names: dict[str, str] = {}
    for name, spellings in SPELLED.items():
        for spelling in spellings:
            value = getattr(body, spelling, None)
            if value is not None:
                value = CLEAN[name](value) if name in CLEAN else value
                sent_names[name] = spelling
                if value is not None:
                    given[name] = tuple(value) if isinstance(value, list) else value
                break
    return given, sent_names


def check_sizes(body: GenerationBody) -> None:
    for name, most in MOST.items():
        value = getattr(body, name)
        if value is None:
            continue
        if not isinstance(value, str) and len(value) > most:
            raise bad_field(name, f"{name} has {len(value)} entries, but this server takes {most} at most.")
        texts = value if isinstance(value, list) else [value]
        if any(isinstance(text, str) and len(text) > MAX_CHARS for text in texts):
            raise bad_field(name, f"{name} holds a text of more than {MAX_CHARS} characters: shorten it.")
    if body.cache_salt and len(body.cache_salt) > MAX_CHARS:
        raise bad_field("cache_salt", f"cache_salt has more than {MAX_CHARS} characters: shorten it.")
    if body.n is not None and body.n > MAX_CHOICES:
        raise bad_field("n", f"n is {body.n}, but this server gives {MAX_CHOICES} choices at most.")
    if body.prompt_logprobs is not None and body.prompt_logprobs > MAX_TOP_LOGPROBS:
        raise bad_field("prompt_logprobs", f"prompt_logprobs must be at most {MAX_TOP_LOGPROBS}.")


def check_prompt_logprobs(field: str, n_tokens: int, n_top: int | None, n_repeated: int) -> None:
    """Refuse log-probabilities of prompts that would make a response of any size from a short request."""
    n_entries = 0 if n_top is None else n_tokens * (n_top + 1) * n_repeated
    if n_entries > MAX_LOGPROB_ENTRIES:
        what = f"{field} asks for {n_entries} log-probabilities of prompt tokens"
        most = f"one response holds {MAX_LOGPROB_ENTRIES} at most"
        raise bad_field(field, f"{what}, but {most}: ask for fewer alternatives or choices, or send shorter prompts.")


def check_output_logprobs(field: str, params: SamplingParams, n_prompts: int) -> None:
    """Refuse more log-probabilities of choices than are worth the memory."""
    n_tokens = n_prompts * params.n * (params.max_tokens or 0)
    n_entries = 0 if params.logprobs is None else n_tokens * (params.logprobs + 1)
    if n_entries > MAX_OUTPUT_ENTRIES:
        what = f"{field} asks for up to {n_entries} log-probabilities"
        message = f"{what}, but one response holds {MAX_OUTPUT_ENTRIES} at most: lower it, n or max_tokens."
        raise bad_field(field, message)


def n_logprobs(body: GenerationBody) -> int | None:
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


# ---- fields that mean more than their value -----------------------------------------------------------------


def clean_bias(bias: dict[str, float]) -> tuple[tuple[int, float], ...]:
    """JSON has no integer keys."""
    if not all(key.isascii() and key.isdigit() and len(key) <= MAX_ID_DIGITS for key in bias):
        raise bad_field("logit_bias", "logit_bias must map token ids, written as digits, to numbers from -100 to 100.")
    return tuple({int(key): value for key, value in bias.items()}.items())


def clean_stop(stop: str | list[str]) -> list[str]:
    """An empty stop string stops nothing."""
    return [text for text in ([stop] if isinstance(stop, str) else stop) if text]


CLEAN: dict[str, Callable[[Any], Any]] = {
    "logit_bias": clean_bias,
    "stop": clean_stop,
    "max_tokens": lambda value: None if value == -1 else value,  # as long as it fits
}


# ---- defaults -----------------------------------------------------------------------------------------------


def fit(asked: Asked, defaults: SamplingParams, room: Room, salt: str = "") -> SamplingParams:
    """All values filled in. A length beyond the room is refused if it was asked for, unless the room cuts it, else cut.

    `salt` keeps what different clients put into the prefix cache apart.
    """
    params = asked.params
    if room.left < 1:
        raise too_long(room.field, room, f"the prompt has {room.n_prompt} tokens")
    if not room.cuts:
        check_length(asked, room)
    open_ended = params.max_tokens is None and "max_tokens" in asked.sent_names  # -1
    wanted = room.left if open_ended else params.max_tokens or defaults.max_tokens or room.left
    return filled(params, defaults, min(wanted, room.left, room.cap or room.left), salt)


@lru_cache(maxsize=N_CACHED)
def filled(params: SamplingParams, defaults: SamplingParams, max_tokens: int, salt: str) -> SamplingParams:
    merged = precedence(params, defaults)
    least = merged.min_tokens if params.asks_for("min_tokens") else min(merged.min_tokens, max_tokens)
    cache_salt = f"{salt}/{merged.cache_salt}" if salt else merged.cache_salt
    return replace(merged, max_tokens=max_tokens, min_tokens=least, cache_salt=cache_salt)


def check_length(asked: Asked, room: Room) -> None:
    max_tokens, name = asked.params.max_tokens, asked.sent_name("max_tokens")
    if max_tokens is not None and room.cap is not None and max_tokens > room.cap:
        raise bad_field(name, f"{name} is {max_tokens}, but this server gives {room.cap} at most.")
    if max_tokens is not None and max_tokens > room.left:
        n_all = room.n_prompt + max_tokens
        raise too_long(
            name, room, f"you asked for {n_all} tokens: {room.n_prompt} of the prompt and {max_tokens} as {name}"
        )


def too_long(param: str, room: Room, what: str) -> HttpError:
    limit = f"This model's maximum context length is {room.context_size} tokens, but {what}"
    return bad_field(param, f"{limit}: shorten the prompt or ask for less.", "context_length_exceeded")
