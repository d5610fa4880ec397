"""Tokens that mean something besides text, as a model's files have them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tahr.errors import CorruptFile

Ids = NDArray[np.int64]
Heads = tuple[tuple[int, int], ...]  # a layer and a head of it, each
TIME_S = 0.02  # seconds between two tokens of times
MOST_FIRST_TIME = 50  # the first segment begins in the first second
LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
TASKS = ("transcribe", "translate")
NO_SPEECH = ("nospeech", "nocaptions")


@dataclass(frozen=True, slots=True, eq=False)
class SpeechTokens:
    """Special tokens of a model that writes down recordings. Those of times come last, in their order."""

    end: int
    start: int
    no_times: int
    previous: int | None  # the token that opens the text before the window
    no_speech: int | None
    tasks: Mapping[str, int]  # empty: the model knows one language and one task
    languages: Mapping[str, int]  # keys are codes
    suppressed: Ids
    suppressed_first: Ids  # besides these, as the first token
    n_vocab: int
    max_first_time: int = MOST_FIRST_TIME
    alignment_heads: Heads = ()  # heads that follow the speech

    @property
    def first_time(self) -> int:
        return self.no_times + 1

    def is_time(self, token: int) -> bool:
        return token >= self.first_time

    def seconds(self, token: int) -> float:
        """The time that a token stands for, from the beginning of the window."""
        return (token - self.first_time) * TIME_S

    def texts(self, tokens: Sequence[int]) -> list[int]:
        """Only those that are text."""
        return [token for token in tokens if token < self.end]


def read_tokens(generation: Mapping[str, Any], special: Mapping[str, int], n_vocab: int) -> SpeechTokens:
    """The tokens that generation_config.json and the tokenizer name."""

    def named(*names: str) -> int | None:
        return next((special[f"<|{name}|>"] for name in names if f"<|{name}|>" in special), None)

    def needed(field: str, name: str) -> int:
        return checked_id(generation.get(field, named(name)), field, n_vocab)

    languages = {match[1]: i for text, i in special.items() if (match := LANGUAGE.fullmatch(text))}
    told = generation.get("lang_to_id")
    if isinstance(told, Mapping):
        languages = {str(text).strip("<|>"): checked_id(i, "lang_to_id", n_vocab) for text, i in told.items()}
    is_multilingual = generation.get("is_multilingual", bool(languages))
    tasks = {task: found for task in TASKS if (found := named(task)) is not None}
    return SpeechTokens(
        end=needed("eos_token_id", "endoftext"),
        start=needed("decoder_start_token_id", "startoftranscript"),
        no_times=needed("no_timestamps_token_id", "notimestamps"),
        previous=named("startofprev"),
        no_speech=named(*NO_SPEECH),
        tasks=tasks if is_multilingual else {},
        languages=languages if is_multilingual else {},
        suppressed=ids_of(generation, "suppress_tokens", n_vocab),
        suppressed_first=ids_of(generation, "begin_suppress_tokens", n_vocab),
        n_vocab=n_vocab,
        max_first_time=int(generation.get("max_initial_timestamp_index") or MOST_FIRST_TIME),
    )


def checked_id(value: Any, field: str, n_vocab: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < n_vocab:
        raise CorruptFile(
            f"In generation_config.json, {field} is {str(value)[:40]}, but it must be one of {n_vocab} tokens. The "
            "file is missing or belongs to another model; fetch the model again."
        )
    return value


def ids_of(generation: Mapping[str, Any], field: str, n_vocab: int) -> Ids:
    values = generation.get(field) or []
    if not isinstance(values, list):
        values = [values]
    return np.array([checked_id(value, field, n_vocab) for value in values], np.int64)


def heads_of(generation: Mapping[str, Any], n_layers: int, n_heads: int) -> Heads:
    """The heads that follow the speech: those of the upper layers, where a file names none. Empty: a file names heads
    that the model does not have, as those of some distilled models do."""
    pairs = generation.get("alignment_heads")
    if pairs is None:
        return tuple((layer, head) for layer in range(n_layers // 2, n_layers) for head in range(n_heads))
    if not isinstance(pairs, list) or not all(is_head(pair, n_layers, n_heads) for pair in pairs):
        return ()
    return tuple(dict.fromkeys((pair[0], pair[1]) for pair in pairs))


def is_head(pair: Any, n_layers: int, n_heads: int) -> bool:
    if not isinstance(pair, list) or len(pair) != 2 or not all(type(number) is int for number in pair):
        return False
    return bool(0 <= pair[0] < n_layers and 0 <= pair[1] < n_heads)
